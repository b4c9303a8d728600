"""Run folders as rows of completions and of metrics, and their changes against a baseline."""

import json
import math

import numpy as np
import pytest
from sampled_run import completion, evaluated_run, problem, write_run

from leash_trl.evaluation.changes import changes_from_baseline, mean_changes
from leash_trl.evaluation.intervals import (
    Estimate,
    mean_bounded_difference,
    mean_over_benchmarks,
    mean_unbounded,
    ratio_minus_one,
)
from leash_trl.evaluation.runs import load_evaluated_run, read_lines, warning_line
from leash_trl.evaluation.tables import summary_markdown, summary_table


def graded(index, *outcomes, name="p"):
    """A problem with these answers, right where they equal 1, of so many tokens."""
    completions = [completion(answer, size, answer in ("1", "1.0")) for answer, size in outcomes]
    return problem(index, *completions, name=name)


# accuracy 3/4 and 1/4, mean 0.5; tokens 10, 20, 30, 64 and 64, 64, 40, 32, means 31 and 50
EASY = graded(0, ("1", 10), ("1.0", 20), ("1", 30), (None, 64))
HARD = graded(1, (None, 64), ("9", 64), ("9", 40), ("1", 32))
SOLVED = graded(0, ("1", 8), ("1", 8), ("1", 16), ("1", 16), name="q")  # accuracy 1
BOTH = {"aime": [EASY, HARD], "amc": [SOLVED]}
LOST = completion("x", 20, None)
UNGRADED = problem(2, LOST, LOST, LOST, LOST)
HALF_GRADED = problem(3, LOST, LOST, completion("1", 20, True), completion("9", 20, False))


@pytest.fixture
def run(tmp_path):
    return evaluated_run(tmp_path / "run", BOTH)


def values(run, benchmark):
    """Values of metrics by name, with k or the budget where there is one, as in `pass@2`."""
    values_by_name = {}
    rows = run.results[run.results["benchmark"] == benchmark]
    for metric, at, value in zip(rows["metric"], rows["at"], rows["value"], strict=True):
        name = metric if math.isnan(at) else f"{metric}@{at:g}"
        values_by_name[name] = value
    return values_by_name


def test_benchmark_by_hand(run):
    assert values(run, "aime") == pytest.approx(
        {
            "accuracy": 1 / 2,
            "pass@2": 3 / 4,  # 6 of 6 pairs and 3 of 6 hold a right one
            "pass@4": 1.0,
            "majority": 1 / 2,  # right by 3 to 0; wrong by 2 to 1
            "truncated_rate": 3 / 8,
            "completed_accuracy": 4 / 5,
            "truncated_accuracy": 0.0,
            "tokens": (31 + 50) / 2,
            "no_answer_rate": 2 / 8,
            "accuracy_within@2": 0.0,
            "accuracy_within@4": 0.0,
            "accuracy_within@8": 0.0,
            "accuracy_within@16": 1 / 8,
            "accuracy_within@32": 4 / 8,
            "accuracy_within@64": 4 / 8,
            "sd_tokens": (3190 / 8) ** 0.5,  # squares around 40.5
            "median_tokens": 36.0,  # 10 20 30 32 40 64 64 64
            "p95_tokens": 64.0,
            "right_tokens": (10 + 20 + 30 + 32) / 4,
            "wrong_tokens": (64 + 64 + 64 + 40) / 4,
        }
    )


def test_thinking_and_answer_have_rows_where_one_of_the_benchmarks_thinks(tmp_path):
    thought = problem(0, completion("1", 30, True, num_thinking_tokens=20), name="t")
    plain = problem(0, completion("1", 6, True), name="q")
    run = evaluated_run(tmp_path / "run", {"aime": [thought], "amc": [plain]})
    aime, amc, overall = (values(run, name) for name in ("aime", "amc", "overall"))
    assert aime["thinking_tokens"] == 20
    assert aime["answer_tokens"] == 10
    assert amc["thinking_tokens"] == 0
    assert amc["answer_tokens"] == 6
    assert overall["thinking_tokens"] == 10
    assert overall["answer_tokens"] == 8
    assert "thinking tokens" in summary_table([run])


def test_overall_weighs_benchmarks_alike(run):
    parts = [run.estimate("accuracy", name) for name in ("aime", "amc")]
    assert run.estimate("accuracy") == mean_over_benchmarks(parts)
    overall = values(run, "overall")
    assert overall["median_tokens"] == (36 + 12) / 2
    assert math.isnan(overall["wrong_tokens"])  # amc has none
    sizes = run.results.groupby("benchmark")["num_problems"].first()
    assert sizes.to_dict() == {"aime": 2, "amc": 1, "overall": 3}


