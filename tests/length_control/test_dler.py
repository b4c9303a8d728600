"""DLER by hand."""

import math

from toy_rollouts import toy_rollouts

from leash_trl.length_control.dler import DLER


# first prompt: 2 of 3 are correct within 100 tokens, so it is easy; second: 1 of 3, as 101 is above the target
EASY_AND_HARD = toy_rollouts([1, 1, 0, 1, 0, 1], [60, 50, 10, 60, 10, 101], target=100.0, num_generations=3)


def test_easy_prompts_have_the_easy_limit():
    # of the first prompt, 60 is above the limit of 50
    shaped = DLER(easy_limit=50).shaped_rewards(EASY_AND_HARD)
    assert shaped.tolist() == [0, 1, 0, 1, 0, 0]
    shaped = DLER().shaped_rewards(EASY_AND_HARD)
    assert shaped.tolist() == [1, 1, 0, 1, 0, 0]


def test_a_prompt_is_easy_only_above_the_threshold():
    method = DLER(easy_limit=50)
    half = toy_rollouts([1, 1, 0, 0], [60, 40, 10, 10], target=100.0)
    assert method.limits(half).tolist() == [100.0] * 4
    # of three scorable answers two are correct, but one of them is truncated
    truncated = toy_rollouts(
        [1, 1, 0, math.nan], [60, 40, 10, 10], target=100.0, truncated=[True, False, False, False]
    )
    assert method.limits(truncated).tolist() == [100.0] * 4


def test_the_easy_limit_raises_no_target():
    solved = toy_rollouts([1, 1], [20, 30], target=30.0)
    limits = DLER(easy_limit=50).limits(solved)
    assert limits.tolist() == [30.0, 30.0]


def test_generation_is_cut_at_whole_tokens_of_the_target_unless_turned_off():
    assert DLER().generation_cap(None) is None
    assert DLER().generation_cap(4000.0) == 4000
    assert DLER().generation_cap(24.9) == 24
    assert DLER(cut_generation=False).generation_cap(4000.0) is None
