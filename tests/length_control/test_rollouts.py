"""The value object a method sees."""

from dataclasses import replace

import torch

from leash_trl.length_control.rollouts import Score, joined


NAN = float("nan")


def test_unscorable_is_neither_scorable_nor_correct(make_rollouts):
    rollouts = make_rollouts([1.0, NAN, -1.0, 0.0], [1, 2, 3, 4])
    assert rollouts.is_scorable.tolist() == [True, False, True, True]
    assert rollouts.is_correct.tolist() == [True, False, False, False]
    assert rollouts.correctness.nan_to_num(-1).tolist() == [1, -1, 0, 0]


def test_solve_rates_leave_the_unscorable_out(make_rollouts):
    rollouts = make_rollouts([1.0, NAN, -1.0, 1.0, 1.0, 1.0], [1] * 6, num_generations=3)
    assert rollouts.solve_rates.tolist() == [0.5] * 3 + [1.0] * 3


def test_what_the_deciding_function_could_not_score_is_unscorable_whatever_the_others_say(make_rollouts):
    rollouts = make_rollouts([1.0, 0.5, -1.0, 1.0], [1, 2, 3, 4])
    rollouts = replace(rollouts, correctness_rewards=torch.tensor([1.0, NAN, -1.0, 1.0]).double())
    assert rollouts.is_scorable.tolist() == [True, False, True, True]
    assert rollouts.correctness.nan_to_num(-1).tolist() == [1, -1, 0, 1]
    assert rollouts.solve_rates.tolist() == [2 / 3] * 4


def test_rows_are_joined_and_selected_with_their_columns(make_rollouts):
    first = make_rollouts([1, 0], [1, 2], target=9.0, columns={"effort": ["low", "low"]})
    second = make_rollouts([1, 1, 0, 0], [3, 4, 5, 6], num_generations=2, columns={"effort": ["a", "a", "b", "b"]})
    both = joined([first, second])
    assert both.lengths.tolist() == [1, 2, 3, 4, 5, 6]
    assert list(both.columns["effort"]) == ["low", "low", "a", "a", "b", "b"]
    picked = joined([both], torch.tensor([4, 5, 0, 1]))
    assert picked.lengths.tolist() == [5, 6, 1, 2]
    assert list(picked.columns["effort"]) == ["b", "b", "low", "low"]
    assert picked.target_lengths.nan_to_num(-1).tolist() == [-1, -1, 9, 9]


def score_of(*values, keep=None, cut=None):
    numbers = torch.tensor(values, dtype=torch.float64)
    return Score(numbers, numbers + 10, numbers + 20, numbers + 30, keep, cut)


def test_scores_are_joined_selected_and_mixed():
    is_own, ones = torch.tensor([True, False]), torch.ones(2, dtype=torch.bool)
    first, second = score_of(1, 2, cut=torch.tensor([5, 6])), score_of(3, 4, cut=torch.tensor([7, 8]))
    picked = joined([first, second], torch.tensor([3, 0]))
    assert (picked.base.tolist(), picked.advantages.tolist(), picked.cut.tolist()) == ([4, 1], [34, 31], [8, 5])
    assert picked.keep is None
    mixed = first.where(is_own, second)
    assert (mixed.penalty.tolist(), mixed.shaped.tolist(), mixed.cut.tolist()) == ([11, 14], [21, 24], [5, 8])
    mixed = score_of(1, 2, keep=~ones).where(is_own, score_of(3, 4, keep=ones, cut=torch.tensor([7, 8])))
    assert (mixed.keep.tolist(), mixed.cut) == ([False, True], None)
