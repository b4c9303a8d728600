"""Checks before training whether a method can have any effect with the settings of the run."""

import copy
import math
from dataclasses import replace

import torch

from leash_trl.length_control.method import AdvantageRule, LengthControl, Rollouts
from leash_trl.length_control.rollouts import joined


MOST_UPDATES = 512  # dual steps to simulate; a method without effect until then is taken to have none
LONGEST = 65536  # tokens; the longest simulated completion if there is no generation limit
GROUPS = 8  # simulated groups of each kind, enough for many different lengths


def no_effect_problem(
    method: LengthControl, target_length: float | None, generation_limit: float, num_generations: int
) -> str | None:
    """Returns in one line why a method has no effect in a run, or `None` if it has one.

    A copy of the method scores simulated groups whose lengths range from 1 token to the limit, and the same groups
    with their lengths reversed. It then performs dual steps until its scores depend on length, at most `MOST_UPDATES`.
    """
    # the values of data set columns are not known here
    if method.name == "none" or method.columns_read():
        return None
    tried, up = copy.deepcopy(method), _batch(method, target_length, generation_limit, num_generations)
    down = replace(up, lengths=up.by_group(up.lengths).flip(1).flatten())
    for update in range(MOST_UPDATES + 1):
        cap = tried.generation_cap(target_length)
        if tried.prompt_suffix(target_length, generation_limit) or (cap is not None and cap < generation_limit):
            return None
        # states change slowly, so it is enough to score at updates 0, 1, 2, 4, 8, ...
        is_power_of_two = update.bit_count() <= 1
        if is_power_of_two:
            one, other = (vars(tried.score(rollouts, AdvantageRule())) for rollouts in (up, down))
            if not all(torch.equal(one[name], other[name]) for name in ("shaped", "advantages")):
                return None
        # every second batch has only groups whose answers are all correct, for penalties that grow with accuracy
        num_groups = GROUPS if update % 2 else 3 * GROUPS
        tried.observe(joined([up], torch.arange(num_groups * num_generations)))
        tried.step()
    run = f"target_length={target_length}, num_generations={num_generations} and at most {generation_limit} tokens"
    return f"length_control is {method.name!r}, but with {run} it has no effect on length"


def _batch(method: LengthControl, target_length: float | None, limit: float, num_generations: int) -> Rollouts:
    """Returns groups with all, half or one of the answers correct, whose lengths increase in equal steps."""
    most = int(min(limit, LONGEST))
    lengths_PG = torch.linspace(1, most, GROUPS * num_generations).round().long().view(-1, GROUPS).T
    lengths = lengths_PG.repeat(3, 1).flatten()
    rewards_PG = torch.ones(3 * GROUPS, num_generations, dtype=torch.float64)
    rewards_PG[GROUPS : 2 * GROUPS, ::2] = rewards_PG[2 * GROUPS :, 1:] = -1.0
    target = method.target_for(0, target_length)
    targets = torch.full(lengths.shape, math.nan if target is None else target, dtype=torch.float64)
    questions = torch.arange(len(lengths)) // num_generations
    return Rollouts(rewards_PG.flatten(), lengths, targets, lengths == 0, questions, num_generations, limit)
