"""What a method receives of a batch, by one rule for `LeashGRPOTrainer` and for rewards in other trainers."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from leash_trl.completions.costs import Cost
from leash_trl.completions.facts import CompletionFacts
from leash_trl.length_control.correctness import CorrectnessRule
from leash_trl.length_control.rollouts import Rollouts, weighted_task_rewards


def rollouts_of_batch(
    rewards_NK: torch.Tensor,
    weights: torch.Tensor,
    correctness: CorrectnessRule,
    cost: Cost,
    *,
    facts: Sequence[CompletionFacts],
    lengths: Sequence[float],
    targets: Sequence[float],
    questions: Sequence[int],
    **others: Any,
) -> Rollouts:
    """Returns completions in the form that methods take.

    Args:
        rewards_NK (`torch.Tensor` of shape `(N, K)`): Rewards of all functions; the last one may be there only to
            decide correctness.
        weights (`torch.Tensor`): Weights of the other functions.
        correctness ([`CorrectnessRule`]): Which of the functions decides correctness.
        cost ([`Cost`]): What lengths count.
        facts, lengths, targets, questions: One per completion: its sizes in tokens; its length and its target in the
            unit of `length_of`, the target NaN for none; and the number of its prompt.
        others: Further fields of [`Rollouts`].
    """
    deciding_rewards_N = None
    if correctness.deciding_column is not None:
        deciding_rewards_N = rewards_NK[:, correctness.deciding_column]
    num_tokens_N = None
    if cost.name != "completion":  # else they are the lengths
        num_tokens_N = torch.tensor([completion.num_tokens for completion in facts])
    return Rollouts(
        task_rewards=weighted_task_rewards(rewards_NK[:, : len(weights)], weights),
        lengths=torch.from_numpy(np.array(lengths)),  # whole numbers as integers, fractions in float64
        target_lengths=torch.tensor(targets, dtype=torch.float64),
        is_truncated=torch.tensor([completion.is_truncated for completion in facts]),
        questions=torch.tensor(questions),
        correctness_rewards=deciding_rewards_N,
        num_tokens=num_tokens_N,
        **others,
    )
