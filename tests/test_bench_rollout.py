"""`leash bench rollout`: every engine generates the lengths that were drawn."""

import pytest
import torch

from leash_trl.benchmark.rollout_engines import RowLimits, generation_config, measure
from leash_trl.benchmark.settings import RolloutSettings
from leash_trl.benchmark.tables import make_report, markdown
from leash_trl.cli.bench import main


SETTINGS = RolloutSettings(lengths="uniform", max_length=12, steps=1, num_completions=6)


@pytest.mark.parametrize("engine", ["generate", "shrinking", "continuous"])
def test_engines_generate_the_drawn_lengths(engine):
    result = measure(SETTINGS, engine)  # raises for any other length
    assert result["longest"] <= 12
    assert len(result["rounds"]) == 2
    tokens = result["completion_tokens_per_second"] * result["seconds"]
    assert tokens == pytest.approx(6 * result["mean_length"])


def test_generate_keeps_its_cache():
    # the gym's own configuration turns it off, and without it every token computes all before it again
    assert generation_config([4], pad_id=0).use_cache


def test_rows_end_at_their_own_lengths():
    ids = torch.zeros(3, 5, dtype=torch.long)
    assert RowLimits(torch.tensor([4, 5, 6]))(ids, ids).tolist() == [True, True, False]


def test_ratios_are_to_generate():
    row = {"peak_memory_kind": "", "device": "a CPU", "mean_length": 5.0, "longest": 9}
    results = {
        "generate": {**row, "completion_tokens_per_second": 100.0, "peak_memory_gib": 0.5},
        "shrinking": {**row, "completion_tokens_per_second": 250.0, "peak_memory_gib": 0.25},
    }
    page = markdown(make_report("leash bench rollout", SETTINGS, results))
    assert "| generate | 100 | 0.5 |" in page
    assert "| shrinking | 250 (2.50) | 0.25 (2.00) |" in page


def test_a_failed_engine_is_reported_and_fails_the_command(tmp_path, monkeypatch, capsys):
    (tmp_path / "torch.py").write_text("raise RuntimeError('no such device')", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert main(["rollout", "--engines", "shrinking", "--output", str(tmp_path / "bench")]) == 1
    assert "shrinking failed: RuntimeError: no such device" in capsys.readouterr().out
