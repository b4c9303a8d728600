"""DLER by hand."""

from toy_rollouts import toy_rollouts

from leash_trl.length_control.dler import DLER


def test_easy_prompts_have_the_easy_limit_which_widens_no_target():
    # first prompt: 2 of 3 within 100, easy, so that 60 is over 50; second: 1 of 3 within 100, the full limit
    rollouts = toy_rollouts([1, 1, 0, 1, 0, 1], [60, 50, 10, 60, 10, 101], target=100.0, num_generations=3)
    assert DLER(easy_limit=50).shape(rollouts).tolist() == [0, 1, 0, 1, 0, 0]
    assert DLER().shape(rollouts).tolist() == [1, 1, 0, 1, 0, 0]
    # 2 of 4 is not above the threshold; of 2 of 3 that could be scored, one has no end
    for rewards, truncated in (([1, 1, 0, 0], [False] * 4), ([1, 1, 0, float("nan")], [True] + [False] * 3)):
        rollouts = toy_rollouts(rewards, [60, 40, 10, 10], target=100.0, truncated=truncated)
        assert DLER(easy_limit=50).limits(rollouts).tolist() == [100.0] * 4
    assert DLER(easy_limit=50).limits(toy_rollouts([1, 1], [20, 30], target=30.0)).tolist() == [30.0] * 2


def test_generation_is_cut_only_on_request_and_never_beyond_the_target():
    assert [*map(DLER().generation_cap, (None, 4000.0, 24.9))] == [None, 4000, 24]
    assert DLER(cut_generation=False).generation_cap(4000.0) is None
