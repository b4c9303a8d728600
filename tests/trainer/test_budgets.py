"""In runs: a multiplier for each value of a column, and a budget that is on and off."""

from statistics import fmean

import pytest
from conftest import log_rows, parity_reward


def test_each_value_of_a_column_has_a_multiplier_that_its_own_prompts_move(make_trainer, problems, tmp_path):
    targets = {"low": 5, "high": 9}
    data = problems.add_column("effort", ["high", "low"] * 32).add_column("target_length", [9, 5] * 32)
    fields = {
        "length_control_kwargs": {"multiplier_per": "effort"},
        "lambda_init": 0.2,
        "target_length": 6,
        "per_device_train_batch_size": 16,
        "save_strategy": "steps",
        "save_steps": 2,
    }
    batches = []

    def reward(completion_ids, effort, **kwargs):
        batches.append(list(zip(map(len, completion_ids), effort, strict=True)))
        return parity_reward(completion_ids)

    whole = make_trainer(reward, dataset=data, output_dir=str(tmp_path / "whole"), **fields)
    whole.train()
    lambdas = {"low": 0.2, "high": 0.2}
    for row, batch in zip(log_rows(whole), batches, strict=True):
        for name, target in targets.items():
            violations = [length / target - 1 for length, effort in batch if effort == name]
            assert (f"leash/lambda/{name}" in row) == bool(violations)
            if violations:
                violation = fmean(violations)
                assert row[f"leash/lambda/{name}"] == pytest.approx(lambdas[name], abs=1e-12)
                assert row[f"leash/violation/{name}"] == pytest.approx(violation)
                lambdas[name] = min(max(lambdas[name] + 0.1 * violation, 0), 1)
    assert whole.length_control.lambdas == pytest.approx(lambdas, abs=1e-12)
    assert lambdas["low"] != lambdas["high"]
    resumed = make_trainer(reward, dataset=data, output_dir=str(tmp_path / "resumed"), **fields)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert resumed.length_control.state_dict() == whole.length_control.state_dict()
