"""What a method receives of a batch, by one rule for `LeashGRPOTrainer` and for rewards in other trainers."""

import math
from collections.abc import Sequence

import numpy as np
import torch

from leash_trl.completions.costs import Cost
from leash_trl.completions.facts import CompletionFacts
from leash_trl.length_control.correctness import CorrectnessRule
from leash_trl.length_control.rollouts import Rollouts, weighted_task_rewards
from leash_trl.trainer.prompt_rows import PromptFacts, columns_of_rows


def rollouts_of_batch(
    rewards_NK: torch.Tensor,
    weights: torch.Tensor,
    correctness: CorrectnessRule,
    cost: Cost,
    *,
    prompts: Sequence[PromptFacts],
    facts: Sequence[CompletionFacts],
    lengths: Sequence[float],
    num_generations: int,
    generation_limit: float,
) -> Rollouts:
    """Returns completions in the form that methods take.

    Args:
        rewards_NK (`torch.Tensor` of shape `(N, K)`): Rewards of all functions; the last one may be there only to
            decide correctness.
        weights (`torch.Tensor`): Weights of the functions, without one that is there only to decide correctness.
        correctness ([`CorrectnessRule`]): Which of the functions decides correctness.
        cost ([`Cost`]): What lengths count.
        prompts, facts, lengths: One per completion: what is known of its prompt; its sizes in tokens; its length in
            the unit of `length_of`.
        num_generations (`int`): Number of completions per prompt, which stand side by side.
        generation_limit (`float`): Generation limit in tokens; infinite for no limit.
    """
    column = correctness.deciding_column
    num_tokens_N = None
    if cost.name != "completion":  # else `lengths` are these numbers
        num_tokens_N = torch.tensor([completion.num_tokens for completion in facts])
    targets = [math.nan if prompt.target is None else prompt.target for prompt in prompts]
    has_common_target = all(prompt.has_common_target for prompt in prompts)
    return Rollouts(
        task_rewards=weighted_task_rewards(rewards_NK[:, : len(weights)], weights),
        lengths=torch.from_numpy(np.array(lengths)),  # whole numbers as integers, fractions in float64
        target_lengths=torch.tensor(targets, dtype=torch.float64),
        is_truncated=torch.tensor([completion.is_truncated for completion in facts]),
        questions=torch.tensor([prompt.question for prompt in prompts]),
        num_generations=num_generations,
        max_completion_length=generation_limit if cost.counts_tokens else math.inf,
        common_target=targets[0] if has_common_target else math.nan,
        correctness_rewards=None if column is None else rewards_NK[:, column],
        num_tokens=num_tokens_N,
        columns=columns_of_rows([prompt.columns for prompt in prompts], [*prompts[0].columns]),
    )
