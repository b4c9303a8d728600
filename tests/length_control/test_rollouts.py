"""The value object a method sees."""

from dataclasses import replace

import pytest
import torch

from leash_trl.length_control.rollouts import weighted_task_rewards


NAN = float("nan")


def test_weighted_sum_skips_functions_that_did_not_score():
    rewards = torch.tensor([[1.0, 0.5], [-1.0, NAN], [NAN, NAN]])
    sums = weighted_task_rewards(rewards, torch.tensor([1.0, 0.3]))
    torch.testing.assert_close(sums[:2], torch.tensor([1.15, -1.0], dtype=torch.float64), rtol=1e-6, atol=0)
    assert torch.isnan(sums[2])


def test_unscorable_is_neither_scorable_nor_correct(make_rollouts):
    rollouts = make_rollouts([1.0, NAN, -1.0, 0.0], [1, 2, 3, 4])
    assert rollouts.is_scorable.tolist() == [True, False, True, True]
    assert rollouts.is_correct.tolist() == [True, False, False, False]
    assert rollouts.correctness.nan_to_num(-1).tolist() == [1, -1, 0, 0]


def test_correct_lengths_are_nan_for_all_others(make_rollouts):
    lengths = make_rollouts([1.0, NAN, -1.0, 0.5], [10, 20, 30, 40]).correct_lengths
    assert lengths.nan_to_num(-1).tolist() == [10, -1, -1, 40]
    assert lengths.dtype == torch.float64


def test_solve_rates_leave_the_unscorable_out(make_rollouts):
    rollouts = make_rollouts([1.0, NAN, -1.0, 1.0, 1.0, 1.0], [1] * 6, num_generations=3)
    assert rollouts.solve_rates.tolist() == [0.5] * 3 + [1.0] * 3


def test_what_the_deciding_function_could_not_score_is_unscorable_whatever_the_others_say(make_rollouts):
    rollouts = make_rollouts([1.0, 0.5, -1.0, 1.0], [1, 2, 3, 4])
    rollouts = replace(rollouts, correctness_rewards=torch.tensor([1.0, NAN, -1.0, 1.0]).double())
    assert rollouts.is_scorable.tolist() == [True, False, True, True]
    assert rollouts.correctness.nan_to_num(-1).tolist() == [1, -1, 0, 1]
    assert rollouts.solve_rates.tolist() == [2 / 3] * 4


@pytest.mark.parametrize(("lengths", "groups"), [([1, 2, 3], 4), ([1, 2, 3, 4], 3)])
def test_shapes_that_do_not_fit_are_errors(make_rollouts, lengths, groups):
    with pytest.raises(ValueError, match="completion"):
        make_rollouts([0.0] * 4, lengths, num_generations=groups)
