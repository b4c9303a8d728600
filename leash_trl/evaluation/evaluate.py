"""Evaluates a model in memory, without files: samples, grades and summarises its answers. The gym uses it."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from datasets import Dataset
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from leash_trl.engines.chat_template import prompt_ids
from leash_trl.engines.eos import eos_token_ids
from leash_trl.engines.shrinking_batch import get_warpers, sample_tokens
from leash_trl.evaluation.intervals import mean_share
from leash_trl.rewards import math_reward


@dataclass(frozen=True)
class GradedSamples:
    """One model's graded completions of P problems, k each.

    Args:
        is_correct (`np.ndarray` of shape `(P, k)`):
            Whether each completion was correct.
        lengths (`np.ndarray` of shape `(P, k)`):
            Lengths in tokens.
        is_truncated (`np.ndarray` of shape `(P, k)`):
            Whether each completion was cut off.
    """

    is_correct: np.ndarray
    lengths: np.ndarray
    is_truncated: np.ndarray


@dataclass(frozen=True)
class Summary:
    """One model's results on one set of problems.

    Args:
        accuracy (`float`):
            avg@k: share of correct completions, averaged over problems, in [0, 1].
        accuracy_interval (`tuple[float, float]`):
            95 % interval of the accuracy over problems, not over completions.
        mean_tokens (`float`), p95_tokens (`float`):
            Completion length in tokens.
        satisfaction_rate (`float`, *optional*):
            Share of completions at or under the target length, if there is one.
        truncated_rate (`float`):
            Share of completions that ended without EOS.
    """

    accuracy: float
    accuracy_interval: tuple[float, float]
    mean_tokens: float
    p95_tokens: float
    satisfaction_rate: float | None
    truncated_rate: float


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
            The model to evaluate.
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
    torch.manual_seed(seed)
    model.eval()
    ends = eos_token_ids(model, tokenizer)
    rows = [prompt for prompt in problems["prompt"] for _ in range(num_samples)]
    completion_ids: list[list[int]] = []
    for start in tqdm(range(0, len(rows), batch_size), desc=description, unit="batch", leave=False):
        ids = prompt_ids(tokenizer, rows[start : start + batch_size])
        completion_ids += sample_tokens(model, ids, ends, tokenizer.pad_token_id, max_new_tokens, get_warpers())
    solutions = [solution for solution in problems["solution"] for _ in range(num_samples)]
    rewards = math_reward([tokenizer.decode(ids, skip_special_tokens=True) for ids in completion_ids], solutions)
    if any(reward is None for reward in rewards):
        raise ValueError(
            "a completion cannot be graded: its solution cannot be read by math-verify, so drop or mend it; or the "
            "grader failed, as its warnings say"
        )
    shape = (len(problems), num_samples)
    return GradedSamples(
        is_correct=np.array(rewards, dtype=float).reshape(shape) > 0,
        lengths=np.array([len(ids) for ids in completion_ids]).reshape(shape),
        is_truncated=np.array([ids[-1] not in ends for ids in completion_ids]).reshape(shape),
    )


def joined_samples(parts: Sequence[GradedSamples]) -> GradedSamples:
    """The completions of several sets of problems, as one set."""
    names = (field.name for field in dataclasses.fields(GradedSamples))
    return GradedSamples(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


def summarize(samples: GradedSamples, target_length: float | None = None) -> Summary:
    """Summary of one model's completions.

    Args:
        samples (`GradedSamples`):
            P problems with k completions each.
        target_length (`float`, *optional*):
            Target in tokens, for the satisfaction rate.
    """
    lengths = samples.lengths
    accuracy = mean_share(samples.is_correct.mean(axis=1))
    return Summary(
        accuracy=accuracy.value,
        accuracy_interval=(accuracy.low, accuracy.high),
        mean_tokens=float(lengths.mean()),
        p95_tokens=float(np.quantile(lengths, 0.95)),
        satisfaction_rate=float((lengths <= target_length).mean()) if target_length is not None else None,
        truncated_rate=float(samples.is_truncated.mean()),
    )
