"""What holds for every method in `METHODS`, by itself for each new one; what differs stands in the table below."""

import copy
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from random import Random
from typing import Any, Literal

import pytest
import torch

from leash_trl.length_control.method import LengthControl
from leash_trl.length_control.methods import METHODS
from leash_trl.length_control.rollouts import Rollouts


LIMIT = 200
EPSILON = 1e-8
SCALES = ("group", "batch", "none")


@dataclass(frozen=True)
class Facts:
    """What is particular to a method, with hyper-parameters that fit lengths of 1 to 200 and targets of 50 and 80.

    `base`: rewards of a right and a wrong answer before length; None where the task rewards are taken as they are.
    `bounds`: of the shaped rewards. `wrong`: what its own length does to the shaped reward of a wrong answer; where it
    may gain, longer is not always worse. `right_never_gains` is False where a right answer can be too short.
    `sees_unscorable`: the length of an unscorable completion is in the statistics of the others.
    """

    base: tuple[float, float] | None
    bounds: tuple[float, float]
    wrong: Literal["unmoved", "pays", "may gain"]
    settings: dict[str, Any] | None = None
    right_never_gains: bool = True
    sees_unscorable: bool = False
    zero_mean: bool = True
    breaks_ties_by_order: bool = False


# For targets by difficulty to be met within LIMIT.
LASER_D = {"interval": 20, "upper_bound": 160, "refresh_steps": 1}

# All terms of NeMo-RL, so large that rewards fall below zero before the band multiplies them.
NEMO_ALL = {
    "profile_band": {"a": 30, "b": 150, "f": 0.2},
    "group_total_length_penalty_coeff": 0.5,
    "total_bonus": 0.2,
    "longest_total_penalty": 1.2,
    "total_zmad_penalty": 1.5,
    "total_zmad_threshold": 1.0,
    "pass_rate_length_penalty_weight": 0.8,
}
NEMO_GATE = {
    "group_total_length_penalty_coeff": 0.1,
    "profile_band": {"a": 60, "b": 150, "f": 0.2},
    "profile_band_total": False,
    "group_length_penalty_profile_gate": True,
}

