"""The rows of a comparison's files, from its evaluated runs."""

from pathlib import Path

import pandas as pd
import pytest
from written_runs import said, write_evaluation

from leash_trl.comparison.page import FinishedEvaluation, paired_differences, seed_rows
from leash_trl.comparison.run import ComparedRun, LengthRequest
from leash_trl.comparison.tables import comparison_markdown, read_comparison_rows
from leash_trl.evaluation.runs import load_evaluated_run
from leash_trl.evaluation.tables import csv


NOTHING_LOGGED = pd.Series(dtype=float)


def finished(name, evaluated, length_of, seed=0):
    """The evaluation of a run that controlled this cost, with a target of 2."""
    run = ComparedRun(
        arm=name,
        label=name,
        recipe={"length_of": length_of},
        grid_values={},
        eval_options={},
        is_trained=True,
        folder=Path(name),
        seed=seed,
    )
    request = LengthRequest(target_length=2)
    return FinishedEvaluation(run, request, evaluated, *[NOTHING_LOGGED] * 4)


@pytest.mark.parametrize(
    ("controlled", "measured", "column"),
    [
        ("thinking", "thinking", "num_thinking_tokens"),
        ("costs.py:num_lines", "costs.py:num_lines", "cost"),
        ("tool_calls", "completion", "num_thinking_tokens"),  # an evaluation has no tools
    ],
)
def test_a_comparison_of_another_cost_is_read_as_it_was_written(tmp_path, controlled, measured, column):
    evaluated = []
    for label, cost in (("base", 9), ("none", 7), ("leash", 4)):
        problems = [[{**said(20), column: cost}]] * 3
        folder = write_evaluation(tmp_path / label, label, {"gym": problems}, length_of=measured)
        evaluated.append(load_evaluated_run(folder))
    base, none, leash = evaluated
    evaluations = [finished("none", none, controlled), finished("leash", leash, controlled)]
    seeds = seed_rows(base, evaluations)

    file = tmp_path / "seeds.csv"
    file.write_text(csv(seeds))
    assert read_comparison_rows(file)["target_of"].tolist() == ["", controlled, controlled]

    differences = paired_differences(seeds, base, evaluations).set_index("column")["value"]
    assert differences["mean_tokens"] == 0
    if measured == controlled:
        assert seeds["mean_cost"].tolist() == [9, 7, 4]
        assert differences["mean_cost"] == -3


def two_benchmarks(tmp_path, label, of_decided, of_undecided):
    """A run of two benchmarks, given the grades of a completion of each."""
    problems = {}
    for name, grades in (("decided", of_decided), ("undecided", of_undecided)):
        problems[name] = [[{**said(20), "is_correct": None, "reward": None, **grades}]] * 3
    return load_evaluated_run(write_evaluation(tmp_path / label, label, problems))


def two_arms(tmp_path, none, leash):
    """Two seeds of each of two arms, given the grades of a completion of each benchmark."""
    evaluations = []
    for label, grades in (("none", none), ("leash", leash)):
        for seed in (0, 1):
            evaluated = two_benchmarks(tmp_path, f"{label}{seed}", *grades)
            evaluations.append(finished(label, evaluated, "completion", seed))
    return evaluations


def test_where_a_benchmark_has_no_correctness_arms_are_compared_by_reward(tmp_path):
    none = [{"is_correct": True, "reward": 1.0}, {"reward": 0.0}]
    leash = [{"is_correct": True, "reward": 0.5}, {"reward": -0.5}]
    evaluations = two_arms(tmp_path, none, leash)
    base = evaluations[0].evaluated_run
    seeds = seed_rows(base, evaluations)
    assert seeds["measure"].unique().tolist() == ["reward"]
    assert seeds["score"].tolist() == [0.5, 0.5, 0.5, 0.0, 0.0]
    assert seeds["lowest_score"].tolist() == [0, 0, 0, -1, -1]  # of the rewards of a run
    differences = paired_differences(seeds, base, evaluations).set_index("column")["value"]
    assert differences.to_dict() == {"score": -0.5, "mean_tokens": 0.0}


@pytest.mark.parametrize("reward", [None, 0.25])
def test_where_a_benchmark_has_no_reward_arms_are_compared_by_accuracy_if_it_is_known(tmp_path, reward):
    """`correctness_func` is none of the reward functions, which return None for a benchmark."""
    graded = {"is_correct": True, "reward": reward}
    evaluated = two_benchmarks(tmp_path, "run", graded, {"is_correct": False})
    assert seed_rows(evaluated, [])[["measure", "score"]].values.tolist() == [["accuracy", 0.5]]


def test_where_no_grade_is_that_of_all_benchmarks_tokens_are_still_compared(tmp_path):
    grades = [{"is_correct": True}, {"reward": 0.5}]
    evaluations = two_arms(tmp_path, none=grades, leash=grades)
    base = evaluations[0].evaluated_run
    seeds = seed_rows(base, evaluations)
    differences = paired_differences(seeds, base, evaluations)
    assert differences["column"].tolist() == ["mean_tokens"]
    assert "| leash at 2 |" in comparison_markdown(seeds, differences)
