"""Laws of every method in `METHODS`, beside those of `check_length_control`, which test_check.py applies to all.

What is particular to each method stands in `method_facts.py`.
"""

import json
import math
from dataclasses import fields, replace
from random import Random

import pytest
import torch
from method_facts import BATCHES, FACTS, LIMIT, WARM, batch_of, method_named, pairs
from toy_rollouts import toy_rollouts

from leash_trl.length_control.advantages import AdvantageRule
from leash_trl.length_control.method import LengthControl
from leash_trl.length_control.methods import METHODS
from leash_trl.length_control.rollouts import Score, selected
from leash_trl.length_control.targets import check_method_supports_cost, check_target


EPSILON = 1e-8
RULES = {scale: AdvantageRule(scale, EPSILON) for scale in ("group", "batch", "none")}
every_method = pytest.mark.parametrize("name", FACTS)


def same(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-7, atol=1e-7, equal_nan=True)


def same_scores(actual, expected):
    for field in fields(Score):
        same(getattr(actual, field.name), getattr(expected, field.name))


def test_the_table_has_every_method_and_no_other():
    assert {name.split(":")[0] for name in FACTS} == METHODS.keys(), "a line in FACTS says what is particular to it"
    for name, method in METHODS.items():
        assert method.name == name


def shuffled_rows(batch, random, within_prompts):
    """Row numbers of a batch in random order, in which the completions of a prompt stay together."""
    prompts = batch.by_group(torch.arange(len(batch.lengths))).tolist()
    if within_prompts:
        prompts = [random.sample(rows, len(rows)) for rows in prompts]
    random.shuffle(prompts)
    return torch.tensor(prompts).flatten()


@every_method
def test_the_order_of_completions_and_of_prompts_does_not_matter(name):
    method = WARM[name]
    for seed, batch in enumerate(BATCHES):
        has_ties = len(set(batch.lengths.tolist())) < len(batch.lengths)
        order_matters = FACTS[name].breaks_ties_by_order and has_ties
        order = shuffled_rows(batch, Random(seed), within_prompts=not order_matters)
        for rule in RULES.values():
            score = method.score(batch, rule)
            same_scores(method.score(selected(batch, order), rule), selected(score, order))


@every_method
def test_scores_are_float64_and_within_the_bounds_of_the_method(name):
    lowest, highest = FACTS[name].bounds
    for batch in BATCHES:
        score = WARM[name].score(batch, RULES["group"])
        for rewards in (score.base, score.penalty, score.shaped, score.advantages):
            assert rewards.dtype == torch.float64
        rewards = score.shaped[batch.is_scorable]
        assert ((rewards >= lowest - 1e-9) & (rewards <= highest + 1e-9)).all()


@pytest.mark.parametrize("name", ["dler", "drpo", "gr3", "grpo_lead", "lead", "prime_rl"])
def test_scale_rewards_has_no_effect_where_the_docstring_says_so(name):
    for batch in BATCHES:
        expected = WARM[name].score(batch, RULES["group"]).advantages
        for scale in ("batch", "none"):
            assert torch.equal(WARM[name].score(batch, RULES[scale]).advantages, expected)


@every_method
def test_the_length_of_an_unscorable_completion_changes_nothing_for_the_others(name):
    if FACTS[name].sees_unscorable:
        return
    for seed, batch in enumerate(BATCHES):
        other_lengths = batch.lengths.where(batch.is_scorable, Random(seed).randint(1, LIMIT))
        other_batch = replace(batch, lengths=other_lengths)
        for rule in RULES.values():
            score = WARM[name].score(batch, rule)
            other_score = WARM[name].score(other_batch, rule)
            same(other_score.shaped, score.shaped)
            same(other_score.advantages, score.advantages)


# Task rewards of a right and a wrong answer; below zero, a factor smaller than 1 raises a reward.
REWARD_SCALES = {"0 or 1": (1.0, 0.0), "-1 or 1": (1.0, -1.0), "-2 or 0.5": (0.5, -2.0), "below zero": (-0.5, -2.0)}


@pytest.mark.parametrize("scale", REWARD_SCALES)
@every_method
def test_answers_feel_their_length_only_as_the_table_says(name, scale):
    """Right ones never gain from it unless they can be too short; wrong ones, at -1, do not, pay, or may gain."""
    facts = FACTS[name]
    right, wrong = REWARD_SCALES[scale]
    for batch in BATCHES:
        rewards = torch.where(batch.is_correct, right, wrong).double().where(batch.is_scorable, torch.nan)
        scaled = replace(batch, task_rewards=rewards, correctness_rewards=batch.task_rewards)
        shaped = WARM[name].shaped_rewards(scaled).tolist()
        if facts.right_never_gains:
            for shorter, longer in pairs(batch, batch.is_correct):
                assert shaped[longer] <= shaped[shorter] + 1e-12
        is_wrong = batch.is_scorable & ~batch.is_correct & ~batch.is_truncated
        for shorter, longer in pairs(batch, is_wrong):
            if facts.wrong != "may gain":
                assert shaped[longer] <= shaped[shorter] + 1e-12
            if facts.wrong == "unmoved" and wrong <= -1:
                assert shaped[longer] == shaped[shorter]


