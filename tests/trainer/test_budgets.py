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


@pytest.mark.parametrize("period", [1, 3])
def test_a_toggled_budget_is_on_for_half_of_the_batches_whatever_the_updates(make_trainer, period, tmp_path):
    """Two updates a batch; a run resumed inside a period goes on in it."""
    fields = {
        "length_control": "toggle",
        "length_control_kwargs": {"period": period, "accuracy_threshold": 0.0},
        "lambda_lr": None,
        "steps_per_generation": 2,
        "gradient_accumulation_steps": 1,
        "per_device_train_batch_size": 4,
        "max_steps": 12,
        "save_strategy": "steps",
        "save_steps": 4,
    }
    keys = ["step", "leash/budget_on", "leash/mean_penalty"]
    logs = []
    for checkpoint in (None, str(tmp_path / "run" / "checkpoint-4")):
        trainer = make_trainer(**fields)
        trainer.train(resume_from_checkpoint=checkpoint)
        logs.append([[row[key] for key in keys] for row in log_rows(trainer, "leash/budget_on")])
    assert logs[0] == logs[1]
    assert [is_on for _, is_on, _ in logs[0]] == ([1, 0] * 3 if period == 1 else [1] * 3 + [0] * 3)
    assert all(penalty == 0 for _, is_on, penalty in logs[0] if not is_on)