# A name may come again with a colon and its variant.
FACTS = {
    "leash": Facts(None, (-1, 1), "unmoved", {"lambda_init": 0.3, "lambda_lr": 0.05}),
    "leash_c": Facts(None, (-1, 1), "unmoved"),
    # lambda is at most 1, the overshoot 200 / 50 - 1
    "leash_predictive": Facts(None, (-2, 1), "unmoved"),
    # at most lambda_max = 0.1 times 200 / 50 - 1
    "laconic": Facts((1, 0), (-0.3, 1), "pays", {"lambda_init": 0.05}),
    # two-sided: too short is as wrong as too long
    "l1_exact": Facts((1, 0), (-0.75, 1), "may gain", {"alpha": 0.005}, right_never_gains=False),
    "l1_max": Facts((1, 0), (0, 1), "unmoved", {"alpha": 0.005}),
    # what it does to lengths, it does by cutting generation
    "thinkprune": Facts((1, 0), (0, 1), "unmoved"),
    "laser": Facts((1, -0.5), (-1, 1.5), "unmoved"),
    # the longest response of the batch stands in for targets that no candidate meets
    "laser_d": Facts((1, -0.5), (-1, 1.5), "unmoved", LASER_D, sees_unscorable=True),
    # a bonus for long wrong answers
    "laser_de": Facts((1, -0.5), (-1, 1.5), "may gain", LASER_D, sees_unscorable=True),
    "kimi": Facts((1, 0), (-0.2, 1.2), "pays"),
    "dapo_overlong": Facts((1, -1), (-2, 1), "pays", {"cache_length": None}),
    "efficient": Facts((1, 0), (0, 1), "unmoved"),
    "a_dlp": Facts((1, 0), (-0.3, 1), "pays"),
    "alp": Facts((1, 0), (-0.2, 1), "pays", {"beta": 0.001}),
    # wrong answers feel it in the advantage, by being dropped
    "gfpo": Facts(None, (-1, 1), "unmoved", breaks_ties_by_order=True),
    "gfpo:drop": Facts(None, (-1, 1), "unmoved", {"drop_unkept": True}, breaks_ties_by_order=True),
    "dler": Facts((1, 0), (0, 1), "unmoved"),
    "dler:easy": Facts((1, 0), (0, 1), "unmoved", {"easy_limit": 30}),
    # right answers have 0.1 added after standardisation, which is over tokens
    "dler:release": Facts((1, 0), (0, 1), "unmoved", {"variant": "release"}, zero_mean=False),
    # what it does to lengths, it does by cutting completions
    "dot": Facts(None, (-1, 1), "unmoved", {"alpha": 0.5, "min_excess": 1}),
    # the longer a wrong answer, the more it earns
    "cosine": Facts((2, -10), (-10, 2), "may gain"),
    # z is at most 3 / sqrt(4) in a group of four; advantages are weighted by their sign
    "grpo_lead": Facts((1, -1), (-1, math.exp(0.05 * 1.5)), "unmoved", zero_mean=False),
    "grpo_lead:gate": Facts((1, -1), (-1, math.exp(0.05 * 1.5)), "unmoved", {"gate": 60}, zero_mean=False),
    "prime_rl": Facts((1, 0), (-0.25, 1), "pays"),
    "prime_rl:june": Facts((1, 0), (-0.25, 1), "pays", {"variant": "june"}),
    "prime_rl:june_gated": Facts(
        (1, 0),
        (0, 1),
        "unmoved",
        {"variant": "june", "gate_by_correctness": True, "length_weighted_baseline": True},
        zero_mean=False,  # over tokens instead
    ),
    "prime_rl:april": Facts((1, 0), (0, 2), "unmoved", {"variant": "april"}),
    "mai": Facts((1, 0), (0, 1), "unmoved"),
    "nemo_rl": Facts((1, 0), (0, 1.1), "unmoved", {"group_total_length_penalty_coeff": 0.1}),
    "nemo_rl:band": Facts((1, 0), (0, 1), "unmoved", {"profile_band": {"a": 30, "b": 150, "f": 0.2}}),
    "nemo_rl:gate": Facts((1, 0), (0, 1.1), "unmoved", NEMO_GATE),
    "nemo_rl:below zero": Facts((1, 0), (0, 1.7), "unmoved", NEMO_ALL),
    "gr3": Facts((1, 0), (0, 1), "unmoved"),
    "grlc": Facts((1, 0), (-0.5, 1.5), "pays"),
    "hapo": Facts((1, 0), (-1, 2), "pays"),
    # at most 0.005 a token times 199; a wrong answer shorter than the shortest right one gains by being longer
    "shorter_better": Facts((2, 0), (-1, 2), "may gain", {"beta": 0.005}),
    # two-sided, around the mean length of right answers; standardised over tokens
    "lead": Facts((1, 0), (-0.7, 1), "may gain", {"lower_bound": 40}, right_never_gains=False, zero_mean=False),
    "drpo": Facts((1, 0), (0, 1), "unmoved"),
    "toggle": Facts((1, 0), (0, 1), "unmoved"),
    "toggle:off": Facts((1, 0), (0, 1), "unmoved", {"period": 2}),
    "toggle:tight": Facts((1, 0), (0, 1), "unmoved", {"accuracy_threshold": 0.0, "percentile": 10.0}),
    "toggle:leash": Facts(
        None, (-1, 1), "unmoved", {"method": "leash", "method_kwargs": {"lambda_init": 0.3, "lambda_lr": 0.05}}
    ),
    "toggle:grlc": Facts((1, 0), (-0.5, 1.5), "pays", {"method": "grlc", "accuracy_threshold": 0.25}),
    "toggle:gfpo": Facts(None, (-1, 1), "unmoved", {"method": "gfpo"}, breaks_ties_by_order=True),
    "none": Facts(None, (-1, 1), "unmoved"),
}


NAN, INF = math.nan, math.inf

