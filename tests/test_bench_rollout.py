"""`leash bench rollout`: every engine generates the lengths that were drawn."""

import json
import sys
from pathlib import Path

import pytest
import torch

from leash_trl.benchmark import rollout_engines
from leash_trl.benchmark.model import random_model
from leash_trl.benchmark.rollout_engines import RowLimits, Work, measure
from leash_trl.benchmark.settings import RolloutSettings
from leash_trl.benchmark.tables import make_report, rollout_markdown
from leash_trl.cli.bench import main


SETTINGS = RolloutSettings(
    model="gym", dtype="float32", lengths="uniform", max_length=12, seed=0, steps=1, num_completions=6
)


ROW = {"peak_memory_bytes": 2**29, "peak_memory_kind": "", "device": "a CPU", "mean_length": 5.0, "longest": 9}
CPU = torch.device("cpu")


@pytest.mark.parametrize("engine", ["generate", "shrinking", "continuous"])
def test_engines_generate_the_drawn_lengths(engine):
    result = measure(SETTINGS, engine)  # raises for any other length
    assert result["longest"] <= 12
    assert len(result["rounds"]) == 2
    assert result["num_parameters"] == sum(p.numel() for p in random_model("gym", "float32", 12, 0, CPU).parameters())
    tokens = result["completion_tokens_per_second"] * result["seconds"]
    assert tokens == pytest.approx(6 * result["mean_length"])


def test_generate_keeps_its_cache():
    # the gym's own configuration turns it off, and without it every token computes all before it again
    work = Work(SETTINGS, torch.device("cpu"), [[7]], [4], pad_id=0)
    assert work.generation_config().use_cache


def test_rows_end_at_their_own_lengths():
    ids = torch.zeros(3, 5, dtype=torch.long)
    assert RowLimits(torch.tensor([4, 5, 6]))(ids, ids).tolist() == [True, True, False]


def test_an_engine_that_is_not_installed_is_a_row(tmp_path, monkeypatch):
    SETTINGS.save(tmp_path / "settings.json")
    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.setattr(sys, "argv", ["bench", str(tmp_path / "settings.json"), "vllm", str(tmp_path / "vllm.json")])
    rollout_engines.main()
    results = {"vllm": json.loads((tmp_path / "vllm.json").read_text(encoding="utf-8"))}
    page = rollout_markdown(make_report("leash bench rollout", SETTINGS, results))
    assert "|" not in page  # no table without a measurement
    assert 'vllm: not installed; pip install "leash-trl[vllm]"' in page
    results["generate"] = {**ROW, "completion_tokens_per_second": 100.0}
    page = rollout_markdown(make_report("leash bench rollout", SETTINGS, results))
    assert '| vllm | not installed; pip install "leash-trl[vllm]" | | |' in page


def test_to_measure_nothing_is_a_failure(tmp_path, monkeypatch, capsys):
    def missing(jobs, *args):
        for job in jobs:
            Path(job.command[-1]).write_text('{"missing": "not installed"}', encoding="utf-8")

    monkeypatch.setattr("leash_trl.cli.bench.run_jobs", missing)
    assert main(["rollout", "--engines", "vllm", "--output", str(tmp_path)]) == 1
    assert "vllm: not installed" in capsys.readouterr().out


def test_ratios_are_to_generate():
    results = {
        "generate": {**ROW, "completion_tokens_per_second": 100.0},
        "shrinking": {**ROW, "completion_tokens_per_second": 250.0},
    }
    page = rollout_markdown(make_report("leash bench rollout", SETTINGS, results))
    assert "| shrinking | 250 | 2.50 | 0.5 |" in page


def test_a_failed_engine_is_reported_and_fails_the_command(tmp_path, monkeypatch, capsys):
    (tmp_path / "torch.py").write_text("raise RuntimeError('no such device')", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert main(["rollout", "--engines", "shrinking", "--output", str(tmp_path / "bench")]) == 1
    assert "shrinking failed: RuntimeError: no such device" in capsys.readouterr().out
