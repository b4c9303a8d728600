"""A user's reward functions as graders: what they are given, and what becomes of what they return."""

import math
from dataclasses import replace

import pytest
from written_runs import evaluated, said

from leash_trl.completions.thinking import DEFAULT_MARKERS
from leash_trl.evaluation.changes import changes_from_baseline
from leash_trl.evaluation.reward_grader import RewardGrader, reward_arguments
from leash_trl.evaluation.runs import OTHER_REWARDS_WARNING, warning_line
from leash_trl.evaluation.tables import summary_markdown
from leash_trl.figures.evaluation import pareto_points
from leash_trl.figures.runs import draw_figure


FIRST = [{"role": "user", "content": "a"}]
SECOND = [{"role": "user", "content": "b"}]
# two completions of each of two problems
ROWS = {
    "id": [7, 7, 8, 8],
    "prompt": [FIRST, FIRST, SECOND, SECOND],
    "answer": ["x", "x", "y", "y"],
}
TEXTS = ["x", "z", "z", "y"]
TOKEN_IDS = [[1], [1, 2], [1, 2, 3], [1]]


def matches(completions, answer, **kwargs):
    texts = [messages[0]["content"] for messages in completions]
    return [float(text == gold) for text, gold in zip(texts, answer, strict=True)]


def brief(completion_ids, **kwargs):
    return [None if len(ids) > 2 else -0.5 for ids in completion_ids]


def verdicts(*functions, rows=ROWS, **settings):
    arguments = reward_arguments(rows, TEXTS, TOKEN_IDS)
    return RewardGrader(functions, **settings).verdicts(arguments, [DEFAULT_MARKERS] * len(TEXTS))


def column(name, *functions, **settings):
    return [verdict[name] for verdict in verdicts(*functions, **settings)]


@pytest.mark.parametrize("is_chat", [True, False])
def test_a_function_is_called_as_in_training(is_chat):
    arguments = {}

    def looks(completion_ids, trainer_state, log_extra, log_metric, **columns):
        log_metric("share", 0.5)
        log_extra("text", columns["answer"])
        arguments.update(columns)
        return [1] * len(completion_ids)

    if is_chat:
        prompts = ROWS["prompt"]
        completions = [[{"role": "assistant", "content": text}] for text in TEXTS]
    else:
        prompts = ["a", "a", "b", "b"]
        completions = TEXTS
    verdicts(looks, rows={**ROWS, "prompt": prompts, "completion": [""] * 4})
    assert arguments == {
        "prompts": prompts,
        "completions": completions,
        "answer": ["x", "x", "y", "y"],
        "id": [7, 7, 8, 8],
    }


def always(*rewards):
    """A reward function that returns these."""
    return lambda **kwargs: rewards


@pytest.mark.parametrize(
    ("functions", "settings", "rewards", "is_correct"),
    [
        (
            [matches],
            {},
            [1.0, 0.0, 0.0, 1.0],
            [True, False, False, True],
        ),
        (
            [brief],
            {},
            [-0.5, -0.5, None, -0.5],
            [False, False, None, False],
        ),
        (
            [always(math.nan, 1e-6, 1e-6, 1e-6)],
            {},
            [None, 1e-6, 1e-6, 1e-6],
            [None, True, True, True],
        ),
        (
            [matches, brief],
            {"weights": [1.0, 2.0]},
            [0.0, -1.0, 0.0, 0.0],  # None is left out of the sum
            [None] * 4,
        ),
        (
            [matches, brief],
            {"correctness_func": "matches"},
            [0.5, -0.5, 0.0, 0.5],
            [True, False, False, True],
        ),
    ],
)
def test_rewards_are_summed_by_weight_and_above_0_is_right(functions, settings, rewards, is_correct):
    assert column("reward", *functions, **settings) == pytest.approx(rewards)
    assert column("is_correct", *functions, **settings) == is_correct
    failures = column("grader_failure", *functions, **settings)
    assert [failure is not None for failure in failures] == [reward is None for reward in rewards]


def test_a_function_beside_them_decides_and_has_no_weight_even_where_they_have_no_reward(tmp_path):
    graded = verdicts(brief, correctness_func=matches, weights=[2.0])
    assert [verdict["reward"] for verdict in graded] == [-1.0, -1.0, None, -1.0]
    assert [verdict["is_correct"] for verdict in graded] == [True, False, False, True]
    assert {verdict["grader_failure"] for verdict in graded} == {None}
    first, second, unrewarded, last = [{**said(10), **verdict} for verdict in graded]
    run = evaluated(tmp_path, own=[[first, second], [unrewarded, unrewarded], [unrewarded, last]])
    assert run.estimate("reward").value == -1.0
    assert run.estimate("accuracy").value == pytest.approx(1 / 3)