# What a field may not hold, with the others at their defaults.
SENSELESS = [
    ("leash", "lambda_lr", (-0.1, INF, "0.1", True)),
    ("leash", "lambda_init", (1.5, NAN)),
    ("leash_predictive", "lambda_lr", (0.005, NAN)),
    ("leash_predictive", "lambda_max", (0.5,)),
    ("laconic", "lambda_init", (0.2,)),
    ("l1_max", "alpha", (-1.0,)),
    ("l1_max", "budget_range", ((5, 4), (0, 4), (1, 4, 5), (1.5, 4))),
    ("l1_max", "suffix", (" Be brief.",)),
    ("l1_max", "delta", (1.5,)),
    ("thinkprune", "stages", ({}, {1: 4000}, {0: 0}, {-1: 5, 0: 4}, {"a": 4}, {0: None}, [4000])),
    ("thinkprune", "suffix", (" Be brief.",)),
    ("laser", "alpha", (-0.1,)),
    ("laser_de", "refresh_steps", (0,)),
    ("laser_de", "interval", (1.5,)),
    ("laser_de", "expected_correct", (True,)),
    ("laser_de", "rounding", ("up",)),
    ("kimi", "weight", (-1,)),
    ("dapo_overlong", "cache_length", (0,)),
    ("dapo_overlong", "max_length", (1,)),
    ("efficient", "alpha", (-0.1, 1.0)),
    ("a_dlp", "lambda_init", (-1.0,)),
    ("a_dlp", "lambda_lr", (INF, NAN)),
    ("a_dlp", "accuracy_reference", (62,)),
    ("alp", "beta", (-1,)),
    ("gfpo", "metric", ("words",)),
    ("gfpo", "num_kept", (1, 2.5)),
    ("dler", "variant", ("code",)),
    ("dler", "easy_limit", (0,)),
    ("dler", "easy_threshold", (1.5,)),
    ("dot", "alpha", (-1.0, NAN)),
    ("dot", "min_excess", (0, 1.5)),
    ("cosine", "margin", (-1,)),
    ("cosine", "max_length", (0,)),
    ("grpo_lead", "alpha", (-1.0,)),
    ("grpo_lead", "gate", (0,)),
    ("grpo_lead", "weight_min", (2.0,)),
    ("prime_rl", "variant", ("may",)),
    ("prime_rl", "weight", (-1.0,)),
    ("mai", "weight", (-0.1, 1.5)),
    ("nemo_rl", "profile_band", ({"a": 20, "b": 10, "f": 0.5}, {"a": 10, "b": 20, "f": 1.5}, {"a": 10, "b": 20}, 0.5)),
    (
        "nemo_rl",
        "profile_band",
        ({}, {"total": None}, {"a": -1, "b": 20, "f": 0.5}, {"a": "10", "b": 20, "f": 0.5}, {"tau1": 10}),
    ),
    ("nemo_rl", "group_total_length_penalty_coeff", (-0.1, INF)),
    ("nemo_rl", "total_bonus", (-0.1, "0.1")),
    ("nemo_rl", "longest_total_penalty", (-0.1,)),
    ("nemo_rl", "total_zmad_penalty", (-0.1, 0.1)),
    ("nemo_rl", "total_zmad_threshold", (-2.0,)),
    ("nemo_rl", "pass_rate_length_penalty_weight", (-0.2,)),
    ("nemo_rl", "group_length_penalty_profile_gate", (True,)),
    ("nemo_rl", "group_length_penalty_profile_gate_field", ("f",)),
    ("nemo_rl", "profile_band_column", ("", 3)),
    ("gr3", "alpha", (-1.0,)),
    ("grlc", "weight", (-1.0,)),
    ("hapo", "weight", (-1.0,)),
    ("shorter_better", "alpha", (-1.0,)),
    ("shorter_better", "beta", (-0.1, INF)),
    ("lead", "lower_bound", (0, 10.5)),
    ("lead", "upper_bound", (0,)),
    ("lead", "weight_min", (1.5,)),
    ("lead", "alpha", (-1.0,)),
    ("lead", "beta", (1.5,)),
    ("drpo", "temperature", (0, -0.1, NAN, None)),
    ("hapo", "correct_minimum", (0.5,)),
    ("toggle", "method", ("thinkprune", "dler", "l1_max", "toggle", "none", 5, ["leash"])),
    ("toggle", "method_kwargs", ({"weight": 0.5},)),
    ("toggle", "period", (0, 1.5)),
    ("toggle", "accuracy_threshold", (-0.1, 1.5)),
    ("toggle", "percentile", (-1.0, 101.0)),
]

