"""Finds out before training whether a method can act at all on completions as the run will have them."""

import copy
import math
from dataclasses import replace

import torch

from leash_trl.length_control.method import AdvantageRule, LengthControl, Rollouts
from leash_trl.length_control.rollouts import joined


MOST_UPDATES = 512  # after which a state that is still without effect is taken to stay so
LONGEST = 65536  # tokens, where there is no generation limit
GROUPS = 8  # of each kind, so that lengths are close to each other


def cannot_act(
    method: LengthControl, target_length: float | None, generation_limit: float, num_generations: int
) -> str | None:
    """Why a method changes nothing in a run, in one line; `None` if it acts.

    A copy of the method scores groups whose lengths go from 1 token to the limit, and the same groups with their
    lengths the other way round; it observes them until something depends on length or `MOST_UPDATES` are done.

    Raises:
        `ValueError`: If a checkpoint would not give the method's state back as it was.
    """
    # what values a column holds is not known here
    if method.name == "none" or method.columns_read():
        return None
    tried, up = copy.deepcopy(method), _batch(method, target_length, generation_limit, num_generations)
    down = replace(up, lengths=up.by_group(up.lengths).flip(1).flatten())
    for update in range(MOST_UPDATES + 1):
        cap = tried.generation_cap(target_length)
        if tried.prompt_suffix(target_length, generation_limit) or (cap is not None and cap < generation_limit):
            return None
        # a state that grows slowly need not be asked every time
        if update & (update - 1) == 0 and _heeds_length(tried, up, down):
            return None
        # in every second batch all are correct, which raises a price that follows accuracy
        tried.observe(joined([up], torch.arange((1 if update % 2 else 3) * GROUPS * num_generations)))
        tried.step()
        for name, saved in tried.state_dict().items() if update == 0 else ():
            kept = getattr(tried, name)
            if isinstance(saved, dict) and isinstance(kept, dict) and kept.keys() != saved.keys():
                raise ValueError(f"{name} of {method.name} has the keys {[*kept]}, but JSON has text keys; use text")
    run = f"target_length={target_length}, num_generations={num_generations} and at most {generation_limit} tokens"
    return f"length_control is {method.name!r}, but with {run} nothing it does depends on length"


def _heeds_length(method: LengthControl, up: Rollouts, down: Rollouts) -> bool:
    """Whether a method scores the same answers apart by their lengths."""
    one, other = (vars(method.score(rollouts, AdvantageRule())) for rollouts in (up, down))
    return not all(torch.equal(one[name], other[name]) for name in ("shaped", "advantages"))


def _batch(method: LengthControl, target_length: float | None, limit: float, num_generations: int) -> Rollouts:
    """Groups of which all, half or one are correct, and in which lengths go up in equal steps."""
    most = int(min(limit, LONGEST))
    lengths_PG = torch.linspace(1, most, GROUPS * num_generations).round().long().view(-1, GROUPS).T
    lengths = lengths_PG.repeat(3, 1).flatten()
    rewards_PG = torch.ones(3 * GROUPS, num_generations, dtype=torch.float64)
    rewards_PG[GROUPS : 2 * GROUPS, ::2] = rewards_PG[2 * GROUPS :, 1:] = -1.0
    target = method.target_for(0, target_length)
    targets = torch.full(lengths.shape, math.nan if target is None else target, dtype=torch.float64)
    questions = torch.arange(len(lengths)) // num_generations
    return Rollouts(rewards_PG.flatten(), lengths, targets, lengths == 0, questions, num_generations, limit)
