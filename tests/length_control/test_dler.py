"""DLER: reference vectors and by hand."""

import pytest
import torch

from leash_trl.length_control.advantages import AdvantageRule, standardised
from leash_trl.length_control.dler import DLER


def close(actual, expected):
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=1e-9)


def test_the_release_s_constants_are_exact(make_rollouts):
    method = DLER(variant="release")
    rollouts = make_rollouts([1, 1, 0], [10, 10, 10], target=20.0, truncated=[False, True, False])
    shaped = method.shape(rollouts)
    assert shaped.tolist() == [1.0, 0.1, 0.0]
    boosted = method.score(rollouts, AdvantageRule("group", 1e-8)).advantages
    assert (boosted - standardised(shaped - shaped.mean(), rollouts.lengths, 1, 1e-8)).tolist() == [
        pytest.approx(0.1, abs=1e-15),
        0,
        0,
    ]


def test_easy_prompts_have_the_easy_limit(make_rollouts):
    # first prompt: 2 of 3 within 100, easy, so that 60 is over 50; second: 1 of 3 within 100, the full limit
    rollouts = make_rollouts([1, 1, 0, 1, 0, 1], [60, 50, 10, 60, 10, 101], target=100.0, num_generations=3)
    assert DLER(easy_limit=50).shape(rollouts).tolist() == [0, 1, 0, 1, 0, 0]
    assert DLER().shape(rollouts).tolist() == [1, 1, 0, 1, 0, 0]


def test_the_easy_limit_never_widens_a_target(make_rollouts):
    rollouts = make_rollouts([1, 1, 1], [20, 30, 40], target=30.0)
    assert DLER(easy_limit=50).limits(rollouts).tolist() == [30.0, 30.0, 30.0]


def test_advantages_are_standardised_over_the_batch_by_hand(make_rollouts):
    # centred (0.5, -0.5, 0, 0), population std sqrt(0.5 / 4)
    rollouts = make_rollouts([1, 0, 1, 1], [5, 5, 5, 5], target=10.0, num_generations=2)
    for scale_rewards in ("group", "batch", "none"):
        close(DLER().score(rollouts, AdvantageRule(scale_rewards, 0.0)).advantages, [2**0.5, -(2**0.5), 0.0, 0.0])


def test_generation_is_cut_only_on_request():
    assert DLER(cut_generation=False).generation_cap(4000.0) is None
    assert DLER().generation_cap(4000.0) == 4000
    assert DLER().generation_cap(24.9) == 24  # never beyond the target of a schedule