# What a saved state may not hold, in the place of what it does hold.
DAMAGE = {
    "leash": [
        *({"lambda": value} for value in (None, NAN, "0.1", True)),
        *({"observed": rows} for rows in (7, [[9.0]], [[0, 4]], [[9.0, -4]], [["a", 4]])),
        *({"observed": [row]} for row in ([9.0, 4, 0], [9.0, 4, 1, 1])),  # as older versions wrote them, but damaged
    ],
    "leash_predictive": [
        *({"level": value} for value in ("much", NAN, True)),
        *({"push": value} for value in (None, -0.1, NAN)),
        *({"response": value} for value in (None, 0.0, 0.5, NAN)),
        *({"drift": value} for value in (None, -0.1, 0.2, NAN)),
        *({"used": value} for value in (None, -0.1)),
        *({"target": value} for value in ("24", -1.0)),
    ],
    "a_dlp": [{"lambda": -0.1}, {"lambda": INF}, {"scorable": -1}, {"correct": 1}],
    "thinkprune": [{"steps_done": -1}, {"steps_done": 1.5}, {"steps_done": True}],
    "laser_d": [
        *({"targets": targets} for targets in ((), [1, 2], [1, 2, "3"], [1, 2, -3])),
        *({"window": window} for window in (None, [[], []], [[], [], [1.5]])),
        {"steps_since_refresh": None},
        {"lower_bound": 0, "window": [[5], [], []]},
    ],
    "lead": [
        *({"weight": weight} for weight in (None, "0.5", -0.1, 1.1, NAN, True)),
        *({"correctness": groups} for groups in (None, 0.5, [0.5], [[0.5]], [[0.5, -0.1]], [[0.5, NAN]], [["a", 0]])),
        *({"efficiency": groups} for groups in (None, [[1, 2, 3]], [[True, 0]])),
    ],
    "gfpo": [{"group_means": means} for means in (None, 0.5, ["a"], [NAN], [True])],
    "hapo": [{"shortest": history} for history in (None, [1], {"x": 1}, {"1": None}, {"1": -5})],
    "toggle": [{"steps_done": -1}, {"method": "leash"}, {"method": None}, {"method_state": None}],
}


def method_named(name: str) -> LengthControl:
    return METHODS[name.split(":")[0]](**(FACTS[name].settings or {}))


def warm(method: LengthControl) -> LengthControl:
    """The method after two policy updates on batches whose questions come again."""
    for lengths in ([60, 20, 90, 180, 70, 30, 120, 160], [50, 200, 80, 90, 150, 60, 40, 100]):
        method.observe(rollouts([1, -1, 1, -1, 1, 1, -1, 1], lengths, [50.0] * 4 + [80.0] * 4, 4))
        method.step()
    return method


def rollouts(rewards, lengths, targets, num_generations) -> Rollouts:
    lengths_N = torch.tensor(lengths)
    return Rollouts(
        task_rewards=torch.tensor(rewards, dtype=torch.float64),
        lengths=lengths_N,
        target_lengths=torch.tensor(targets, dtype=torch.float64),
        is_truncated=lengths_N == LIMIT,
        questions=torch.arange(len(lengths)) // num_generations,
        num_generations=num_generations,
        max_completion_length=LIMIT,
    )


def random_batch(random: Random) -> Rollouts:
    """Groups of 2 to 4, of one answer or of several, with lengths that often meet, or lie on a target or the limit."""
    size, prompts = random.randint(2, 4), random.randint(1, 3)
    count = size * prompts
    mixed = [1.0, -1.0, 1.0, -1.0, math.nan]
    rewards = random.choice(([1.0], [1.0, -1.0], mixed, mixed))
    lengths = random.choice((range(1, LIMIT + 1), range(1, LIMIT + 1), (1, 49, 50, 51, 80, LIMIT), (30, 31)))
    targets = [random.choice((50.0, 80.0)) for _ in range(prompts)]
    return rollouts(
        random.choices(rewards, k=count),
        random.choices(lengths, k=count),
        [target for target in targets for _ in range(size)],
        size,
    )


BATCHES = [random_batch(Random(seed)) for seed in range(16)]


def reordered(batch: Rollouts, order: torch.Tensor) -> Rollouts:
    tensors = {field.name: getattr(batch, field.name) for field in fields(batch)}
    return replace(batch, **{k: v[order] for k, v in tensors.items() if isinstance(v, torch.Tensor)})


