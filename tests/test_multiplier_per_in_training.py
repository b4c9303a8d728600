"""One multiplier per budget: by hand, equal to LEASH where there is one value, and in a real trainer."""

import math

import pytest
import torch

from leash_trl.length_control.rollouts import Rollouts, ScoredRollouts


def batch(lengths, efforts, targets, rewards=None, column="effort"):
    count = len(lengths)
    return Rollouts(
        task_rewards=torch.tensor([1.0] * count if rewards is None else rewards, dtype=torch.float64),
        lengths=torch.tensor(lengths),
        target_lengths=torch.tensor(targets, dtype=torch.float64),
        is_truncated=torch.zeros(count, dtype=torch.bool),
        questions=torch.arange(count) // 2,
        num_generations=2,
        max_completion_length=1000,
        columns={column: efforts} if column else {},
    )


LOW_AND_HIGH = (["low", "low", "high", "high"], [100.0, 100.0, 400.0, 400.0])


def scored(method, rollouts):
    return ScoredRollouts(rollouts, method.base_rewards(rollouts), method.penalty(rollouts), method.shape(rollouts))


def test_other_values_in_the_column_are_another_run(make_trainer, problems):
    fields = {**SHORT, "length_control_kwargs": {"multiplier_per": "effort"}}
    efforts = with_efforts(problems)
    swapped = efforts.map(lambda row: {"effort": "low" if row["effort"] == "high" else "high"})
    one, other = (make_trainer(even_sum, dataset=rows, **fields).run_settings for rows in (efforts, swapped))
    assert one["data"] != other["data"]


SHORT = {"target_length": 6, "max_completion_length": 12, "lambda_init": 0.2, "lambda_lr": 0.1, "max_steps": 3}


def even_sum(completion_ids, **kwargs):
    return [1.0 if sum(ids) % 2 else -1.0 for ids in completion_ids]


def with_efforts(problems):
    efforts = ["low" if index % 2 else "high" for index in range(len(problems))]
    return problems.add_column("effort", efforts).add_column(
        "target_length", [5 if effort == "low" else 9 for effort in efforts]
    )


def test_in_a_run_each_multiplier_is_logged_moved_saved_and_restored(make_trainer, problems, tmp_path):
    fields = {**SHORT, "length_control_kwargs": {"multiplier_per": "effort"}, "save_strategy": "steps"}
    fields |= {"save_steps": 2, "per_device_train_batch_size": 16, "dataset": with_efforts(problems)}
    whole = make_trainer(even_sum, output_dir=str(tmp_path / "whole"), **fields)
    seen = []
    observe = whole.length_control.observe

    def spy(rollouts):
        seen.append(rollouts)
        observe(rollouts)

    whole.length_control.observe = spy
    whole.train()
    rows = [row for row in whole.state.log_history if "loss" in row]
    expected = {"low": 0.2, "high": 0.2}
    for row, rollouts in zip(rows, seen, strict=True):
        named = {key.rpartition("/")[2]: value for key, value in row.items() if key.startswith("leash/lambda/")}
        assert named == {name: pytest.approx(lam) for name, lam in expected.items() if name in named}
        for name, target in (("low", 5), ("high", 9)):
            own = [
                length / target - 1
                for length, effort in zip(rollouts.lengths.tolist(), rollouts.columns["effort"], strict=True)
                if effort == name
            ]
            if own:
                expected[name] = min(max(expected[name] + 0.1 * math.fsum(own) / len(own), 0), 1)
    assert {name: m.lam for name, m in whole.length_control.multipliers.items()} == pytest.approx(expected)
    assert expected["low"] != expected["high"]

    resumed = make_trainer(even_sum, output_dir=str(tmp_path / "resumed"), **fields)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert resumed.length_control.state_dict() == whole.length_control.state_dict()


def test_a_distinct_target_is_a_budget_too(make_trainer, problems):
    problems = problems.add_column("target_length", [None if index % 3 else 8 for index in range(len(problems))])
    trainer = make_trainer(
        even_sum,
        dataset=problems,
        length_control_kwargs={"multiplier_per": "target_length"},
        **SHORT,
        per_device_train_batch_size=16,
    )
    trainer.train()
    assert trainer.length_control.multipliers.keys() == {"6", "8"}


def test_a_column_that_is_missing_misspelt_or_empty_is_an_error(make_trainer, problems):
    efforts = with_efforts(problems)
    with pytest.raises(ValueError, match=r"'efort'.*did you mean effort"):
        make_trainer(even_sum, dataset=efforts, length_control_kwargs={"multiplier_per": "efort"}, **SHORT)
    holes = problems.add_column("effort", ["low", None] * (len(problems) // 2) + ["low"] * (len(problems) % 2))
    with pytest.raises(ValueError, match=r"row 1 of the data set .*'effort'"):
        make_trainer(even_sum, dataset=holes, length_control_kwargs={"multiplier_per": "effort"}, **SHORT)