def test_what_could_not_be_graded_is_neither_right_nor_wrong(tmp_path):
    run = evaluated_run(tmp_path / "run", {"aime": [EASY, UNGRADED, HALF_GRADED], "amc": [SOLVED]})
    metrics = values(run, "aime")
    assert run.results[["num_problems", "num_graded"]].iloc[0].tolist() == [3, 2]
    assert metrics["accuracy"] == pytest.approx((3 / 4 + 1 / 2) / 2)
    assert metrics["pass@2"] == 1  # both of the two graded ones hold the right one
    assert metrics["majority"] == pytest.approx((1 + 1 / 2) / 2)
    assert metrics["accuracy_within@64"] == pytest.approx((3 / 4 + 1 / 2) / 2)
    assert metrics["p95_tokens"] == pytest.approx(30 + 0.65 * 34)  # 10, 20 five times, 30 and 64
    assert "6 of aime" in warning_line([run])


@pytest.mark.parametrize("line", [b"{", b"\0\0", b'{"id": "\xff\xfe"}'])
def test_a_line_that_a_kill_cut_short_is_dropped(tmp_path, line):
    path = tmp_path / "aime.jsonl"
    path.write_bytes(json.dumps(EASY).encode() + b"\n" + line)
    assert read_lines(path) == [EASY]


@pytest.mark.parametrize(
    ("problems", "expected"),
    [([EASY], 2), ([EASY, HARD], 1), ([UNGRADED], 1)],
    ids=["unfinished", "too many", "nothing graded"],
)
def test_samples_of_another_run_or_without_any_grade_are_refused(tmp_path, problems, expected):
    folder = write_run(tmp_path / "run", {"amc": [SOLVED], "aime": problems}, expected={"aime": expected})
    with pytest.raises(ValueError, match="aime"):
        load_evaluated_run(folder)


def change(differences, benchmark, metric):
    row = differences.set_index(["benchmark", "metric"]).loc[(benchmark, metric)]
    return Estimate(row["value"], row["low"], row["high"])


def test_changes_are_of_the_same_problems_in_any_order(tmp_path, run):
    shorter = graded(0, ("1", 5), ("1", 10), ("1", 15), ("1", 30))  # accuracy 1, mean 15
    new = evaluated_run(tmp_path / "new", {"amc": [SOLVED], "aime": [HARD, shorter]}, label="new")
    differences = changes_from_baseline(new, run)
    gain = mean_bounded_difference(np.array([0.0, 1 / 4]), 0, 1, 4)
    assert change(differences, "aime", "accuracy_change") == gain
    tokens = np.array([50.0, 15.0])
    base_tokens = np.array([50.0, 31.0])
    difference = mean_unbounded(tokens - base_tokens, -math.inf)
    assert change(differences, "aime", "tokens_change") == difference
    ratio = ratio_minus_one([tokens], [base_tokens])
    assert change(differences, "aime", "relative_tokens_change") == ratio
    no_gain = change(differences, "amc", "accuracy_change")
    assert change(differences, "overall", "accuracy_change") == mean_over_benchmarks([no_gain, gain])


def run_of_cost(folder, length_of, *costs, **record):
    """A run with a problem for each of the costs of a single completion."""
    problems = [
        problem(index, {**completion("1", 20, True), "num_thinking_tokens": cost, "cost": cost})
        for index, cost in enumerate(costs)
    ]
    return load_evaluated_run(write_run(folder, {"amc": problems}, length_of=length_of, **record))


@pytest.mark.parametrize("length_of", ["tool_calls", "costs.py:num_lines", "thinking"])
def test_what_the_target_limits_has_a_change_too(tmp_path, length_of):
    differences = changes_from_baseline(
        run_of_cost(tmp_path / "new", length_of, 1, 3), run_of_cost(tmp_path, length_of, 4, 4)
    )
    assert change(differences, "amc", "cost_change") == mean_unbounded(np.array([-3.0, -1.0]), -math.inf)
    assert change(differences, "amc", "tokens_change").value == 0


def test_a_model_that_does_not_think_has_a_mean_thinking_of_0_where_the_target_limits_thinking(tmp_path):
    assert run_of_cost(tmp_path, "thinking", 0, 0).estimate("thinking_tokens").value == 0


def test_costs_of_two_kinds_have_no_difference(tmp_path):
    differences = changes_from_baseline(
        run_of_cost(tmp_path / "new", "turns", 1, 3), run_of_cost(tmp_path, "tool_calls", 4, 4)
    )
    assert "cost_change" not in {*differences["metric"]}
    assert "tokens_change" in {*differences["metric"]}


