"""Samples and grades problems: unit by unit into a run's folder, where a killed run goes on, or in memory."""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from datasets import Dataset
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from leash_trl.engines.chat_template import prompt_ids
from leash_trl.engines.engine import MAX_SEED, Engine, Request, SamplingSettings, check_lengths
from leash_trl.engines.eos import eos_token_ids
from leash_trl.engines.shrinking_batch import get_warpers, sample_tokens
from leash_trl.evaluation.decoding import Decoded, DecodingStrategy, Plain
from leash_trl.evaluation.frame import read_lines, samples_frame, samples_path
from leash_trl.rewards.answer import opens_thinking
from leash_trl.rewards.grading import grade


@dataclass(frozen=True)
class SamplingPlan:
    """The settings of a sampling run: all that makes two runs on the same problems differ.

    Args:
        decoding ([`~leash_trl.evaluation.decoding.DecodingStrategy`], *optional*):
            How a completion is generated; defaults to plain sampling.
        sampling ([`~leash_trl.engines.engine.SamplingSettings`], *optional*):
            Temperature, top-p, top-k and limit; the defaults are the paper's.
        num_samples (`int`, *optional*, defaults to `32`):
            k, completions per problem.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the run. The seed of each completion follows from it, the names of data set and problem, and the
            completion's number.
        batch_size (`int`, *optional*, defaults to `64`):
            Completions to request at once: one unit of work. A killed run loses at most one.
        lenient (`bool`, *optional*, defaults to `False`):
            Whether a completion without box and answer line may be correct.
        chat_template_kwargs (`dict[str, Any]`, *optional*):
            Further values for the chat template, such as `enable_thinking`.

    Raises:
        `ValueError`: If `num_samples` or `batch_size` is not positive, or the seed is negative.
    """

    decoding: DecodingStrategy = field(default_factory=Plain)
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    num_samples: int = 32
    seed: int = 0
    batch_size: int = 64
    lenient: bool = False
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, lowest in (("num_samples", 1), ("batch_size", 1), ("seed", 0)):
            if getattr(self, name) < lowest:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be at least {lowest}")

    @property
    def problems_per_unit(self) -> int:
        """Problems that make one unit of work."""
        return max(1, self.batch_size // self.num_samples)


def completion_seed(seed: int, name: str, problem_id: str, number: int) -> int:
    """Seed of one completion of a data set's problem, the same whatever else is sampled in the run."""
    digest = hashlib.sha256(json.dumps([seed, name, problem_id, number]).encode()).digest()
    return int.from_bytes(digest[:8], "big") & MAX_SEED


def check_prompts(engine: Engine, problems: Dataset, plan: SamplingPlan) -> None:
    """Checks, before anything is sampled, that every prompt leaves room for its completion.

    Raises:
        `ValueError`: If one leaves too little, or is messages and the tokenizer has no chat template.
    """
    for start in range(0, len(problems), 1000):
        rows = problems[start : start + 1000]
        ids_of_rows = prompt_ids(engine.tokenizer, rows["prompt"], **plan.chat_template_kwargs)
        for problem_id, ids in zip(rows["id"], ids_of_rows, strict=True):
            try:
                check_lengths([Request(tuple(ids), 0, plan.sampling.max_new_tokens)], engine.max_length)
            except ValueError as error:
                raise ValueError(f"problem {problem_id}: {error}") from error


def sample_problems(
    engine: Engine, name: str, problems: Dataset, plan: SamplingPlan, folder: Path
) -> Iterator[list[dict[str, Any]]]:
    """Samples, grades and writes the problems of a data set that are not done yet, one unit of work at a time.

    An incomplete unit is sampled again completely, so that its completions equal those of an uninterrupted run; only
    missing lines are written.

    Args:
        engine ([`~leash_trl.engines.engine.Engine`]):
            Model that completes the prompts.
        name (`str`):
            Name of the data set, and so of its file.
        problems (`Dataset`):
            Columns `id`, `prompt` and `solution`.
        plan ([`SamplingPlan`]):
            Settings of the sampling.
        folder (`Path`):
            Folder of the run, as [`~leash_trl.evaluation.resuming.prepare_folder`] left it.

    Yields:
        `list[dict]`: The problems added to the file, as [`~leash_trl.evaluation.frame.read_lines`] reads them.

    Raises:
        `ValueError`: If the grader cannot read a solution.
    """
    path = samples_path(folder, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    size = plan.problems_per_unit
    with open(path, "a+b") as file:
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)  # a line that a kill cut short
        num_done = len(read_lines(path))
        for first in range(num_done // size * size, len(problems), size):
            unit = _sample_unit(engine, name, problems[first : first + size], first, plan)
            missing = unit[max(0, num_done - first) :]
            file.writelines(f"{json.dumps(problem, ensure_ascii=False)}\n".encode() for problem in missing)
            file.flush()
            os.fsync(file.fileno())
            yield missing


def _sample_unit(
    engine: Engine, name: str, rows: dict[str, list[Any]], first: int, plan: SamplingPlan
) -> list[dict[str, Any]]:
    """Lines of one unit, whose first problem has the index `first`."""
    k = plan.num_samples
    seeds = [completion_seed(plan.seed, name, problem_id, number) for problem_id in rows["id"] for number in range(k)]
    ids_of_rows = prompt_ids(engine.tokenizer, rows["prompt"], **plan.chat_template_kwargs)
    decoded = plan.decoding.complete(engine, [ids for ids in ids_of_rows for _ in range(k)], seeds, plan.sampling)
    return _graded_problems(engine.tokenizer, rows, first, ids_of_rows[0], decoded, seeds, plan.lenient)


def _graded_problems(
    tokenizer: PreTrainedTokenizerBase,
    rows: dict[str, list[Any]],
    first: int,
    ids_of_prompt: Sequence[int],
    decoded: Sequence[Decoded],
    seeds: Sequence[int],
    lenient: bool = False,
) -> list[dict[str, Any]]:
    """Problems with their graded completions, k of each, as a file's lines hold them; `first` is the first's index."""
    k = len(decoded) // len(rows["id"])
    texts = [tokenizer.decode(completion.token_ids, skip_special_tokens=True) for completion in decoded]
    solutions = [solution for solution in rows["solution"] for _ in range(k)]
    # a template opens thinking in every prompt or in none
    verdicts = graded(texts, solutions, lenient, opens_thinking(tokenizer.decode(ids_of_prompt)))
    completions = [
        {
            "seed": seed,
            "text": text,
            "num_tokens": len(completion.token_ids),
            "num_generated_tokens": completion.num_generated_tokens,
            "finish_reason": "length" if completion.is_truncated else "eos",
            **verdict,
        }
        for completion, text, seed, verdict in zip(decoded, texts, seeds, verdicts, strict=True)
    ]
    return [
        {
            "index": first + place,
            "id": problem_id,
            "solution": solution,
            "completions": completions[place * k : place * k + k],
        }
        for place, (problem_id, solution) in enumerate(zip(rows["id"], rows["solution"], strict=True))
    ]


def graded(texts: Sequence[str], solutions: Sequence[str], lenient: bool, in_thinking: bool) -> list[dict[str, Any]]:
    """What a completion's record says of its grade: `answer`, `is_correct` and `grader_failure`.

    All that evaluates or filters grades here, as [`~leash_trl.rewards.grading.grade`] does in training.

    Args:
        texts (`Sequence[str]`), solutions (`Sequence[str]`), lenient (`bool`):
            As for `grade`.
        in_thinking (`bool`):
            Whether the prompts opened the thinking, so that a box in a text without `</think>` is no answer.

    Raises:
        `ValueError`: If math-verify cannot read a solution.
    """
    verdicts = grade(texts, solutions, lenient, in_thinking)
    if any(verdict.is_correct is None and verdict.failure is None for verdict in verdicts):
        raise ValueError("a solution cannot be read by math-verify; rewards.grading.unreadable_solutions finds them")
    return [
        {"answer": verdict.answer, "is_correct": verdict.is_correct, "grader_failure": verdict.failure}
        for verdict in verdicts
    ]


def evaluate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    problems: Dataset,
    num_samples: int,
    max_new_tokens: int,
    seed: int = 0,
    batch_size: int = 128,
    description: str = "evaluating",
) -> pd.DataFrame:
    """Graded completions of a model in memory, sampled at temperature 1 as in training.

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
            Seed of the sampling, one for all completions.
        batch_size (`int`, *optional*, defaults to `128`):
            Completions sampled at once.
        description (`str`, *optional*):
            Label of the progress bar, and name of the benchmark.

    Returns:
        `pd.DataFrame`: As [`~leash_trl.evaluation.frame.load_samples`] gives it; a problem's id is its index.

    Raises:
        `ValueError`: If math-verify cannot read a solution.
    """
    torch.manual_seed(seed)
    model.eval()
    ends = eos_token_ids(model, tokenizer)
    prompts = [prompt for prompt in problems["prompt"] for _ in range(num_samples)]
    completions: list[list[int]] = []
    for start in tqdm(range(0, len(prompts), batch_size), desc=description, unit="batch", leave=False):
        ids = prompt_ids(tokenizer, prompts[start : start + batch_size])
        completions += sample_tokens(model, ids, ends, tokenizer.pad_token_id, max_new_tokens, get_warpers())
    rows = {"id": [*map(str, range(len(problems)))], "solution": problems["solution"][:]}
    decoded = [Decoded(ids, len(ids), ids[-1] not in ends) for ids in completions]
    lines = _graded_problems(tokenizer, rows, 0, ids[0], decoded, [seed] * len(decoded))
    return samples_frame({description: lines})
