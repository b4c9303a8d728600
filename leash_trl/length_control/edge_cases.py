"""Batches of rollouts with the edge cases that a training meets sooner or later, on which a method is checked."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import torch

from leash_trl.length_control.method import LengthControl
from leash_trl.length_control.rollouts import Rollouts, selected
from leash_trl.length_control.targets import TARGET_COLUMN


NUM_PROMPTS = 4
MIXED = "right and wrong answers"
RIGHT = "right answers only"
WRONG = "wrong answers only"
SOME_WITHOUT_REWARD = "answers of which some have no reward"


def edge_cases(
    method: LengthControl,
    target_length: int,
    max_completion_length: int,
    num_generations: int,
    columns: Mapping[str, Sequence[Any]],
) -> dict[str, Rollouts]:
    """Returns batches by what they hold, in words that fit into a message; for the arguments, see
    [`~leash_trl.length_control.check_length_control`]."""
    size = NUM_PROMPTS * num_generations
    prompt_of_row = [row // num_generations for row in range(size)]
    targets = [_target(method, prompt, target_length) for prompt in prompt_of_row]
    values_by_column: dict[str, list[Any]] = {}
    for name, values in columns.items():
        values_by_column[name] = [values[prompt % len(values)] for prompt in prompt_of_row]
    if TARGET_COLUMN in method.columns_read():
        values_by_column[TARGET_COLUMN] = targets

    random = Random(0)
    longest = min(2 * target_length, max_completion_length)
    lengths = torch.tensor([random.randint(1, longest) for _ in range(size)])
    lengths[0] = max_completion_length
    rows = torch.arange(size)
    rewards = 2.0 * (rows % 2).double() - 1.0  # -1 and 1 in turn
    mixed = Rollouts(
        task_rewards=rewards,
        lengths=lengths,
        target_lengths=_as_lengths(targets),
        is_truncated=lengths == max_completion_length,
        questions=torch.tensor(prompt_of_row),
        num_generations=num_generations,
        max_completion_length=max_completion_length,
        columns=values_by_column,
    )
    has_no_reward = (rows < num_generations) | (rows % 3 == 0)  # a whole prompt, and some of the others
    cases = {
        MIXED: mixed,
        RIGHT: replace(mixed, task_rewards=torch.ones_like(rewards)),
        WRONG: replace(mixed, task_rewards=-torch.ones_like(rewards)),
        "a single prompt": selected(mixed, rows[:num_generations]),
        "answers of equal length": _with_length(mixed, target_length),
        "answers that are all truncated": _with_length(mixed, max_completion_length),
        "answers of 0 tokens": _with_length(mixed, 0),  # as without thinking
        SOME_WITHOUT_REWARD: replace(mixed, task_rewards=rewards.masked_fill(has_no_reward, torch.nan)),
        "answers without any reward": replace(mixed, task_rewards=torch.full_like(rewards, torch.nan)),
    }
    if method.target_use == "optional":
        of_method = [method.target_for(prompt, None) for prompt in prompt_of_row]
        cases["prompts without a target of the run"] = replace(mixed, target_lengths=_as_lengths(of_method))
    return cases


def _target(method: LengthControl, prompt: int, target_length: int) -> float | None:
    """Returns the target of a prompt in tokens: of every second one, the data set has it."""
    if method.target_use == "none":
        return None
    return target_length / 2 if prompt % 2 else method.target_for(prompt, target_length)


def _as_lengths(targets: Sequence[float | None]) -> torch.Tensor:
    """Returns targets in tokens as rollouts have them, NaN for none."""
    return torch.tensor([torch.nan if target is None else target for target in targets], dtype=torch.float64)


def _with_length(rollouts: Rollouts, length: int) -> Rollouts:
    lengths = torch.full_like(rollouts.lengths, length)
    return replace(rollouts, lengths=lengths, is_truncated=lengths == rollouts.max_completion_length)
