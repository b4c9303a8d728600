"""The page of length control in any trainer: its code runs as printed, and its table is the rules'."""

import functools
import re

from conftest import ROOT

from leash_trl.length_control.methods import METHODS


PAGE = (ROOT / "recipes" / "any_trainer.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_grpo_and_rloo_run_as_printed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for block, kind in zip(BLOCKS, ("grpo", "rloo"), strict=False):
        exec(compile(block, "any_trainer.md", "exec"), names)
        rows = names["trainer"].state.log_history
        assert (tmp_path / "runs" / "any_trainer" / kind).is_dir()
        assert [row["leash/version"] for row in rows if "loss" in row] == [0, 1, 2]
        assert names["reward"].method.lam != names["reward"].method.lambda_init


def test_asynchronous_grpo_compiles_and_takes_what_it_is_given(tmp_path, monkeypatch):
    """It is run by test_async_grpo; here a stand-in takes the trainer's place, which would ask for a server."""
    import trl.experimental.async_grpo as asynchronous

    monkeypatch.chdir(tmp_path)
    made = {}
    on_cpu = functools.partial(asynchronous.AsyncGRPOConfig, use_cpu=True, bf16=False)
    monkeypatch.setattr(asynchronous, "AsyncGRPOConfig", on_cpu)
    monkeypatch.setattr(asynchronous, "AsyncGRPOTrainer", lambda *args, **kwargs: made.update(kwargs))
    names: dict = {"problems": []}
    for block in (*BLOCKS[:1], *BLOCKS[2:]):
        lines = [line for line in block.splitlines() if not line.startswith("trainer.train")]
        exec("\n".join(lines), names)
    assert made["reward_funcs"] is names["reward"]
    assert made["args"].max_completion_length == 16384


def test_each_method_has_its_row():
    table = [
        row.split("|")[1] for row in PAGE.splitlines() if row.startswith("| ") and not row.startswith("| methods")
    ]
    first, second, third, last = (set(re.findall(r"[a-z]\w+", row.partition(";")[0])) for row in table)
    assert first | second | third | last == METHODS.keys()
    assert len(first) == 13
    assert all(METHODS[name].needs_group for name in second)
    assert all(METHODS[name].own_advantages for name in third)
    assert not any(METHODS[name].needs_group or METHODS[name].own_advantages for name in first)
