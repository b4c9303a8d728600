"""Samples and grades problems unit by unit; a killed run loses at most one unit and ends with the same file."""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datasets import Dataset

from leash_trl.engines.chat_template import prompt_ids
from leash_trl.engines.engine import MAX_SEED, Engine, Request, SamplingSettings, check_lengths
from leash_trl.evaluation.decoding.strategy import Decoded, DecodingStrategy
from leash_trl.evaluation.resuming import mend_samples
from leash_trl.evaluation.samples import ProblemSamples, SampledCompletion, samples_path
from leash_trl.rewards.answer import opens_thinking
from leash_trl.rewards.grading import grade


@dataclass(frozen=True)
class SamplingPlan:
    """The settings of a sampling run: all that makes two runs on the same problems differ.

    Args:
        sampling ([`~leash_trl.engines.engine.SamplingSettings`]):
            Temperature, top-p, top-k and limit; the defaults are the paper's.
        decoding ([`~leash_trl.evaluation.decoding.strategy.DecodingStrategy`]):
            How a completion is generated.
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

    decoding: DecodingStrategy
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
) -> Iterator[list[ProblemSamples]]:
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
            Folder of the run.

    Yields:
        `list[ProblemSamples]`: The samples added to the file.

    Raises:
        `ValueError`: If the grader cannot read a solution, or the file belongs to other problems.
    """
    path = samples_path(folder, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    done = mend_samples(folder, name, problems, plan)
    with open(path, "a", encoding="utf-8") as file:
        for first in range(0, len(problems), plan.problems_per_unit):
            indices = range(first, min(first + plan.problems_per_unit, len(problems)))
            if done.issuperset(indices):
                continue
            unit = _sample_unit(engine, name, problems, indices, plan)
            missing = [problem for problem in unit if problem.index not in done]
            file.write("".join(f"{problem.to_json()}\n" for problem in missing))
            file.flush()
            os.fsync(file.fileno())
            yield missing
    mend_samples(folder, name, problems, plan)  # rows of the middle may have been written last


def _sample_unit(
    engine: Engine, name: str, problems: Dataset, indices: range, plan: SamplingPlan
) -> list[ProblemSamples]:
    rows = problems[indices.start : indices.stop]
    k = plan.num_samples
    seeds = [completion_seed(plan.seed, name, problem_id, number) for problem_id in rows["id"] for number in range(k)]
    ids_of_rows = prompt_ids(engine.tokenizer, rows["prompt"], **plan.chat_template_kwargs)
    ids_of_completions = [tuple(ids) for ids in ids_of_rows for _ in range(k)]
    decoded = plan.decoding.complete(engine, ids_of_completions, seeds, plan.sampling)
    solutions = [solution for solution in rows["solution"] for _ in range(k)]
    # a template opens thinking in every prompt or in none
    in_thinking = opens_thinking(engine.tokenizer.decode(ids_of_rows[0]))
    completions = _graded(engine, decoded, seeds, solutions, plan.lenient, in_thinking)
    return [
        ProblemSamples(
            index, rows["id"][place], rows["solution"][place], tuple(completions[place * k : place * k + k])
        )
        for place, index in enumerate(indices)
    ]


def _graded(
    engine: Engine,
    decoded: Sequence[Decoded],
    seeds: Sequence[int],
    solutions: Sequence[str],
    lenient: bool,
    in_thinking: bool,
) -> list[SampledCompletion]:
    texts = [engine.tokenizer.decode(completion.token_ids, skip_special_tokens=True) for completion in decoded]
    completions = []
    verdicts = grade(texts, solutions, lenient, in_thinking)
    for completion, text, seed, verdict in zip(decoded, texts, seeds, verdicts, strict=True):
        if verdict.is_correct is None and verdict.failure is None:
            raise ValueError(
                "a solution cannot be read by math-verify; rewards.grading.unreadable_solutions finds them"
            )
        completions.append(
            SampledCompletion(
                seed=seed,
                text=text,
                num_tokens=len(completion.token_ids),
                num_generated_tokens=completion.num_generated_tokens,
                finish_reason="length" if completion.is_truncated else "eos",
                answer=verdict.answer,
                is_correct=verdict.is_correct,
                grader_failure=verdict.failure,
            )
        )
    return completions
