"""`check_length_control`: our methods pass it, and each fault of a method is one line that names it and the remedy."""

import copy
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from method_facts import FACTS, LIMIT, method_named

from leash_trl import length_control
from leash_trl.length_control import (
    LengthControl,
    check_length_control,
    edge_cases,
    group_advantages,
    state_field,
)
from leash_trl.length_control.l1 import L1Exact, L1Max
from leash_trl.length_control.leash import Leash
from leash_trl.length_control.methods import METHODS
from leash_trl.length_control.nemo_rl import NemoRL


# default hyper-parameters of these methods do not fit the sizes of a check, or are no choice at all
FITTING = {"nemo_rl": {"profile_band": {"a": 1000, "b": 8000, "f": 0.2}}}


@pytest.mark.parametrize("name", METHODS)
def test_each_of_our_methods_passes(name):
    method = METHODS[name](**FITTING.get(name, {}))
    before = copy.deepcopy(vars(method))
    check_length_control(method)
    assert vars(method) == before


@pytest.mark.parametrize("name", FACTS)
def test_each_passes_with_other_hyper_parameters_and_short_completions(name):
    method = method_named(name)
    if isinstance(method, L1Exact | L1Max):
        method = replace(method, budget_range=(10, 100))
    check_length_control(method, target_length=50, max_completion_length=LIMIT, num_generations=4)


@pytest.mark.parametrize(
    ("method", "columns"),
    [
        (Leash(multiplier_per="effort", lambda_lr=0.1), {"effort": ["low", "high", None]}),
        (Leash(multiplier_per="target_length", lambda_lr=0.1), None),
        (Leash(min_accuracy=0.5, lambda_lr=0.1), None),
        (NemoRL(profile_band_column="band"), {"band": [{"a": 1000, "b": 8000, "f": 0.2}]}),
    ],
    ids=["column", "targets", "floor", "bands"],
)
def test_a_method_that_reads_columns_gets_values_of_them(method, columns):
    check_length_control(method, columns=columns)


def test_the_method_of_the_guide_passes(tmp_path, monkeypatch):
    """The check is the last that the guide says of writing a method."""
    readme = Path(length_control.__path__[0], "README.md").read_text(encoding="utf-8")
    section = readme.partition("## A method of your own")[2].partition("\n## ")[0]
    method, check = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    (tmp_path / "my_methods.py").write_text(method)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    names = {}
    exec(check, names)
    check_function = next(value for name, value in names.items() if name.startswith("test_"))
    check_function()
    assert "check_length_control(" in check


class Mine(LengthControl):
    """A method without a fault, to which each of the classes below adds one."""

    name = "mine"


class WrongShape(Mine):
    def shaped_rewards(self, rollouts):
        return self.base_rewards(rollouts).mean()


class NoRightAnswer(Mine):
    """The mean length of right answers is NaN where there are none."""

    needs_group = True

    def shaped_rewards(self, rollouts):
        means = rollouts.by_group(rollouts.correct_lengths).nanmean(dim=1).repeat_interleave(rollouts.num_generations)
        return self.base_rewards(rollouts) - (rollouts.lengths > means).double() * means / 100000


class DividesByLength(Mine):
    def shaped_rewards(self, rollouts):
        return self.base_rewards(rollouts) / rollouts.lengths


class FillsWhatHasNoReward(Mine):
    def shaped_rewards(self, rollouts):
        return self.base_rewards(rollouts).nan_to_num(0.0)


class PenaltyWithoutANumber(Mine):
    def penalty(self, rollouts):
        return rollouts.lengths / torch.zeros(len(rollouts.lengths))


class ReturnsATuple(Mine):
    def score(self, rollouts, rule):
        score = super().score(rollouts, rule)
        return score.shaped, score.advantages


class ShortAdvantages(Mine):
    own_advantages = "group"

    def score(self, rollouts, rule):
        score = super().score(rollouts, rule)
        return replace(score, advantages=score.advantages[1:])


class AdvantagesOfNaN(Mine):
    own_advantages = True

    def score(self, rollouts, rule):
        score = super().score(rollouts, rule)
        return replace(score, advantages=score.shaped)


