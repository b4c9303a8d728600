"""Reward functions called as TRL calls them: with the markers of thinking, together if they are async, and with `None`
for what they cannot score."""

import asyncio
import functools
import pickle

import pytest
from trl.trainer.utils import get_callable_name

from leash_trl.completions.thinking import ThinkingMarkers
from leash_trl.reward_calls import bind_thinking_markers, event_loop, reward_table
from leash_trl.rewards import lenient_math_reward, math_reward


COMPLETIONS = {"completions": ["a", "b"]}


def one_and_none(completions):
    return [1, None]


def test_rewards_that_can_are_told_of_the_thinking_and_can_still_be_pickled():
    def other(completions, **kwargs):
        return [0.0]

    markers = [ThinkingMarkers(begins_in_thinking=True)] * 3
    strict, lenient, unchanged = bind_thinking_markers([math_reward, lenient_math_reward, other], markers)
    assert unchanged is other
    assert get_callable_name(strict) == "math_reward"  # under which TRL logs it
    # a guess inside the thinking, an answer after it, and an answer that only the lenient reward reads
    completions = [r"so \boxed{4}? Wait", r"</think>\boxed{4}", "</think>It is 4."]
    strict, lenient = pickle.loads(pickle.dumps([strict, lenient]))
    assert strict(completions, solution=["4", "4", "4"]) == [-1.0, 1.0, -1.0]
    assert lenient(completions, solution=["4", "4", "4"]) == [-1.0, 1.0, 1.0]


def with_own_text(completions, thinking_markers="[THINK]"):
    return [thinking_markers] * len(completions)


def test_markers_that_the_user_has_set_stay_those_of_the_user():
    of_user = ThinkingMarkers("[/THINK]")
    functions = [functools.partial(math_reward, thinking_markers=of_user), with_own_text]
    assert bind_thinking_markers(functions, [ThinkingMarkers()]) == functions


def with_optional_markers(completions, thinking_markers=None):
    return [float(markers.begins_in_thinking) for markers in thinking_markers or []]


def test_a_parameter_without_a_value_by_default_gets_the_markers():
    (bound,) = bind_thinking_markers([with_optional_markers], [ThinkingMarkers(begins_in_thinking=True)])
    assert bound(["It is 4."]) == [1.0]


def test_async_functions_wait_for_each_other_in_one_loop_beside_others():
    loops = []
    has_come = asyncio.Event()

    async def first(completions):
        loops.append(asyncio.get_running_loop())
        await has_come.wait()
        return [0.5, 0.25]

    class Second:
        async def __call__(self, completions):
            has_come.set()
            return [0.75, None]

    functions = [first, one_and_none, functools.partial(Second())]

    async def inside_another_loop():
        return reward_table(functions, ["first", "one_and_none", "Second"], COMPLETIONS, 2)

    table = asyncio.run(inside_another_loop())
    assert table[0].tolist() == [0.5, 1.0, 0.75]
    assert loops == [event_loop()]


def test_a_function_that_returns_too_few_rewards_is_named():
    with pytest.raises(ValueError, match="one_and_none returned 2 rewards for 3") as failure:
        reward_table([one_and_none], ["one_and_none"], COMPLETIONS, 3)
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize("value", [float("inf"), -float("inf"), 1e39])
def test_a_reward_that_is_infinite_where_trainers_store_it_is_refused(value):
    def reward_func(completions):
        return [1.0, value]

    with pytest.raises(ValueError, match=r"\A.*reward_func.*infinite.*\Z"):
        reward_table([reward_func], ["reward_func"], {"completions": ["a", "b"]}, num_completions=2)