def pairs(batch: Rollouts, is_chosen: torch.Tensor):
    """Indices of all chosen completions of one prompt, the shorter first."""
    for group in torch.arange(len(batch.lengths)).split(batch.num_generations):
        chosen = [i for i in group.tolist() if is_chosen[i]]
        yield from ((i, j) for i in chosen for j in chosen if batch.lengths[i] < batch.lengths[j])


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-7, atol=1e-7, equal_nan=True)


def for_every_method(law: Callable[[str, Rollouts, Random], None]) -> Callable[[str], None]:
    """A test that a law holds for each method on all batches."""

    @pytest.mark.parametrize("name", FACTS)
    def test(name):
        for seed, batch in enumerate(BATCHES):
            law(name, batch, Random(seed))

    return test


def test_the_table_has_every_method_and_no_other():
    listed = {name.split(":")[0] for name in FACTS}
    assert METHODS.keys() <= listed, "add a line to FACTS: the scale, the bounds, and what wrong answers feel"
    assert listed <= METHODS.keys()


@pytest.mark.parametrize("name", METHODS)
def test_a_method_has_the_name_it_is_listed_under(name):
    assert METHODS[name].name == name
    assert METHODS[name]().name == name


@for_every_method
def test_permuting_the_completions_of_a_prompt_permutes_rewards_and_advantages(name, batch, random):
    has_ties = any(len(set(row)) < len(row) for row in batch.by_group(batch.lengths).tolist())
    if FACTS[name].breaks_ties_by_order and has_ties:
        return
    size = batch.num_generations
    within = random.sample(range(size), size)
    order = torch.tensor([start + i for start in range(0, len(batch.lengths), size) for i in within])
    assert_equivariant(name, batch, order)


