"""The value object a method sees."""

import pytest
import torch

from leash_trl.length_control.rollouts import Rollouts, reward_scale_problem, weighted_task_rewards


NAN = float("nan")


def test_weighted_sum_skips_functions_that_did_not_score():
    rewards = torch.tensor([[1.0, 0.5], [-1.0, NAN], [NAN, NAN]])
    sums = weighted_task_rewards(rewards, torch.tensor([1.0, 0.3]))
    torch.testing.assert_close(sums[:2], torch.tensor([1.15, -1.0], dtype=torch.float64), rtol=1e-6, atol=0)
    assert torch.isnan(sums[2])


def test_unscorable_is_neither_scorable_nor_correct():
    rollouts = Rollouts(torch.tensor([1.0, NAN, -1.0, 0.0]), torch.tensor([1, 2, 3, 4]), 4)
    assert rollouts.is_scorable.tolist() == [True, False, True, True]
    assert rollouts.is_correct.tolist() == [True, False, False, False]


@pytest.mark.parametrize(
    ("rewards", "problem"),
    [
        ([1.0, -1.0], None),
        ([1.0, 1.0, NAN], None),  # does not tell
        ([-0.5, 0.0], None),
        ([0.0, 1.0], "fail fast"),
        ([-3.0, 1.0], "reaches 3"),
        ([NAN], None),
    ],
)
def test_reward_scale(rewards, problem):
    found = reward_scale_problem(torch.tensor(rewards))
    assert found is None if problem is None else problem in found


@pytest.mark.parametrize(("lengths", "groups"), [([1, 2, 3], 4), ([1, 2, 3, 4], 3)])
def test_shapes_that_do_not_fit_are_errors(lengths, groups):
    with pytest.raises(ValueError, match="completion"):
        Rollouts(torch.zeros(4), torch.tensor(lengths), groups)
