"""Laws of every method in `METHODS`; what is particular to each stands in `method_facts.py`."""

import copy
import json
import math
from dataclasses import fields, replace
from random import Random

import pytest
import torch
from method_facts import BATCHES, FACTS, LIMIT, WARM, batch_of, method_named, pairs, warm

from leash_trl.length_control.advantages import AdvantageRule
from leash_trl.length_control.method import LengthControl
from leash_trl.length_control.methods import METHODS
from leash_trl.length_control.rollouts import Score, joined


EPSILON = 1e-8
RULES = {scale: AdvantageRule(scale, EPSILON) for scale in ("group", "batch", "none")}
every_method = pytest.mark.parametrize("name", FACTS)


def same(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-7, atol=1e-7, equal_nan=True)


def same_scores(actual: Score, expected: Score) -> None:
    for field in fields(Score):
        if (value := getattr(expected, field.name)) is None:
            assert getattr(actual, field.name) is None
        else:
            same(getattr(actual, field.name), value)


def test_the_table_has_every_method_and_no_other():
    assert {name.split(":")[0] for name in FACTS} == METHODS.keys(), "a line in FACTS says what is particular to it"
    assert {name: method.name for name, method in METHODS.items()} == {name: name for name in METHODS}


@every_method
def test_the_order_of_completions_and_of_prompts_does_not_matter(name):
    method = WARM[name]
    for seed, batch in enumerate(BATCHES):
        rows = batch.by_group(torch.arange(len(batch.lengths))).tolist()
        random = Random(seed)
        if not FACTS[name].breaks_ties_by_order or len(set(batch.lengths.tolist())) == len(batch.lengths):
            rows = [random.sample(row, len(row)) for row in rows]
        order = torch.tensor([i for row in random.sample(rows, len(rows)) for i in row])
        for rule in RULES.values():
            score = method.score(batch, rule)
            same_scores(method.score(joined([batch], order), rule), joined([score], order))


@every_method
def test_scores_are_float64_finite_and_bounded_and_unscorable_completions_have_none(name):
    method, facts = WARM[name], FACTS[name]
    for batch in BATCHES:
        for rule in RULES.values():
            score, scorable = method.score(batch, rule), batch.is_scorable
            for rewards in (score.base, score.penalty, score.shaped):
                assert rewards.dtype == torch.float64
                assert torch.equal(torch.isnan(rewards), ~scorable) or rewards is score.penalty
            assert torch.equal(score.shaped.nan_to_num(7.0), method.shape(batch).nan_to_num(7.0))
            assert (score.shaped[scorable] >= facts.bounds[0] - 1e-9).all()
            assert (score.shaped[scorable] <= facts.bounds[1] + 1e-9).all()
            assert score.advantages.dtype == torch.float64
            assert score.advantages.isfinite().all()
            assert (score.advantages[~scorable] == 0).all()