class AdvantagesWithoutReward(Mine):
    own_advantages = True

    def score(self, rollouts, rule):
        score = super().score(rollouts, rule)
        return replace(score, advantages=score.advantages + 1.0)


class WorksInPlace(Mine):
    def shaped_rewards(self, rollouts):
        rollouts.lengths.clamp_(max=100)
        return self.base_rewards(rollouts) - rollouts.lengths / 1000


class Random(Mine):
    def shaped_rewards(self, rollouts):
        return self.base_rewards(rollouts) + torch.rand(len(rollouts.lengths), dtype=torch.float64)


class UndeclaredAdvantages(Mine):
    def score(self, rollouts, rule):
        score = super().score(rollouts, rule)
        return replace(score, advantages=2 * score.advantages)


class NotCentered(Mine):
    own_advantages = "group"

    def score(self, rollouts, rule):
        score = super().score(rollouts, rule)
        return replace(score, advantages=score.advantages.clamp(min=0.0))


class StandardizedOverTheBatch(Mine):
    own_advantages = "group"

    def score(self, rollouts, rule):
        score = super().score(rollouts, rule)
        centered = group_advantages(score.shaped - rollouts.lengths / 1000, rollouts.num_generations, "none", 1e-8)
        return replace(score, advantages=centered / (centered.std() + 1e-8))


class ComparesAllPrompts(Mine):
    needs_group = True

    def shaped_rewards(self, rollouts):
        return self.base_rewards(rollouts) - rollouts.lengths / rollouts.lengths.max().clamp(min=1)


class GroupsTheWrongWay(Mine):
    needs_group = True

    def shaped_rewards(self, rollouts):
        columns = rollouts.lengths.double().view(rollouts.num_generations, -1)
        return self.base_rewards(rollouts) - (columns > columns.mean(dim=0)).double().flatten()


class DependsOnTheOrder(Mine):
    needs_group = "batch"

    def shaped_rewards(self, rollouts):
        return self.base_rewards(rollouts) - rollouts.lengths.cumsum(dim=0) / 100000


class UndeclaredGroup(Mine):
    def shaped_rewards(self, rollouts):
        longest = rollouts.by_group(rollouts.lengths).amax(dim=1, keepdim=True).clamp(min=1)
        return self.base_rewards(rollouts) - (rollouts.by_group(rollouts.lengths) / longest).flatten()


class UndeclaredCorrectness(Mine):
    uses_correctness = False

    def shaped_rewards(self, rollouts):
        return self.base_rewards(rollouts) - 0.1 * rollouts.correctness.nan_to_num()


class UndeclaredTarget(Mine):
    def shaped_rewards(self, rollouts):
        return self.base_rewards(rollouts) - (rollouts.lengths > rollouts.target_lengths).double()


class ColumnsAsText(Mine):
    def columns_read(self):
        return "effort"


class MissingColumn(Mine):
    def columns_read(self):
        return ("effort",)


class UndeclaredColumn(Mine):
    def shaped_rewards(self, rollouts):
        assert rollouts.columns["effort"]
        return self.base_rewards(rollouts)


class StatisticsAsTensor(Mine):
    def statistics(self):
        return {"weight": torch.tensor(1.0)}


class FailsWithoutReward(Mine):
    mean: float = state_field(float)

    def observe(self, rollouts):
        lengths = rollouts.lengths[rollouts.is_scorable].tolist()
        self.mean = sum(lengths) / len(lengths)


class FailsWithoutObserve(Mine):
    lengths: list[int] = state_field(list)

    def observe(self, rollouts):
        self.lengths = rollouts.lengths.tolist()

    def step(self):
        self.lengths.pop()
        self.lengths = self.lengths[:0]


class ScoreMovesState(Mine):
    batches: int = state_field(int)

    def shaped_rewards(self, rollouts):
        self.batches += 1
        return self.base_rewards(rollouts)


class TargetMovesState(Mine):
    asked: list[int] = state_field(list)

    def target_for(self, question, target_length):
        self.asked.append(question)
        return target_length


