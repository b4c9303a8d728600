"""A user's reward functions as graders: what they are given, and what becomes of what they return."""

import asyncio
import functools
import math
from dataclasses import replace

import pytest
from written_runs import said, write_evaluation

from leash_trl.evaluation.changes import changes
from leash_trl.evaluation.own_rewards import OwnRewards
from leash_trl.evaluation.runs import OTHER_REWARDS, load_evaluated_run, truncation_warning, warning
from leash_trl.figures.evaluation import trade_offs
from leash_trl.figures.runs import draw


ROWS = {"id": [7, 8], "prompt": [[{"role": "user", "content": text}] for text in "ab"], "answer": ["x", "y"]}
TEXTS = ["x", "z", "z", "y"]


def matches(completions, answer, **kwargs):
    return [float(each[0]["content"] == gold) for each, gold in zip(completions, answer, strict=True)]


def brief(completion_ids, **kwargs):
    return [None if len(ids) > 2 else -0.5 for ids in completion_ids]


def verdicts(*functions, rows=ROWS, **settings):
    return OwnRewards(functions, **settings).verdicts(rows, TEXTS, [[1], [1, 2], [1, 2, 3], [1]])


def column(name, *functions, **settings):
    return [each[name] for each in verdicts(*functions, **settings)]


@pytest.mark.parametrize("is_chat", [True, False])
def test_a_function_is_called_as_in_training(is_chat):
    given = {}

    def looks(prompts, completions, completion_ids, answer, id, trainer_state, log_extra, log_metric, **rest):
        log_metric("share", 0.5)
        log_extra("text", [*answer])
        given.update(prompts=prompts, completions=completions, answer=answer, id=id, **rest)
        return [1] * len(prompts)

    first, second = ROWS["prompt"] if is_chat else "ab"
    verdicts(looks, rows={**ROWS, "prompt": [first, second], "completion": ["", ""]})
    completions = [[{"role": "assistant", "content": text}] for text in TEXTS] if is_chat else TEXTS
    own = {"prompts": [first, first, second, second], "completions": completions}
    assert given == {**own, "answer": [*"xxyy"], "id": [7, 7, 8, 8]}


async def matches_later(completions, answer, **kwargs):
    return matches(completions, answer)


@pytest.mark.parametrize(
    ("functions", "settings", "rewards", "is_correct"),
    [
        ([matches], {}, [1.0, 0.0, 0.0, 1.0], [True, False, False, True]),
        ([matches_later], {}, [1.0, 0.0, 0.0, 1.0], [True, False, False, True]),
        ([brief], {}, [-0.5, -0.5, None, -0.5], [False, False, None, False]),
        ([lambda prompts, **kwargs: [math.nan, *[1e-6] * 3]], {}, [None, *[1e-6] * 3], [None, True, True, True]),
        # None is left out of the sum
        ([matches, brief], {"weights": [1.0, 2.0]}, [0.0, -1.0, 0.0, 0.0], [None] * 4),
        ([matches, brief], {"correctness_func": "matches"}, [0.5, -0.5, 0.0, 0.5], [True, False, False, True]),
        ([lambda prompts, **kwargs: [1.0, 0.5, 0.0, None]], {}, [1.0, 0.5, 0.0, None], [None] * 4),
        ([lambda prompts, **kwargs: [1.0, 0.0, -0.5, None]], {}, [1.0, 0.0, -0.5, None], [True, False, False, None]),
    ],
)
def test_rewards_are_summed_by_weight_and_above_0_is_right(functions, settings, rewards, is_correct):
    assert column("reward", *functions, **settings) == pytest.approx(rewards)
    assert column("is_correct", *functions, **settings) == is_correct
    failures = column("grader_failure", *functions, **settings)
    assert [failure is not None for failure in failures] == [reward is None for reward in rewards]


def test_a_function_beside_them_decides_and_has_no_weight_even_where_they_have_no_reward(tmp_path):
    found = verdicts(brief, correctness_func=matches, weights=[2.0])
    assert [each["reward"] for each in found] == [-1.0, -1.0, None, -1.0]
    assert [each["is_correct"] for each in found] == [True, False, False, True]
    assert {each["grader_failure"] for each in found} == {None}
    records = [{**said(10), **each} for each in found]
    rows = {"own": [records[:2], [records[2]] * 2, records[2:]]}  # the second problem has no reward
    run = load_evaluated_run(write_evaluation(tmp_path / "run", "run", rows))
    assert run.estimate("reward").value == -1.0
    assert run.estimate("accuracy").value == pytest.approx(1 / 3)