@for_every_method
def test_permuting_prompts_permutes_rewards_and_advantages(name, batch, random):
    size = batch.num_generations
    prompts = random.sample(range(len(batch.lengths) // size), len(batch.lengths) // size)
    assert_equivariant(name, batch, torch.tensor([prompt * size + i for prompt in prompts for i in range(size)]))


def assert_equivariant(name: str, batch: Rollouts, order: torch.Tensor) -> None:
    method, moved = warm(method_named(name)), reordered(batch, order)
    shaped = method.shape(batch)
    same(method.shape(moved), shaped[order])
    if (kept := method.cut_lengths(batch)) is not None:
        assert torch.equal(method.cut_lengths(moved), kept[order])
    for scale in SCALES:
        advantages = method.advantages(shaped, batch, scale, EPSILON)
        same(method.advantages(shaped[order], moved, scale, EPSILON), advantages[order])


@for_every_method
def test_rewards_and_advantages_are_float64_finite_and_bounded_and_unscorable_completions_have_none(
    name, batch, random
):
    method, (low, high) = warm(method_named(name)), FACTS[name].bounds
    shaped, scorable = method.shape(batch), batch.is_scorable
    assert shaped.dtype == torch.float64
    assert torch.equal(torch.isnan(shaped), ~scorable)
    assert torch.equal(torch.isnan(method.base_rewards(batch)), ~scorable)
    assert (shaped[scorable] >= low - 1e-9).all()
    assert (shaped[scorable] <= high + 1e-9).all()
    for scale in SCALES:
        advantages = method.advantages(shaped, batch, scale, EPSILON)
        assert advantages.dtype == torch.float64
        assert advantages.isfinite().all()
        assert (advantages[~scorable] == 0).all()
        if FACTS[name].zero_mean:
            same(batch.by_group(advantages).sum(dim=1), torch.zeros(len(shaped) // batch.num_generations).double())


RULES = {"reward_baseline": "length_weighted", "multi_objective_aggregation": "normalize_then_sum"}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", [name for name in FACTS if not method_named(name).has_own_advantages])
def test_a_rule_of_the_configuration_keeps_the_laws_of_advantages(name, rule):
    method = warm(method_named(name))
    method.set_for_run(**{rule: RULES[rule]})
    for batch in BATCHES:
        assert_advantages_are_sound(method, batch, batch.lengths if rule == "reward_baseline" else 1)


def assert_advantages_are_sound(method: LengthControl, batch: Rollouts, weights: torch.Tensor | int) -> None:
    shaped, prompts = method.shape(batch), len(batch.lengths) // batch.num_generations
    advantages = method.advantages(shaped, batch, "none", EPSILON)
    assert advantages.dtype == torch.float64
    assert advantages.isfinite().all()
    assert (advantages[~batch.is_scorable] == 0).all()
    same(batch.by_group(weights * advantages).sum(dim=1), torch.zeros(prompts).double())
    order = torch.tensor([i for row in batch.by_group(torch.arange(len(shaped))).tolist()[::-1] for i in row[::-1]])
    same(method.advantages(shaped[order], reordered(batch, order), "none", EPSILON), advantages[order])


@for_every_method
def test_no_constant_passes_through_float32(name, batch, random):
    method, exact = warm(method_named(name)), torch.float64
    shaped = method.shape(batch)
    advantages = method.advantages(shaped, batch, "group", EPSILON)
    usual = torch.get_default_dtype()
    torch.set_default_dtype(exact)
    try:
        again = method.shape(batch)
        assert torch.equal(again.nan_to_num(7.0), shaped.nan_to_num(7.0))
        assert torch.equal(method.advantages(again, batch, "group", EPSILON), advantages)
    finally:
        torch.set_default_dtype(usual)


@for_every_method
def test_the_length_of_an_unscorable_completion_changes_nothing_for_the_others(name, batch, random):
    if FACTS[name].sees_unscorable:
        return
    method = warm(method_named(name))
    other = replace(batch, lengths=batch.lengths.where(batch.is_scorable, random.randint(1, LIMIT)))
    shaped = method.shape(batch)
    same(method.shape(other), shaped)
    for scale in SCALES:
        same(method.advantages(shaped, other, scale, EPSILON), method.advantages(shaped, batch, scale, EPSILON))


@for_every_method
def test_a_longer_right_answer_never_earns_more_unless_it_can_be_too_short(name, batch, random):
    if not FACTS[name].right_never_gains:
        return
    shaped = warm(method_named(name)).shape(batch)
    for shorter, longer in pairs(batch, batch.is_correct):
        assert shaped[longer] <= shaped[shorter] + 1e-12


@for_every_method
def test_wrong_answers_feel_their_length_only_where_the_table_says_so(name, batch, random):
    shaped = warm(method_named(name)).shape(batch)
    is_wrong = batch.is_scorable & ~batch.is_correct & ~batch.is_truncated
    for shorter, longer in pairs(batch, is_wrong):
        if FACTS[name].wrong == "unmoved":
            assert shaped[longer] == shaped[shorter]
        elif FACTS[name].wrong == "pays":
            assert shaped[longer] <= shaped[shorter] + 1e-12


@pytest.mark.parametrize("name", [name for name in FACTS if not method_named(name).uses_correctness])
def test_a_method_that_does_not_ask_what_is_correct_does_not_read_it(name):
    method, other = warm(method_named(name)), warm(method_named(name))
    for batch in BATCHES:
        opposite = replace(batch, correctness_rewards=-batch.task_rewards)
        shaped = method.shape(batch)
        same(other.shape(opposite), shaped)
        if (kept := method.cut_lengths(batch)) is not None:
            assert torch.equal(other.cut_lengths(opposite), kept)
        advantages = method.advantages(shaped, batch, "group", EPSILON)
        same(other.advantages(shaped, opposite, "group", EPSILON), advantages)
        for each, seen in ((method, batch), (other, opposite)):
            each.observe(seen)
            each.step()
        assert method.state_dict() == other.state_dict()


# Task rewards of a right and a wrong answer; below zero, a factor smaller than 1 raises a reward.
REWARD_SCALES = {"0 or 1": (1.0, 0.0), "-1 or 1": (1.0, -1.0), "-2 or 0.5": (0.5, -2.0), "below zero": (-0.5, -2.0)}


def on_scale(batch: Rollouts, right: float, wrong: float) -> Rollouts:
    """The same completions with other task rewards; what is correct stays the same."""
    rewards = torch.where(batch.is_correct, right, wrong).double().where(batch.is_scorable, torch.nan)
    return replace(batch, task_rewards=rewards, correctness_rewards=batch.task_rewards)


def gains_from_length(
    method: LengthControl, batch: Rollouts, right_may: bool = False, wrong_may: bool = False
) -> bool:
    """Whether a completion earns more than a shorter one of the same prompt and the same correctness."""
    shaped = method.shape(batch)
    right, wrong = batch.is_correct, batch.is_scorable & ~batch.is_correct
    held = [*([] if right_may else pairs(batch, right)), *([] if wrong_may else pairs(batch, wrong))]
    return any(shaped[longer] > shaped[shorter] + 1e-12 for shorter, longer in held)


@pytest.mark.parametrize("scale", REWARD_SCALES)
@pytest.mark.parametrize("name", FACTS)
def test_on_no_scale_of_task_rewards_does_longer_earn_more_unless_the_table_says_so(name, scale):
    right_may, wrong_may = not FACTS[name].right_never_gains, FACTS[name].wrong == "may gain"
    for batch in BATCHES:
        scaled = on_scale(batch, *REWARD_SCALES[scale])
        assert not gains_from_length(warm(method_named(name)), scaled, right_may, wrong_may)


def test_that_law_catches_a_band_that_multiplies_task_rewards_below_zero():
    class Band(LengthControl):
        name = "band"
        uses_correctness = False

        def shape(self, rollouts):
            return self.base_rewards(rollouts) / (1 + rollouts.lengths / LIMIT)

    caught = [
        s for s in REWARD_SCALES if any(gains_from_length(Band(), on_scale(b, *REWARD_SCALES[s])) for b in BATCHES)
    ]
    assert caught == ["-1 or 1", "-2 or 0.5", "below zero"]


@pytest.mark.parametrize("name", [name for name in FACTS if FACTS[name].wrong != "unmoved"])
def test_wrong_answers_do_feel_it_where_the_table_says_so(name):
    batch = rollouts([1, -1, -1, 1], [40, 20, 190, 60], [50.0] * 4, 4)
    shaped = warm(method_named(name)).shape(batch)
    assert (shaped[2] < shaped[1]) if FACTS[name].wrong == "pays" else (shaped[2] != shaped[1])


def test_some_method_gains_from_a_long_wrong_answer_only_where_the_table_says_so():
    batch = rollouts([1, -1, -1, 1], [40, 20, 150, 60], [50.0] * 4, 4)
    shaped = {name: warm(method_named(name)).shape(batch) for name in FACTS}
    assert {name for name in FACTS if shaped[name][2] > shaped[name][1]} == {"laser_de", "cosine"}


@pytest.mark.parametrize("name", [name for name in FACTS if FACTS[name].base is not None])
def test_a_method_with_a_scale_of_its_own_takes_task_rewards_of_either_scale(name):
    method, nan = method_named(name), math.nan
    first = rollouts([1, 0, 0, 1, nan, 0], [10, 20, 30, 40, 50, 60], [50.0] * 6, 3)
    second = replace(first, task_rewards=2 * first.task_rewards - 1)
    right, wrong = FACTS[name].base
    same(method.base_rewards(first), torch.tensor([right, wrong, wrong, right, nan, wrong], dtype=torch.float64))
    same(method.base_rewards(second), method.base_rewards(first))
    same(method.shape(second), method.shape(first))
    assert method.reward_scale_problem(first) is None
    assert method.reward_scale_problem(second) is None


@for_every_method
def test_none_from_the_deciding_function_is_as_none_from_all_where_the_scale_is_the_methods_own(name, batch, random):
    if FACTS[name].base is None:
        return
    others = replace(batch, task_rewards=batch.task_rewards.nan_to_num(0.5), correctness_rewards=batch.task_rewards)
    method, twin = warm(method_named(name)), warm(method_named(name))
    shaped = method.shape(batch)
    same(method.shape(others), shaped)
    for scale in SCALES:
        same(method.advantages(shaped, others, scale, EPSILON), method.advantages(shaped, batch, scale, EPSILON))
    for each, seen in ((method, batch), (twin, others)):
        each.observe(seen)
        each.step()
    assert method.state_dict() == twin.state_dict()


@for_every_method
def test_looking_at_a_batch_moves_nothing(name, batch, random):
    method = warm(method_named(name))
    before, saved = copy.deepcopy(vars(method)), json.dumps(method.state_dict())
    shaped = method.shape(batch)
    method.penalty(batch)
    method.advantages(shaped, batch, "group", EPSILON)
    method.is_trained_on(batch)
    method.cut_lengths(batch)
    method.statistics()
    assert vars(method) == before
    assert json.dumps(method.state_dict()) == saved
    assert torch.equal(method.shape(batch).nan_to_num(7.0), shaped.nan_to_num(7.0))


@for_every_method
def test_a_method_restored_from_json_goes_on_as_the_saved_one_does(name, batch, random):
    method, restored = warm(method_named(name)), method_named(name)
    method.observe(rollouts([1, 1], [150, 190], [50.0] * 2, 2))  # and the update that should have followed was skipped
    restored.load_state_dict(json.loads(json.dumps(method.state_dict())))
    for _ in range(2):
        assert torch.equal(restored.shape(batch).nan_to_num(7.0), method.shape(batch).nan_to_num(7.0))
        assert restored.generation_cap(80.0) == method.generation_cap(80.0)
        assert restored.statistics() == pytest.approx(method.statistics(), nan_ok=True)
        for each in (method, restored):
            each.observe(batch)
            each.step()
        assert restored.state_dict() == method.state_dict()


@pytest.mark.parametrize("name", [name for name in FACTS if METHODS[name.split(":")[0]]().state_dict()])
def test_an_empty_saved_state_is_refused(name):
    with pytest.raises(ValueError, match="saved state"):
        method_named(name).load_state_dict({})


@pytest.mark.parametrize(("name", "damage"), [(name, damage) for name in DAMAGE for damage in DAMAGE[name]], ids=str)
def test_a_damaged_saved_state_is_refused(name, damage):
    method = method_named(name)
    with pytest.raises(ValueError, match=f"the saved state holds {next(iter(damage))}="):
        method.load_state_dict({**method.state_dict(), **damage})


@pytest.mark.parametrize(
    ("name", "field", "value"), [(n, f, v) for n, f, values in SENSELESS for v in values], ids=str
)
def test_a_hyper_parameter_out_of_its_range_is_refused_by_name(name, field, value):
    with pytest.raises(ValueError, match=rf"\b{field}( is |=){re.escape(repr(value))}"):
        METHODS[name](**{field: value})


NUMBERS = [
    (name, field)
    for name, method in METHODS.items()
    for field in fields(method)
    if isinstance(field.default, int | float) and not isinstance(field.default, bool)
]


@pytest.mark.parametrize(("name", "field"), NUMBERS, ids=lambda each: getattr(each, "name", each))
def test_what_is_no_finite_number_is_refused_where_one_is_needed(name, field):
    for value in (NAN, INF, -INF, "1", True, [1]):
        with pytest.raises(ValueError, match=rf"^{field.name} is {re.escape(repr(value))}, but must be "):
            METHODS[name](**{field.name: value})


@pytest.mark.parametrize(("name", "field"), NUMBERS, ids=lambda each: getattr(each, "name", each))
def test_none_is_refused_unless_the_field_says_that_it_may_be_none(name, field):
    if isinstance(None, field.type):
        assert getattr(METHODS[name](**{field.name: None}), field.name) is None
        return
    with pytest.raises(ValueError, match=rf"^{field.name} is None, but must be "):
        METHODS[name](**{field.name: None})


@pytest.mark.parametrize("name", FACTS)
def test_two_instances_share_nothing(name):
    first, second = method_named(name), method_named(name)
    before = copy.deepcopy(vars(second))
    warm(first)
    assert vars(second) == before


@pytest.mark.parametrize("name", FACTS)
def test_a_batch_that_nothing_could_score_is_survived(name):
    method, nan = warm(method_named(name)), math.nan
    batch = rollouts([nan] * 4, [10, 20, 30, LIMIT], [50.0] * 4, 2)
    shaped = method.shape(batch)
    assert shaped.isnan().all()
    assert (method.advantages(shaped, batch, "group", EPSILON) == 0).all()
    method.observe(batch)
    method.step()
    assert all(math.isfinite(value) for value in method.statistics().values())


def test_the_advantage_of_gfpo_is_where_a_wrong_answer_feels_its_length():
    method, batch = method_named("gfpo"), rollouts([1, -1, -1, 1], [40, 20, 190, 60], [50.0] * 4, 4)
    assert (method.advantages(method.shape(batch), batch, "group", EPSILON) != 0).tolist() == [
        True,
        True,
        False,
        False,
    ]


def test_flags_of_earlier_releases_are_refused():
    with pytest.raises(TypeError, match="needs_target has no effect any more; write target_use"):

        class Old(LengthControl):
            needs_target = True
