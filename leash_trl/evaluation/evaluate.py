"""Evaluates a model on a data set of problems: sample and grade."""

import numpy as np
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from leash_trl.engines.transformers_engine import sample
from leash_trl.evaluation.summary import GradedSamples
from leash_trl.rewards import math_reward


def evaluate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    problems: Dataset,
    num_samples: int,
    max_new_tokens: int,
    seed: int = 0,
    batch_size: int = 128,
    description: str = "evaluating",
) -> GradedSamples:
    """Graded completions of a model, sampled at temperature 1 as in training; `summarize` makes numbers of them.

    Args:
        model (`PreTrainedModel`), tokenizer (`PreTrainedTokenizerBase`):
            What to evaluate.
        problems (`Dataset`):
            Columns `prompt` and `solution`.
        num_samples (`int`):
            k, completions per problem.
        max_new_tokens (`int`):
            Generation limit in tokens.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the sampling.
        batch_size (`int`, *optional*, defaults to `128`):
            Completions sampled at once.
        description (`str`, *optional*):
            Label of the progress bar.

    Raises:
        `ValueError`: If a completion cannot be graded.
    """
    samples = sample(
        model,
        tokenizer,
        list(problems["prompt"]),
        num_samples=num_samples,
        max_new_tokens=max_new_tokens,
        batch_size=batch_size,
        seed=seed,
        description=description,
    )
    rewards = [
        math_reward([completion.text for completion in completions], [solution] * num_samples)
        for completions, solution in zip(samples, problems["solution"], strict=True)
    ]
    if any(reward is None for row in rewards for reward in row):
        raise ValueError(
            "a completion cannot be graded: its solution cannot be read by math-verify, so drop or mend it; or the "
            "grader failed, as its warnings say"
        )
    return GradedSamples(
        is_correct=np.array(rewards, dtype=float) > 0,
        lengths=np.array([[completion.length for completion in completions] for completions in samples]),
        is_truncated=np.array([[completion.is_truncated for completion in completions] for completions in samples]),
    )
