"""Checks before training whether a method can have any effect with the settings of the run."""

import copy
import math
from dataclasses import replace

import torch

from leash_trl.length_control.method import AdvantageRule, LengthControl, Rollouts
from leash_trl.length_control.rollouts import selected


# Dual steps to simulate; a method without effect until then is taken to have none. One step would not do: a warm-up,
# the next stage of a schedule, or a penalty that waits for high accuracy comes later.
MOST_UPDATES = 512
LONGEST = 65536  # tokens; the longest simulated completion if there is no generation limit
GROUPS = 8  # simulated groups of each kind, enough for many different lengths


def no_effect_warning(
    method: LengthControl, target_length: float | None, generation_limit: float, num_generations: int
) -> str | None:
    """Returns in one line why a method has no effect in a run, or `None` if it has one.

    A copy of the method scores simulated groups whose lengths range from 1 token to the limit, and the same groups
    with their lengths reversed. It then performs dual steps until its scores depend on length, at most `MOST_UPDATES`.
    """
    # the values of data set columns are not known here
    if method.name == "none" or method.columns_read():
        return None
    tried = copy.deepcopy(method)
    increasing = _simulated_groups(method, target_length, generation_limit, num_generations)
    reversed_lengths = increasing.by_group(increasing.lengths).flip(1).flatten()
    decreasing = replace(increasing, lengths=reversed_lengths)
    # Batches for the dual steps: all groups, and every second time only those whose answers are all correct, since
    # some methods raise their penalty only while accuracy is high
    all_groups = increasing
    correct_groups = selected(increasing, torch.arange(GROUPS * num_generations))

    for update in range(MOST_UPDATES + 1):
        if _acts_on_generation(tried, target_length, generation_limit):
            return None
        # states change slowly, so it is enough to score at updates 0, 1, 2, 4, 8, ...
        is_power_of_two = update.bit_count() <= 1
        if is_power_of_two and _scores_differ(tried, increasing, decreasing):
            return None
        tried.observe(correct_groups if update % 2 else all_groups)
        tried.step()
    return (
        f"length_control is {method.name!r}, but with target_length={target_length}, "
        f"num_generations={num_generations} and at most {generation_limit} tokens it has no effect on length"
    )


def _acts_on_generation(method: LengthControl, target_length: float | None, generation_limit: float) -> bool:
    """Returns whether the method writes into prompts or lowers the generation limit."""
    cap = method.generation_cap(target_length)
    lowers_limit = cap is not None and cap < generation_limit
    return lowers_limit or bool(method.prompt_suffix(target_length, generation_limit))


def _scores_differ(method: LengthControl, batch: Rollouts, other: Rollouts) -> bool:
    """Returns whether the method gives two batches, which differ only in lengths, different rewards or advantages."""
    score = method.score(batch, AdvantageRule())
    other_score = method.score(other, AdvantageRule())
    has_equal_rewards = torch.equal(score.shaped, other_score.shaped)
    has_equal_advantages = torch.equal(score.advantages, other_score.advantages)
    return not (has_equal_rewards and has_equal_advantages)


def _simulated_groups(
    method: LengthControl, target_length: float | None, limit: float, num_generations: int
) -> Rollouts:
    """Returns groups with all, half or one of the answers correct, in this order, whose lengths increase in equal
    steps."""
    longest = int(min(limit, LONGEST))
    # neighbours in length go to different groups, so that each group has short and long completions
    lengths_GP = torch.linspace(1, longest, num_generations * GROUPS).round().long().view(num_generations, GROUPS)
    lengths_N = lengths_GP.T.repeat(3, 1).flatten()

    all_correct_PG = torch.ones(GROUPS, num_generations, dtype=torch.float64)
    half_correct_PG = all_correct_PG.clone()
    half_correct_PG[:, ::2] = -1.0
    one_correct_PG = all_correct_PG.clone()
    one_correct_PG[:, 1:] = -1.0
    rewards_N = torch.cat([all_correct_PG, half_correct_PG, one_correct_PG]).flatten()

    target = method.target_for(0, target_length)
    return Rollouts(
        task_rewards=rewards_N,
        lengths=lengths_N,
        target_lengths=torch.full(lengths_N.shape, math.nan if target is None else target, dtype=torch.float64),
        is_truncated=torch.zeros(lengths_N.shape, dtype=torch.bool),
        questions=torch.arange(len(lengths_N)) // num_generations,
        num_generations=num_generations,
        max_completion_length=limit,
    )
