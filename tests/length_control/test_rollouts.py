"""The value object a method sees, and the score it makes."""

import math
from dataclasses import replace

import torch
from toy_rollouts import close, toy_rollouts

from leash_trl.length_control.rollouts import concatenated, selected


NAN = math.nan


def test_unscorable_is_neither_scorable_nor_correct_and_has_no_part_in_solve_rates():
    rollouts = toy_rollouts([1.0, NAN, -1.0, 0.0, 1.0, 1.0], [1, 2, 3, 4, 5, 6], num_generations=3)
    assert rollouts.is_scorable.tolist() == [True, False, True, True, True, True]
    close(rollouts.correctness, [1, NAN, 0, 0, 1, 1])
    close(rollouts.solve_rates, [1 / 2] * 3 + [2 / 3] * 3)
    close(rollouts.scorable_lengths, [1, NAN, 3, 4, 5, 6])
    close(rollouts.correct_lengths, [1, NAN, NAN, NAN, 5, 6])


def test_the_length_of_a_completion_counts_its_answer_too_where_only_its_thinking_is_controlled():
    completions = toy_rollouts([1, 0, 1], [7, 5, 0])
    assert completions.completion_lengths.tolist() == [7, 5, 0]
    thinking = replace(completions, num_tokens=torch.tensor([9, 5, 9]))
    assert thinking.completion_lengths.tolist() == [9, 5, 9]
    assert thinking.lengths.tolist() == [7, 5, 0]


def test_rows_are_joined_and_selected_with_their_columns():
    first = toy_rollouts([1, 0], [1, 2], target=9.0, columns={"effort": ["low", "low"]})
    second = toy_rollouts([1, 0], [3, 4], columns={"effort": ["high", "high"]})
    both = concatenated([first, second])
    assert both.lengths.tolist() == [1, 2, 3, 4]
    assert both.columns["effort"] == ["low", "low", "high", "high"]
    rows = torch.tensor([2, 3, 0, 1])
    picked = selected(both, rows)
    assert picked.lengths.tolist() == [3, 4, 1, 2]
    assert picked.columns["effort"] == ["high", "high", "low", "low"]
    close(picked.target_lengths, [NAN, NAN, 9, 9])