class LeavesSomethingBehind(Mine):
    """The update takes the batch that was scored last, which may be one of evaluation."""

    mean: float = state_field(float)
    last_mean = 0.0

    def shaped_rewards(self, rollouts):
        self.last_mean = rollouts.lengths.double().mean().item()
        self.share = rollouts.is_correct.double().mean().item()
        return self.base_rewards(rollouts)

    def step(self):
        self.mean += self.share


class SharedByAll(Mine):
    history = []

    def observe(self, rollouts):
        self.history.append(1.0)

    def shaped_rewards(self, rollouts):
        return self.base_rewards(rollouts) - 0.001 * len(self.history)


class NotForJSON(Mine):
    weight: torch.Tensor = state_field(lambda: torch.tensor(0.5))


class LostWhenSaved(Mine):
    """The weight is not in the state."""

    def __post_init__(self):
        super().__post_init__()
        self.weight = 0.0

    def step(self):
        self.weight += 0.001

    def shaped_rewards(self, rollouts):
        return self.base_rewards(rollouts) - self.weight * rollouts.lengths


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
        (WrongShape, ["shaped_rewards", r"\(32,\)"]),
        (NoRightAnswer, ["shaped_rewards", "nan", edge_cases.WRONG]),
        (DividesByLength, ["shaped_rewards", "nan"]),
        (FillsWhatHasNoReward, ["shaped", "NaN"]),
        (PenaltyWithoutANumber, ["penalty"]),
        (ReturnsATuple, ["score", "Score"]),
        (ShortAdvantages, ["advantages", r"\(32,\)"]),
        (AdvantagesOfNaN, ["advantages", "nan_to_num"]),
        (AdvantagesWithoutReward, ["advantages", "nan_to_num"]),
        (WorksInPlace, [r"rollouts\.lengths", "clone"]),
        (Random, ["score", "observe"]),
        (UndeclaredAdvantages, ["advantages", "own_advantages"]),
        (NotCentered, ["own_advantages", "'group'", "True"]),
        (StandardizedOverTheBatch, ["own_advantages", "'batch'"]),
        (ComparesAllPrompts, ["shaped_rewards", "needs_group", "'batch'"]),
        (GroupsTheWrongWay, ["shaped_rewards", "by_group"]),
        (DependsOnTheOrder, ["score", "by_group"]),
        (UndeclaredGroup, ["needs_group", "True"]),
        (UndeclaredCorrectness, ["uses_correctness", "True"]),
        (UndeclaredTarget, ["target_use", "'required'"]),
        (ColumnsAsText, ["columns_read", "'effort'"]),
        (MissingColumn, ["columns", "'effort'"]),
        (UndeclaredColumn, ["KeyError", "effort", "columns_read"]),
        (StatisticsAsTensor, ["statistics", "'weight'"]),
        (FailsWithoutReward, ["observe", "ZeroDivisionError"]),
        (FailsWithoutObserve, ["step", "IndexError"]),
        (ScoreMovesState, ["score", "observe"]),
        (TargetMovesState, ["target_for", "observe"]),
        (LeavesSomethingBehind, ["score", "observe"]),
        (SharedByAll, ["state", "state_field"]),
        (NotForJSON, ["state", "Tensor"]),
        (LostWhenSaved, ["weight", "state_field"]),
        (LosesWhatWasObserved, ["observed", "state_field"]),
    ],
)
def test_a_fault_is_one_line_with_method_field_and_remedy(faulty, named):
    with pytest.raises(ValueError, match=r"\A.*\Z") as refusal:
        check_length_control(faulty())
    message = str(refusal.value)
    assert "'mine'" in message
    for part in named:
        assert re.search(part, message), message


def test_the_method_to_which_each_fault_was_added_has_none():
    check_length_control(Mine())


def test_what_is_no_instance_is_named():
    with pytest.raises(ValueError, match=r"\A.*method.*Mine.*instance.*\Z"):
        check_length_control(Mine)


def test_a_configuration_that_the_method_refuses_is_refused_in_its_words():
    with pytest.raises(ValueError, match="budget_range"):
        check_length_control(L1Exact(), max_completion_length=200)