@every_method
def test_advantages_of_a_prompt_sum_to_zero(name):
    method = WARM[name]
    for batch in BATCHES:
        groups = torch.zeros(len(batch.lengths) // batch.num_generations, dtype=torch.float64)
        for rule in RULES.values() if FACTS[name].zero_mean else ():
            same(batch.by_group(method.score(batch, rule).advantages).sum(dim=1), groups)


@pytest.mark.parametrize("name", ["dler", "drpo", "gr3", "grpo_lead", "lead", "prime_rl"])
def test_scale_rewards_has_no_effect_where_the_docstring_says_so(name):
    for batch in BATCHES:
        group, *others = (WARM[name].score(batch, RULES[scale]).advantages for scale in ("group", "batch", "none"))
        assert all(torch.equal(each, group) for each in others)


@every_method
def test_no_constant_passes_through_float32(name):
    usual = torch.get_default_dtype()
    for batch in BATCHES[:8]:
        score = WARM[name].score(batch, RULES["group"])
        torch.set_default_dtype(torch.float64)
        try:
            again = WARM[name].score(batch, RULES["group"])
        finally:
            torch.set_default_dtype(usual)
        assert torch.equal(again.shaped.nan_to_num(7.0), score.shaped.nan_to_num(7.0))
        assert torch.equal(again.advantages, score.advantages)


@every_method
def test_the_length_of_an_unscorable_completion_changes_nothing_for_the_others(name):
    if FACTS[name].sees_unscorable:
        return
    for seed, batch in enumerate(BATCHES):
        lengths = batch.lengths.where(batch.is_scorable, Random(seed).randint(1, LIMIT))
        for rule in RULES.values():
            score, other = (WARM[name].score(each, rule) for each in (batch, replace(batch, lengths=lengths)))
            same(other.shaped, score.shaped)
            same(other.advantages, score.advantages)


# Task rewards of a right and a wrong answer; below zero, a factor smaller than 1 raises a reward.
REWARD_SCALES = {"0 or 1": (1.0, 0.0), "-1 or 1": (1.0, -1.0), "-2 or 0.5": (0.5, -2.0), "below zero": (-0.5, -2.0)}


@pytest.mark.parametrize("scale", REWARD_SCALES)
@every_method
def test_answers_feel_their_length_only_as_the_table_says(name, scale):
    """Right ones never gain from it unless they can be too short; wrong ones, at -1, do not, pay, or may gain."""
    facts, (right, wrong) = FACTS[name], REWARD_SCALES[scale]
    for batch in BATCHES:
        rewards = torch.where(batch.is_correct, right, wrong).double().where(batch.is_scorable, torch.nan)
        scaled = replace(batch, task_rewards=rewards, correctness_rewards=batch.task_rewards)
        shaped = WARM[name].shape(scaled).tolist()
        if facts.right_never_gains:
            assert all(shaped[long] <= shaped[short] + 1e-12 for short, long in pairs(batch, batch.is_correct))
        for short, long in pairs(batch, batch.is_scorable & ~batch.is_correct & ~batch.is_truncated):
            assert facts.wrong == "may gain" or shaped[long] <= shaped[short] + 1e-12
            assert facts.wrong != "unmoved" or shaped[long] == shaped[short] or wrong > -1
    shaped = WARM[name].shape(batch_of([1, -1, -1, 1], [40, 20, 190, 60], [50.0] * 4, 4))
    assert (shaped[2] != shaped[1]) == (facts.wrong != "unmoved")
    assert (shaped[2] < shaped[1]) or facts.wrong != "pays"


@every_method
def test_a_prompt_is_shaped_as_it_is_alone_unless_targets_are_chosen_from_all(name):
    for batch in BATCHES if not name.startswith("laser_d") else ():
        groups = torch.arange(len(batch.lengths)).split(batch.num_generations)
        alone = [WARM[name].score(joined([batch], rows), RULES["none"]) for rows in groups]
        together = WARM[name].score(batch, RULES["none"])
        same(together.shaped, torch.cat([score.shaped for score in alone]))
        if WARM[name].own_advantages in (False, "group"):
            same(together.advantages, torch.cat([score.advantages for score in alone]))


@every_method
def test_a_single_completion_is_shaped_as_in_its_group_unless_the_method_needs_the_group(name):
    method, differs = WARM[name], False
    for batch in BATCHES:
        rows = torch.arange(len(batch.lengths)).split(1)
        alone = torch.cat([method.shape(replace(joined([batch], row), num_generations=1)) for row in rows])
        differs |= not torch.equal(alone.nan_to_num(7.0), method.shape(batch).nan_to_num(7.0))
    # toggle looks at the group, but does not always change what it sees there
    assert differs == method.needs_group or method.name == "toggle"


def assert_alike(name, changed):
    """A method scores other batches as it scores `BATCHES`, and they move its state alike."""
    method, twin = warm(method_named(name)), warm(method_named(name))
    for batch in BATCHES:
        same_scores(twin.score(changed(batch), RULES["group"]), method.score(batch, RULES["group"]))
        for each, seen in ((method, batch), (twin, changed(batch))):
            each.observe(seen)
            each.step()
        assert method.state_dict() == twin.state_dict()


@pytest.mark.parametrize("name", [name for name in FACTS if not method_named(name).uses_correctness])
def test_a_method_that_does_not_ask_what_is_correct_does_not_read_it(name):
    assert_alike(name, lambda batch: replace(batch, correctness_rewards=-batch.task_rewards))


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.target_use == "none"])
def test_a_method_without_a_target_is_the_same_with_any(name):
    assert_alike(name, lambda batch: replace(batch, target_lengths=7 * batch.target_lengths))


