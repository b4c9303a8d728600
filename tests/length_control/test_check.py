"""`check_length_control`: our methods pass it, and each fault of a method is one line that names it and the remedy."""

import copy
import re

import pytest
import torch
from method_facts import FACTS, LIMIT, method_named

from leash_trl.length_control import LengthControl, check_length_control, state_field
from leash_trl.length_control.l1 import L1Exact
from leash_trl.length_control.leash import Leash
from leash_trl.length_control.nemo_rl import NemoRL


@pytest.mark.parametrize("name", FACTS)
def test_each_of_our_methods_passes_and_stays_as_it_is(name):
    method = method_named(name)
    before = copy.deepcopy(vars(method))
    check_length_control(method, target_length=50, max_completion_length=LIMIT, num_generations=4)
    assert vars(method) == before


@pytest.mark.parametrize(
    ("method", "columns"),
    [
        (Leash(multiplier_per="effort", lambda_lr=0.1), {"effort": ["low", "high", None]}),
        (Leash(multiplier_per="target_length", lambda_lr=0.1), None),
        (NemoRL(profile_band_column="band"), {"band": [{"a": 1000, "b": 8000, "f": 0.2}]}),
    ],
    ids=["column", "targets", "bands"],
)
def test_a_method_that_reads_columns_gets_values_of_them(method, columns):
    check_length_control(method, columns=columns)


class Mine(LengthControl):
    """A method without a fault, to which each of the classes below adds one."""

    name = "mine"


class DividesByLength(Mine):
    def shaped_rewards(self, rollouts):
        return self.base_rewards(rollouts) / rollouts.lengths


class FillsWhatHasNoReward(Mine):
    def shaped_rewards(self, rollouts):
        return self.base_rewards(rollouts).nan_to_num(0.0)


class AdvantagesWithoutReward(Mine):
    depends_on = "prompt"

    def advantages(self, rollouts, shaped, rule):
        return super().advantages(rollouts, shaped, rule) + 1.0


class WorksInPlace(Mine):
    def shaped_rewards(self, rollouts):
        rollouts.lengths.clamp_(max=100)
        return self.base_rewards(rollouts) - rollouts.lengths / 1000


class NotCentered(Mine):
    depends_on = "prompt"
    advantages_have_mean_zero = True

    def advantages(self, rollouts, shaped, rule):
        return super().advantages(rollouts, shaped, rule).clamp(min=0.0)


class ComparesAllPrompts(Mine):
    depends_on = "prompt"

    def shaped_rewards(self, rollouts):
        return self.base_rewards(rollouts) - rollouts.lengths / rollouts.lengths.max().clamp(min=1)


class UndeclaredGroup(Mine):
    def shaped_rewards(self, rollouts):
        longest = rollouts.by_group(rollouts.lengths).amax(dim=1, keepdim=True).clamp(min=1)
        return self.base_rewards(rollouts) - (rollouts.by_group(rollouts.lengths) / longest).flatten()


class UndeclaredGroupOfAdvantages(Mine):
    def advantages(self, rollouts, shaped, rule):
        return 2 * super().advantages(rollouts, shaped, rule)


class UndeclaredCorrectness(Mine):
    def needs_correctness(self):
        return None

    def shaped_rewards(self, rollouts):
        return self.base_rewards(rollouts) - 0.1 * rollouts.correctness.nan_to_num()


class UndeclaredTarget(Mine):
    def shaped_rewards(self, rollouts):
        return self.base_rewards(rollouts) - (rollouts.lengths > rollouts.target_lengths).double()


class FailsWithoutReward(Mine):
    mean: float = state_field(float)

    def observe(self, rollouts):
        lengths = rollouts.lengths[rollouts.is_scorable].tolist()
        self.mean = sum(lengths) / len(lengths)


class ScoreMovesState(Mine):
    batches: int = state_field(int)

    def shaped_rewards(self, rollouts):
        self.batches += 1
        return self.base_rewards(rollouts)


class SharedByAll(Mine):
    history = []

    def observe(self, rollouts):
        self.history.append(1.0)

    def shaped_rewards(self, rollouts):
        return self.base_rewards(rollouts) - 0.001 * len(self.history)


class NotForJSON(Mine):
    weight: torch.Tensor = state_field(lambda: torch.tensor(0.5))


class LosesWhatWasObserved(Mine):
    """A checkpoint between `observe` and `step` loses the batch."""

    weight: float = state_field(float)

    def __post_init__(self):
        super().__post_init__()
        self.observed = 0.0

    def observe(self, rollouts):
        self.observed += rollouts.lengths.double().mean().item()

    def step(self):
        self.weight += self.observed
        self.observed = 0.0


@pytest.mark.parametrize(
    ("faulty", "named"),
    [
        (FillsWhatHasNoReward, ["shaped_rewards", "NaN"]),
        (AdvantagesWithoutReward, ["advantages", "nan_to_num"]),
        (WorksInPlace, ["rollouts", "clone"]),
        (NotCentered, ["advantages_have_mean_zero", "True", "False"]),
        (ComparesAllPrompts, ["shaped_rewards", "depends_on", "'prompt'", "'batch'"]),
        (UndeclaredGroup, ["shaped_rewards", "depends_on", "'completion'", "'prompt'"]),
        (UndeclaredGroupOfAdvantages, ["advantages", "depends_on", "'completion'", "'prompt'"]),
        (UndeclaredCorrectness, ["needs_correctness", "None"]),
        (UndeclaredTarget, ["target_use", "'required'"]),
        (ScoreMovesState, ["score", "observe"]),
        (SharedByAll, ["checkpoint", "state_field", "class"]),
        (LosesWhatWasObserved, ["checkpoint", "state_field"]),
    ],
)
def test_a_fault_is_one_line_with_method_field_and_remedy(faulty, named):
    with pytest.raises(ValueError, match=r"\A.*\Z") as refusal:
        check_length_control(faulty())
    message = str(refusal.value)
    assert "'mine'" in message
    for part in named:
        assert re.search(part, message), message


@pytest.mark.parametrize(
    ("faulty", "error_type"),
    [(DividesByLength, ValueError), (FailsWithoutReward, ZeroDivisionError), (NotForJSON, TypeError)],
)
def test_an_error_of_the_method_in_an_edge_case_is_raised(faulty, error_type):
    with pytest.raises(error_type):
        check_length_control(faulty())


def test_the_method_to_which_each_fault_was_added_has_none():
    check_length_control(Mine())


def test_a_configuration_that_the_method_refuses_is_refused_in_its_words():
    with pytest.raises(ValueError, match="budget_range"):
        check_length_control(L1Exact(), target_length=50, max_completion_length=200)