def two_prompts(rewards):
    """Three completions of each of two prompts, with these rewards."""
    return batch_of(rewards, [10, 20, 30, 40, 50, 60], [50.0] * 6, num_generations=3)


@every_method
def test_a_method_warns_of_reward_functions_that_it_ignores(name):
    method = method_named(name)
    batch = two_prompts([1, -1, -1, 1, math.nan, -1])
    bonus = batch.lengths / 100
    with_bonus = replace(batch, correctness_rewards=batch.task_rewards, task_rewards=batch.task_rewards + bonus)
    warning = LengthControl.reward_warning(method, with_bonus)
    assert (warning is None) == (FACTS[name].base is None)
    # the same function with another weight is no other function
    with_weight = replace(batch, correctness_rewards=batch.task_rewards / 2)
    assert LengthControl.reward_warning(method, with_weight) is None


@pytest.mark.parametrize("name", [name for name in FACTS if FACTS[name].base is not None])
def test_a_method_with_a_scale_of_its_own_asks_only_what_is_correct(name):
    method = method_named(name)
    right, wrong = FACTS[name].base
    zero_or_one = two_prompts([1, 0, 0, 1, math.nan, 0])
    minus_or_plus_one = two_prompts([1, -1, -1, 1, math.nan, -1])
    expected = torch.tensor([right, wrong, wrong, right, math.nan, wrong], dtype=torch.float64)
    for batch in (zero_or_one, minus_or_plus_one):
        score = method.score(batch, RULES["group"])
        same(score.base, expected)
    same(method.shaped_rewards(minus_or_plus_one), method.shaped_rewards(zero_or_one))


@pytest.mark.parametrize("name", [name for name in FACTS if FACTS[name].base is not None])
def test_what_the_deciding_function_cannot_score_is_unscorable_whatever_the_others_say(name):
    for batch in BATCHES:
        rewards_of_others = batch.task_rewards.nan_to_num(0.5)
        changed = replace(batch, task_rewards=rewards_of_others, correctness_rewards=batch.task_rewards)
        score = WARM[name].score(batch, RULES["group"])
        same_scores(WARM[name].score(changed, RULES["group"]), score)


# costs of a few tenths, as of a function that counts dollars, with a target of 1.5
FRACTIONS = toy_rollouts(
    rewards=[1, -1, 1, 1, -1, -1, 1, 1],
    lengths=[0.5, 1.5, 2.25, 0.0, 0.5, 0.75, 0.25, 0.125],
    target=1.5,
    num_generations=4,
    limit=math.inf,
)


def check_fractions(method: LengthControl) -> None:
    """What a configuration checks of a cost that is no number of tokens."""
    check_method_supports_cost("tool_calls", counts_tokens=False, method=method)
    check_target(1.5, method, generation_limit=math.inf)


@every_method
def test_fractional_costs_without_a_limit_are_scored_or_refused_in_one_line(name):
    method = method_named(name)
    if name.split(":")[0] in {"l1_exact", "l1_max", "thinkprune", "dler", "cosine", "dapo_overlong", "drpo", "lead"}:
        with pytest.raises(ValueError, match=method.name) as caught:
            check_fractions(method)
        assert "\n" not in str(caught.value)
        return
    check_fractions(method)
    for _ in range(3):
        score = method.score(FRACTIONS, AdvantageRule())
        assert score.shaped.isfinite().all()
        assert score.advantages.isfinite().all()
        method.observe(FRACTIONS)
        method.step()
    json.dumps(method.state_dict(), allow_nan=False)


RELATIVE = ["leash", "leash_predictive", "laconic", "laser", "kimi", "efficient", "gfpo", "grpo_lead", "prime_rl"]
RELATIVE += ["mai", "gr3", "grlc", "hapo", "toggle"]


@pytest.mark.parametrize("name", RELATIVE)
def test_the_unit_of_a_cost_does_not_matter_where_only_ratios_count(name):
    in_dollars = method_named(name)
    in_cents = method_named(name)
    for batch in BATCHES:
        cents = replace(batch, max_completion_length=math.inf)
        dollars = replace(cents, lengths=cents.lengths.double() / 100, target_lengths=cents.target_lengths / 100)
        scores = []
        for method, rollouts in ((in_cents, cents), (in_dollars, dollars)):
            scores.append(method.score(rollouts, AdvantageRule()).shaped)
            method.observe(rollouts)
            method.step()
        torch.testing.assert_close(*scores, rtol=1e-3, atol=1e-3, equal_nan=True)
