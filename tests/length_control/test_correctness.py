"""Whether rewards say which answers are correct, by their values."""

import math

import pytest
import torch

from leash_trl.errors import TrainingError
from leash_trl.length_control.alp import ALP
from leash_trl.length_control.correctness import CorrectnessRule


def score(**kwargs):
    return []


def form(**kwargs):
    return []


def rule(*batches, functions=(score,), chosen=None):
    """The rule for these functions after it has seen these batches of deciding rewards."""
    names = [function.__name__ for function in functions]
    made = CorrectnessRule(functions, names, chosen, getattr(chosen, "__name__", ""))
    for rewards in batches:
        made.observe(torch.tensor(rewards, dtype=torch.float32))
    return made


@pytest.mark.parametrize(
    ("rewards", "is_known"),
    [
        ([0.5, -0.5], True),  # right and wrong on another scale
        ([0.3, 0.1 + 0.2, 0.0], True),  # equal but for rounding
        ([1.0, 0.0, -1.0], True),  # wrong answers may cost differently
        ([-1.0, -0.5], True),
        ([math.nan, 1.0, math.nan], True),
        ([], True),
        ([1.0, 0.25], False),
        ([2.0, 1.0], False),
    ],
)
def test_two_different_positive_rewards_are_partial_credit(rewards, is_known):
    whole, halves = rule(rewards), rule(rewards[:1], rewards[1:])
    assert whole.is_known is halves.is_known is is_known
    assert rule(rewards, functions=(score, form)).is_known is False
    assert rule(rewards, functions=(score, form), chosen="score").is_known is True
    assert rule(rewards, chosen=form).is_known is True


def test_the_column_is_that_of_the_deciding_function_and_another_one_comes_last():
    both = (score, form)
    assert [rule(functions=both, chosen=chosen).deciding_column for chosen in (None, "form", score)] == [None, 1, 0]
    other = rule(functions=(form,), chosen=score)
    assert (other.deciding_column, other.unweighted_functions, other.unweighted_names) == (1, [score], ["score"])


def test_a_function_that_has_the_name_of_another_is_refused():
    def form_of_another_file(**kwargs):
        return []

    form_of_another_file.__name__ = "form"
    with pytest.raises(TrainingError, match="'form'"):
        rule(functions=(score, form), chosen=form_of_another_file)


def test_a_method_that_needs_to_know_is_refused_by_its_name():
    rule([1.0, 0.5], chosen=form).check_known_for(ALP())
    with pytest.raises(TrainingError, match=r"\A.*'alp'.*score.*correctness_func.*\Z"):
        rule([1.0, 0.5, 0.0]).check_known_for(ALP())
