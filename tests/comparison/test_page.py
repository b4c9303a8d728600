"""The rows of a comparison's files, from its evaluated runs."""

from pathlib import Path

import pandas as pd
import pytest
from written_runs import said, write_evaluation

from leash_trl.comparison.page import FinishedEvaluation, paired_differences, seed_rows
from leash_trl.comparison.run import ComparedRun, LengthRequest
from leash_trl.comparison.tables import comparison_markdown, comparison_rows, read_comparison_rows
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


@pytest.mark.parametrize("measured", ["thinking", "completion"])
def test_a_comparison_of_another_cost_is_read_as_it_was_written(tmp_path, measured):
    """Training counted thinking or, which an evaluation cannot measure, tool calls."""
    controlled = "thinking" if measured == "thinking" else "tool_calls"
    evaluated = []
    for label, num_thinking_tokens in (("base", 9), ("none", 7), ("leash", 4)):
        problems = [[{**said(20), "num_thinking_tokens": num_thinking_tokens}]] * 3
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
    if measured == "thinking":
        assert differences["mean_cost"] == -3


@pytest.mark.parametrize("of_last_seed", [0, 5])
def test_a_model_that_does_not_think_has_a_mean_thinking_of_0(tmp_path, of_last_seed):
    """Thinking of two seeds of each arm: 7 and 8 tokens, and 0 and 0 or 5 tokens."""
    evaluations = []
    for label, lengths in (("leash", (7, 8)), ("off", (0, of_last_seed))):
        for seed, num_thinking_tokens in enumerate(lengths):
            problems = [[{**said(20), "num_thinking_tokens": num_thinking_tokens}]] * 3
            folder = write_evaluation(tmp_path / f"{label}{seed}", label, {"gym": problems}, length_of="thinking")
            evaluations.append(finished(label, load_evaluated_run(folder), "thinking", seed))
    base = evaluations[0].evaluated_run
    seeds = seed_rows(base, evaluations)
    assert seeds["mean_cost"].tolist() == [7, 7, 8, 0, of_last_seed]

    means = comparison_rows(seeds).set_index("name")["mean_cost"]
    assert means["off"] == of_last_seed / 2
    differences = paired_differences(seeds, base, evaluations)
    over_problems = differences.set_index("column")["value"]
    assert over_problems["mean_cost"] == of_last_seed / 2 - 7.5
    text = comparison_markdown(seeds, differences)
    assert "thinking tokens over seeds" in text
    assert "nan" not in text


def two_benchmarks(tmp_path, label, of_decided, of_undecided):
    """A run of two benchmarks, given the grades of a completion of each."""
    problems = {}
    for name, grades in (("decided", of_decided), ("undecided", of_undecided)):
        problems[name] = [[{**said(20), "is_correct": None, "reward": None, **grades}]] * 3
    return load_evaluated_run(write_evaluation(tmp_path / label, label, problems))


def test_where_a_benchmark_has_no_correctness_arms_are_compared_by_reward(tmp_path):
    evaluations = []
    for label, reward in (("none", 1.0), ("leash", 0.5)):
        for seed in (0, 1):
            right = {"is_correct": True, "reward": reward}
            evaluated = two_benchmarks(tmp_path, f"{label}{seed}", right, {"reward": reward - 1.0})
            evaluations.append(finished(label, evaluated, "completion", seed))
    base = evaluations[0].evaluated_run
    seeds = seed_rows(base, evaluations)
    assert seeds["measure"].unique().tolist() == ["reward"]
    assert seeds["score"].tolist() == [0.5, 0.5, 0.5, 0.0, 0.0]
    differences = paired_differences(seeds, base, evaluations).set_index("column")["value"]
    assert differences.to_dict() == {"score": -0.5, "mean_tokens": 0.0}


@pytest.mark.parametrize("reward", [None, 0.25])
def test_where_a_benchmark_has_no_reward_arms_are_compared_by_accuracy_if_it_is_known(tmp_path, reward):
    """`correctness_func` is none of the reward functions, which return None for a benchmark."""
    graded = {"is_correct": True, "reward": reward}
    evaluated = two_benchmarks(tmp_path, "run", graded, {"is_correct": False})
    assert seed_rows(evaluated, [])[["measure", "score"]].values.tolist() == [["accuracy", 0.5]]


def test_where_no_grade_is_that_of_all_benchmarks_tokens_are_still_compared(tmp_path):
    evaluations = []
    for label in ("none", "leash"):
        for seed in (0, 1):
            evaluated = two_benchmarks(tmp_path, f"{label}{seed}", {"is_correct": True}, {"reward": 0.5})
            evaluations.append(finished(label, evaluated, "completion", seed))
    base = evaluations[0].evaluated_run
    seeds = seed_rows(base, evaluations)
    differences = paired_differences(seeds, base, evaluations)
    assert differences["column"].tolist() == ["mean_tokens"]
    assert "| leash at 2 |" in comparison_markdown(seeds, differences)