def test_a_cost_function_in_another_folder_is_the_same_cost(tmp_path):
    run = run_of_cost(tmp_path / "new", "runs/my_costs.py:num_lines", 1, 3)
    baseline = run_of_cost(tmp_path, "my_costs.py:num_lines", 4, 4)
    assert change(changes_from_baseline(run, baseline), "amc", "cost_change").value == -2


@pytest.mark.parametrize(
    ("length_of", "code", "is_said"),
    [
        ("runs/my_costs.py:num_lines", {"my_costs": "b"}, True),
        ("lab.my_costs.num_lines", {"lab.my_costs": "b"}, True),
        ("my_costs.py:num_lines", {"my_costs": "a"}, False),
        ("my_costs.py:num_lines", {}, False),  # code of a notebook has no digest
        ("my_costs.py:num_words", {"my_costs": "b"}, False),  # another cost, which is not compared
    ],
)
def test_runs_that_measured_a_cost_by_other_code_are_said(tmp_path, length_of, code, is_said):
    baseline = run_of_cost(tmp_path / "base", "my_costs.py:num_lines", 4, 4, cost_code={"my_costs": "a"})
    run = run_of_cost(tmp_path / "new", length_of, 300, 300, cost_code=code)
    message = warning_line([baseline, run])
    assert ("my_costs.num_lines" in message) == is_said
    assert ("length_of" in message) == is_said
    assert "\n" not in message


def test_a_change_of_costs_is_written_as_costs_are(tmp_path):
    run = run_of_cost(tmp_path / "new", "costs.py:num_dollars", 13, 13)
    baseline = run_of_cost(tmp_path, "costs.py:num_dollars", 13.0375, 13.0375)
    assert "| -0.0375 [" in summary_markdown(run, baseline)


def test_problems_differ_by_their_mean_over_seeds(tmp_path):
    base = [evaluated_run(tmp_path / f"base{seed}", {"aime": [EASY, HARD]}) for seed in (0, 1)]
    solved = graded(0, ("1", 30), ("1", 30), ("1", 30), ("1", 30))  # from 3/4 and 31 tokens
    first = evaluated_run(tmp_path / "first", {"aime": [solved, HARD]})
    second = evaluated_run(tmp_path / "second", {"aime": [EASY, HARD]})
    differences = mean_changes([(first, base[0]), (second, base[1])])
    # four samples of each of two seeds
    assert change(differences, "aime", "accuracy_change") == mean_bounded_difference(np.array([1 / 8, 0.0]), 0, 1, 8)
    assert change(differences, "aime", "tokens_change") == mean_unbounded(np.array([-1 / 2, 0.0]), -math.inf)


def test_changes_of_fewer_samples_have_wider_intervals(tmp_path, run):
    easy, hard, solved = (row | {"completions": row["completions"][2:]} for row in (EASY, HARD, SOLVED))
    fewer = evaluated_run(tmp_path / "fewer", {"aime": [easy, hard], "amc": [solved]})
    differences = changes_from_baseline(fewer, run)
    gains = np.array([-1 / 4, 1 / 4])
    assert change(differences, "aime", "accuracy_change") == mean_bounded_difference(gains, 0, 1, 2)


def test_problems_of_an_own_reward_need_no_solution(tmp_path):
    rewarded = [{**EASY, "solution": None}, {**HARD, "solution": None}]
    run = evaluated_run(tmp_path / "run", {"own": rewarded})
    differences = changes_from_baseline(run, run)
    no_gain = mean_bounded_difference(np.zeros(2), 0, 1, 4)
    assert change(differences, "own", "accuracy_change") == no_gain


def test_a_problem_that_one_run_could_not_grade_is_left_out_of_both(tmp_path):
    graded_problem = problem(2, *HARD["completions"])
    base = evaluated_run(tmp_path / "base", {"aime": [EASY, graded_problem]})
    run = evaluated_run(tmp_path / "run", {"aime": [EASY, UNGRADED]})
    differences = changes_from_baseline(run, base)
    assert change(differences, "aime", "accuracy_change") == (0, -1, 1)


@pytest.mark.parametrize(
    ("benchmarks", "named"),
    [
        ({"amc": [SOLVED]}, "aime"),
        ({"aime": [EASY], "amc": [SOLVED]}, "p1"),
        ({"aime": [EASY, HARD | {"solution": "7"}], "amc": [SOLVED]}, "p1"),  # files without ids count their rows
    ],
)
def test_runs_on_other_problems_are_not_compared(tmp_path, run, benchmarks, named):
    other = evaluated_run(tmp_path / "other", benchmarks)
    with pytest.raises(ValueError, match=named):
        changes_from_baseline(run, other)