def with_bonus(batch):
    return replace(
        batch, correctness_rewards=batch.task_rewards, task_rewards=batch.task_rewards + batch.lengths / 100
    )


@pytest.mark.parametrize("name", [name for name in FACTS if FACTS[name].base is None])
def test_a_method_of_the_task_rewards_hears_every_function(name):
    batch = batch_of([1, -1, -1, 1, math.nan, -1], [10, 20, 30, 40, 50, 60], [50.0] * 6, 3)
    assert LengthControl.reward_scale_problem(method_named(name), with_bonus(batch)) is None


@pytest.mark.parametrize("name", [name for name in FACTS if FACTS[name].base is not None])
def test_a_method_with_a_scale_of_its_own_asks_only_what_is_correct(name):
    method, (right, wrong) = method_named(name), FACTS[name].base
    first = batch_of([1, 0, 0, 1, math.nan, 0], [10, 20, 30, 40, 50, 60], [50.0] * 6, 3)
    second = replace(first, task_rewards=2 * first.task_rewards - 1)
    expected = torch.tensor([right, wrong, wrong, right, math.nan, wrong], dtype=torch.float64)
    for batch in (first, second):
        same(method.score(batch, RULES["group"]).base, expected)
        assert method.reward_scale_problem(batch) is None
    assert "\n" not in method.reward_scale_problem(with_bonus(second))
    assert method.reward_scale_problem(replace(second, correctness_rewards=second.task_rewards / 2)) is None
    same(method.shape(second), method.shape(first))
    # what the deciding function cannot score is unscorable, whatever the others say
    assert_alike(
        name, lambda b: replace(b, task_rewards=b.task_rewards.nan_to_num(0.5), correctness_rewards=b.task_rewards)
    )


@every_method
def test_looking_at_a_batch_moves_nothing_and_instances_share_nothing(name):
    method, fresh = WARM[name], method_named(name)
    before, untouched = json.dumps(method.state_dict()), json.dumps(fresh.state_dict())
    warm(method_named(name))
    for batch in BATCHES:
        method.score(batch, RULES["group"])
        method.statistics()
        method.generation_cap(80.0)
    assert json.dumps(method.state_dict()) == before
    assert json.dumps(fresh.state_dict()) == untouched
    assert json.dumps(warm(fresh).state_dict()) == before
    held = copy.deepcopy(method)
    saved = held.state_dict()
    warm(held)
    assert json.dumps(saved) == before  # a saved state is a copy


@every_method
def test_a_method_restored_from_json_goes_on_as_the_saved_one_does(name):
    for batch in BATCHES[:8]:
        method, restored = copy.deepcopy(WARM[name]), method_named(name)
        method.observe(batch_of([1, 1], [150, 190], [50.0] * 2, 2))  # and the update that should follow was skipped
        saved = json.loads(json.dumps(method.state_dict()))
        restored.load_state_dict(saved)
        for _ in range(2):
            assert restored.state_dict() == method.state_dict()
            assert restored.statistics() == method.statistics()
            assert restored.generation_cap(80.0) == method.generation_cap(80.0)
            same_scores(restored.score(batch, RULES["group"]), method.score(batch, RULES["group"]))
            for each in (method, restored):
                each.observe(batch)
                each.step()
        assert saved == json.loads(json.dumps(saved))


@every_method
def test_a_batch_that_nothing_could_score_is_survived(name):
    method = copy.deepcopy(WARM[name])
    batch = batch_of([math.nan] * 4, [10, 20, 30, LIMIT], [50.0] * 4, 2)
    score = method.score(batch, RULES["group"])
    assert score.shaped.isnan().all()
    assert (score.advantages == 0).all()
    method.observe(batch)
    method.step()
    assert all(math.isfinite(value) for value in method.statistics().values())
