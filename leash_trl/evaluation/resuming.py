"""Continues a stopped or damaged run: counts its samples, repairs its files, grades failed completions again."""

import json
import logging
import os
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datasets import Dataset

from leash_trl.evaluation.samples import (
    RUN_FILE,
    SAMPLES_FOLDER,
    ProblemSamples,
    complete_lines,
    parse_line,
    read_run,
    read_samples,
    samples_path,
)
from leash_trl.files import write_whole
from leash_trl.rewards.grading import grade


if TYPE_CHECKING:
    from leash_trl.evaluation.sampling_run import SamplingPlan

logger = logging.getLogger(__name__)

SHOWN = 3  # damaged lines


def check_run(folder: Path, run: dict[str, Any], is_complete: bool) -> None:
    """Writes the settings of a run into its folder, unless the samples there belong to another run.

    The label may change at any time, and installed versions when nothing is left to sample: then the record keeps the
    versions that made the samples.

    Raises:
        `ValueError`: If the folder holds another run (the message says what differs), or samples of an unknown one.
    """
    if any(samples.stat().st_size for samples in (folder / SAMPLES_FOLDER).glob("*.jsonl")):
        old = read_run(folder)
        if is_complete:
            run = {**run, "versions": old.get("versions")}
        changes = [
            f"{key}: {json.dumps(old.get(key))} there, {json.dumps(run.get(key))} now"
            for key in {**run, **old}
            if key != "label" and old.get(key) != run.get(key)
        ]
        if changes:
            raise ValueError(
                f"{folder} holds another run ({'; '.join(changes)}); choose another --output_dir or remove the folder"
            )
    write_whole(folder / RUN_FILE, json.dumps(run, indent=2, ensure_ascii=False) + "\n")


def prepare_folder(
    folder: Path, run: dict[str, Any], problems: Mapping[str, Dataset], plan: "SamplingPlan"
) -> dict[str, Dataset]:
    """The data sets with problems left to sample, after what the folder holds was checked, mended and graded again.

    Raises:
        `ValueError`: As [`check_run`] and [`mend_samples`].
    """
    todo = {name: rows for name, rows in problems.items() if num_done(folder, name, rows, plan) < len(rows)}
    check_run(folder, run, is_complete=not todo)
    for name, rows in problems.items():
        mend_samples(folder, name, rows, plan)
        grade_again(folder, name, plan)
    return todo


def _stored(path: Path, problems: Dataset, num_samples: int) -> tuple[dict[int, bytes], dict[int, tuple[str, bytes]]]:
    """The lines of a data set's problems by index, and all other lines by number, with the reason."""
    rows: dict[int, bytes] = {}
    damaged: dict[int, tuple[str, bytes]] = {}
    if not path.is_file():
        return rows, damaged
    ids = list(problems["id"])
    with open(path, "rb") as file:
        for number, line in complete_lines(file):
            try:
                problem = parse_line(line)
                _check_row(problem, ids, num_samples, rows)
                rows[problem.index] = line
            except ValueError as error:
                damaged[number] = (str(error), line)
    return rows, damaged


def _check_row(problem: ProblemSamples, ids: Sequence[str], num_samples: int, rows: Container[int]) -> None:
    if problem.index not in range(len(ids)) or ids[problem.index] != problem.id:
        raise ValueError(f"problem {problem.id!r} is not number {problem.index} of the data set")
    if len(problem.completions) != num_samples:
        raise ValueError(f"{len(problem.completions)} completions instead of {num_samples}")
    if problem.index in rows:
        raise ValueError(f"a copy of problem {problem.id!r}")


def num_done(folder: Path, name: str, problems: Dataset, plan: "SamplingPlan") -> int:
    """Number of problems of a data set whose samples are in a run's folder; changes nothing there."""
    rows, _ = _stored(samples_path(folder, name), problems, plan.num_samples)
    return len(rows)


def mend_samples(folder: Path, name: str, problems: Dataset, plan: "SamplingPlan") -> set[int]:
    """Repairs and sorts a file of samples, and returns the indices of the problems in it.

    Damaged and repeated lines go to a file beside it, with a warning. Empty lines and an end that a kill cut short are
    dropped. A kill leaves the complete old or the complete new file.

    Args:
        folder (`Path`), name (`str`), problems (`Dataset`), plan (`SamplingPlan`):
            As in [`~leash_trl.evaluation.sampling_run.sample_problems`].

    Raises:
        `ValueError`: If the file belongs to other problems.
    """
    path = samples_path(folder, name)
    rows, damaged = _stored(path, problems, plan.num_samples)
    if not rows and any(_is_sample(line) for _, line in damaged.values()):
        raise ValueError(
            f"{path} holds the samples of other problems; choose another --output_dir or remove the folder"
        )
    if damaged:
        _set_aside(path, damaged)
    in_order = sorted(rows)
    if path.is_file() and (list(rows) != in_order or path.stat().st_size != sum(map(len, rows.values()))):
        write_whole(path, b"".join(rows[index] for index in in_order))
    return set(rows)


def _is_sample(line: bytes) -> bool:
    try:
        parse_line(line)
    except ValueError:
        return False
    return True


def _set_aside(path: Path, damaged: dict[int, tuple[str, bytes]]) -> None:
    aside = path.with_name(f"{path.stem}.damaged.jsonl")
    with open(aside, "ab") as file:
        file.writelines(line for _, line in damaged.values())
        file.flush()
        os.fsync(file.fileno())
    shown = [f"line {number} ({why})" for number, (why, _) in list(damaged.items())[:SHOWN]]
    shown += [f"{len(damaged) - SHOWN} more"] if len(damaged) > SHOWN else []
    logger.warning(
        "%s: %s: damaged, moved to %s; rows that are missing now are sampled again", path, ", ".join(shown), aside.name
    )


def grade_again(folder: Path, name: str, plan: "SamplingPlan") -> None:
    """Grades again, from their texts, the completions of a repaired file that could not be graded.

    Args:
        folder (`Path`), name (`str`), plan (`SamplingPlan`):
            As in [`~leash_trl.evaluation.sampling_run.sample_problems`].
    """
    path = samples_path(folder, name)
    problems = read_samples(path) if path.is_file() else []
    lost = [(c.text, problem.solution) for problem in problems for c in problem.completions if c.is_correct is None]
    if not lost:
        return
    # such a completion has an answer, so its thinking is closed, and whether the prompt opened it does not matter
    verdicts = grade([text for text, _ in lost], [solution for _, solution in lost], plan.lenient)
    waiting = iter(verdicts)
    regraded = [
        replace(
            problem,
            completions=tuple(c if c.is_correct is not None else c.graded(next(waiting)) for c in problem.completions),
        )
        for problem in problems
    ]
    write_whole(path, "".join(f"{problem.to_json()}\n" for problem in regraded))
    left = sum(verdict.is_correct is None for verdict in verdicts)
    logger.warning("%s: %d completions graded again, %d still could not be", path, len(lost) - left, left)