@pytest.mark.parametrize("settings", [{"weights": [1.0]}, {"correctness_func": "other"}])
def test_settings_that_do_not_fit_are_refused(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        RewardGrader([matches, brief], **settings)


def rewarded(reward, is_correct=None):
    return {**said(10, is_correct, answer=None), "reward": reward}


def test_rewards_are_measured_and_compared_beside_what_is_right(tmp_path):
    solved_half = [rewarded(0.5, True), rewarded(-0.5, False)]
    solved = [rewarded(0.5, True), rewarded(0.25, True)]
    base = evaluated(tmp_path, "base", own=[solved_half, solved_half])
    better = evaluated(tmp_path, "better", own=[solved, solved_half])
    assert base.estimate("reward").value == 0.0
    assert base.estimate("accuracy").value == 0.5
    assert not {"majority", "no_answer_rate"} & {*base.results["metric"]}
    differences = changes_from_baseline(better, base).set_index(["benchmark", "metric"])["value"]
    assert differences["own", "reward_change"] == 0.1875  # (0.375 + 0) / 2
    assert differences["own", "accuracy_change"] == 0.25


@pytest.mark.parametrize(("lowest", "is_bounded"), [(0.0, True), (-1.0, True), (-2.0, False)])
def test_intervals_of_rewards_stay_within_bounds_that_both_runs_keep(tmp_path, lowest, is_bounded):
    low = [rewarded(lowest)]
    full = [rewarded(1.0)]
    base = evaluated(tmp_path, "base", own=[low, low, [rewarded(0.9)]])
    better = evaluated(tmp_path, "better", own=[full, full, full])
    differences = changes_from_baseline(better, base).set_index("metric")
    change = differences.loc["reward_change"].iloc[0]
    assert (change["high"] <= 1 - lowest) == is_bounded
    assert better.estimate("reward").low < 1.0  # three full credits do not make a fourth certain


def test_where_no_function_decides_rewards_are_shown_and_accuracy_is_not(tmp_path):
    rows = [[rewarded(0.5), rewarded(-0.5)]] * 2
    first = evaluated(tmp_path, "a", own=rows)
    second = evaluated(tmp_path, "b", own=rows)
    assert not {"accuracy", "pass", "accuracy_within", "right_tokens"} & {*first.results["metric"]}
    changed = changes_from_baseline(first, second)["metric"].unique().tolist()
    assert changed == ["reward_change", "tokens_change", "relative_tokens_change"]


def half_decided(tmp_path, label, reward, num_tokens):
    """A run of two benchmarks, whose correctness_func returned None for the second one throughout."""
    completion = {**said(num_tokens), "reward": reward}
    undecided = {**completion, "is_correct": None, "grader_failure": "had no reward"}
    return evaluated(tmp_path, label, decided=[[completion]] * 2, undecided=[[undecided]] * 2)


def test_a_benchmark_without_correctness_is_compared_by_what_it_has(tmp_path):
    base = half_decided(tmp_path, "base", 0.5, 30)
    better = half_decided(tmp_path, "better", 1.0, 20)
    differences = changes_from_baseline(better, base).set_index(["benchmark", "metric"])["value"]
    assert differences["decided", "accuracy_change"] == 0.0
    assert ("undecided", "accuracy_change") not in differences
    assert ("overall", "accuracy_change") not in differences
    for benchmark in ("decided", "undecided", "overall"):
        assert differences[benchmark, "reward_change"] == 0.5
        assert differences[benchmark, "tokens_change"] == -10.0
    assert "| undecided |" in summary_markdown(better, base)


def test_a_benchmark_whose_correctness_only_one_run_has_is_compared_by_reward(tmp_path):
    base = half_decided(tmp_path, "base", 0.5, 30)
    rows = [[{**said(20), "reward": 1.0}]] * 2
    better = evaluated(tmp_path, "better", decided=rows, undecided=rows)
    for pair in ((better, base), (base, better)):
        metrics = changes_from_baseline(*pair).groupby("benchmark")["metric"].agg(list)
        assert "accuracy_change" in metrics["decided"]
        assert metrics["undecided"] == ["reward_change", "tokens_change", "relative_tokens_change"]
        assert metrics["overall"] == ["reward_change", "tokens_change", "relative_tokens_change"]


def test_where_one_benchmark_has_no_correctness_means_over_benchmarks_are_of_rewards(tmp_path):
    run = half_decided(tmp_path, "run", 0.5, 30)
    message = warning_line([run])
    assert "correctness_func" in message
    # all completions of the second benchmark have a reward, which is their grade
    assert "of undecided" not in message
    (point,) = pareto_points([run]).to_dict("records")
    assert (point["measure"], point["score"]) == ("reward", 0.5)
    rows = [[{**said(20), "reward": 1.0}]] * 2
    evaluated(tmp_path, "known", decided=rows, undecided=rows)
    folders = [tmp_path / "run", tmp_path / "known"]
    with pytest.raises(ValueError, match="'run' and 'known'"):
        draw_figure("pareto", folders)


def test_runs_with_other_versions_of_the_rewards_are_said(tmp_path):
    run = evaluated(tmp_path, own=[[rewarded(0.5)]])
    other = replace(run, record={**run.record, "reward_code": "another"})
    assert OTHER_REWARDS_WARNING not in warning_line([run, run])
    assert OTHER_REWARDS_WARNING in warning_line([run, other])