@pytest.mark.parametrize("settings", [{"weights": [1.0]}, {"correctness_func": "other"}, {"weights": [1.0, 1.0, 1.0]}])
def test_settings_and_rewards_that_do_not_fit_are_refused(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        OwnRewards([matches, brief], **settings)
    with pytest.raises(ValueError, match="3 rewards for 4"):
        verdicts(lambda prompts, **kwargs: [1.0] * (len(prompts) - 1))


def test_partial_functions_have_their_names_and_async_ones_a_single_event_loop():
    loops = set()

    async def remembers(prompts, correct, **kwargs):
        loops.add(asyncio.get_running_loop())
        return [correct] * len(prompts)

    def found():
        return column("is_correct", functools.partial(remembers, correct=1.0), matches, correctness_func="remembers")

    async def in_a_notebook():
        return found()

    assert found() == asyncio.run(in_a_notebook()) == [True] * 4
    assert len(loops) == 1


def test_rewards_are_measured_and_compared_beside_what_is_right(tmp_path):
    def evaluated(label, *rewards):
        rows = [[{**said(10, reward > 0, answer=None), "reward": reward} for reward in problem] for problem in rewards]
        return load_evaluated_run(write_evaluation(tmp_path / label, label, {"own": rows}))

    base, better = evaluated("base", (0.5, -0.5), (0.0, 0.25)), evaluated("better", (0.75, 0.25), (0.5, 0.25))
    assert base.estimate("reward").value == 0.0625
    assert base.estimate("accuracy").value == 0.5
    assert not {"majority", "short_accuracy", "no_answer_rate"} & {*base.results["metric"]}
    found = changes(better, base).set_index(["benchmark", "metric"])["value"]
    assert found["own", "reward_change"] == 0.375
    assert found["own", "accuracy_change"] == 0.5
    plain = load_evaluated_run(write_evaluation(tmp_path / "plain", "plain", {"own": [[said(10)] * 2] * 2}))
    assert [*changes(base, plain)["metric"]] == [*changes(plain, base)["metric"]]


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-1.0, 1.0), (0.0, 5.0)])
def test_intervals_of_rewards_stay_within_the_bounds_that_all_of_them_keep(tmp_path, low, high):
    def evaluated(label, *rewards):
        rows = [[{**said(10, None, answer=None), "reward": low + (high - low) * reward}] for reward in rewards]
        return load_evaluated_run(write_evaluation(tmp_path / label, label, {"own": rows}))

    base, better = evaluated("base", 0.0, 0.0, 0.9), evaluated("better", 1.0, 1.0, 1.0)
    reward, change = base.estimate("reward"), changes(better, base).set_index(["benchmark", "metric"])
    ends = [reward.low, reward.high, *change.loc[("own", "reward_change"), ["low", "high"]]]
    is_within = [reward.low >= low, reward.high <= high, ends[2] >= low - high, ends[3] <= high - low]
    assert all(is_within) == (high == 1.0)
    assert better.estimate("reward").low < high or high == 5.0  # three full credits do not make a fourth certain


def test_where_no_function_decides_rewards_are_shown_and_accuracy_is_not(tmp_path):
    rows = [[{**said(10, None, answer=None), "reward": reward} for reward in (0.5, -0.5)]] * 2
    runs = [load_evaluated_run(write_evaluation(tmp_path / name, name, {"own": rows})) for name in ("a", "b")]
    assert not {"accuracy", "pass", "accuracy_within", "right_tokens"} & {*runs[0].results["metric"]}
    assert runs[0].estimate("reward").value == 0.0
    assert {"reward_change", "tokens_change"} <= {*changes(*runs)["metric"]}
    assert "accuracy_change" not in {*changes(*runs)["metric"]}
    assert "correctness_func" in warning(runs)
    assert trade_offs(runs)["measure"].tolist() == ["reward", "reward"]
    right = write_evaluation(tmp_path / "c", "c", {"own": [[said(10)] * 2] * 2})
    other = replace(runs[1], run={**runs[1].run, "reward_code": "another"})
    assert OTHER_REWARDS in warning([runs[0], other])
    with pytest.raises(ValueError, match="'a' and 'c'"):
        draw("pareto", [tmp_path / "a", right])


def test_a_third_of_truncated_completions_is_said():
    assert truncation_warning({"aime": 0.3}) == ""
    assert "40 % of amc" in truncation_warning({"aime": 0.3, "amc": 0.4})
