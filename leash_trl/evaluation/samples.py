"""Reads samples on disk: a run's folder has `run.json` and, for each data set, `samples/NAME.jsonl`, a line a problem.

[`~leash_trl.evaluation.sampling_run`] writes the lines, and [`~leash_trl.evaluation.resuming`] repairs the damage of a
kill or a disk.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO


if TYPE_CHECKING:
    from leash_trl.rewards.grading import Grade

RUN_FILE = "run.json"
SAMPLES_FOLDER = "samples"
REMEDY = "run the command that made this folder again: it sets damaged lines aside and samples their rows again"


@dataclass(frozen=True)
class SampledCompletion:
    """One completion of one problem.

    Args:
        seed (`int`):
            Seed it was sampled with.
        text (`str`):
            The model's text without special tokens.
        num_tokens (`int`):
            Length in tokens, EOS included.
        num_generated_tokens (`int`):
            Tokens computed to get it; more than `num_tokens` if a decoding strategy makes trials.
        finish_reason (`str`):
            `"eos"`, or `"length"` if the limit cut it off.
        answer (`str`, *optional*):
            The answer it commits to; `None` if it gives none.
        is_correct (`bool`, *optional*):
            Whether the answer is equivalent to the solution; `None` if it could not be graded, and then it counts as
            neither correct nor wrong.
        grader_failure (`str`, *optional*):
            Why the comparison did not end, if it did not; then the answer is wrong or, if it is not to blame, not
            graded.
    """

    seed: int
    text: str
    num_tokens: int
    num_generated_tokens: int
    finish_reason: str
    answer: str | None
    is_correct: bool | None
    grader_failure: str | None = None

    def graded(self, verdict: "Grade") -> "SampledCompletion":
        """The completion with another verdict on the same answer."""
        return replace(self, is_correct=verdict.is_correct, grader_failure=verdict.failure)


@dataclass(frozen=True)
class ProblemSamples:
    """All completions of one problem.

    Args:
        index (`int`):
            Place of the problem in its data set, from 0.
        id (`str`):
            Name of the problem, unique in its data set.
        solution (`str`):
            Gold answer.
        completions (`tuple[SampledCompletion, ...]` of length k):
            Completions in the order of their seeds.
    """

    index: int
    id: str
    solution: str
    completions: tuple[SampledCompletion, ...]

    def to_json(self) -> str:
        """One line of the file, without its line break."""
        return json.dumps(asdict(self), ensure_ascii=False)


def parse_line(line: bytes) -> ProblemSamples:
    """One problem's samples from one line of a file.

    Raises:
        `ValueError`: If the line is damaged.
    """
    try:
        row = json.loads(line.decode("utf-8"))
        completions = tuple(SampledCompletion(**completion) for completion in row.pop("completions"))
        return ProblemSamples(**row, completions=completions)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"no problem's samples ({type(error).__name__}: {error})") from error


def complete_lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Lines of a file with their numbers from 1, without empty lines and a last line that a kill cut short."""
    for number, line in enumerate(file, 1):
        if line.endswith(b"\n") and line.strip():
            yield number, line


def read_samples(path: str | Path) -> list[ProblemSamples]:
    """All problems of one file, in order; a last line that a kill cut short is left out.

    Args:
        path (`str` or `Path`):
            File of one data set.

    Raises:
        `ValueError`: If any line but the last cannot be read.
    """
    problems = []
    with open(path, "rb") as file:
        for number, line in complete_lines(file):
            try:
                problems.append(parse_line(line))
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}; {REMEDY}") from error
    return problems


def read_run(folder: str | Path) -> dict[str, Any]:
    """The record in a run's folder of model, engine, sampling and versions.

    Raises:
        `ValueError`: If the folder holds no run.
    """
    path = Path(folder) / RUN_FILE
    if not path.is_file():
        raise ValueError(f"{folder} has no {RUN_FILE}, so it is not a folder that leash eval or leash filter wrote")
    run: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return run


def samples_path(folder: str | Path, name: str) -> Path:
    """File of one data set's samples in a run's folder."""
    return Path(folder) / SAMPLES_FOLDER / f"{name}.jsonl"


def load_samples(folder: str | Path) -> tuple[dict[str, Any], dict[str, list[ProblemSamples]]]:
    """The record in a run's folder, and its samples by data set, checked against each other.

    Args:
        folder (`str` or `Path`):
            Folder that `leash eval` or `leash filter` wrote.

    Raises:
        `ValueError`: If the folder holds no run, the run is not finished, or its samples belong to another run.
    """
    run = read_run(folder)
    samples = {}
    for name, benchmark in run["benchmarks"].items():
        path = samples_path(folder, name)
        samples[name] = read_samples(path) if path.is_file() else []
        _check_samples(f"{folder}, {name}", samples[name], benchmark["num_problems"], run["num_samples"])
    sizes = {name: (len(samples[name]), benchmark["num_problems"]) for name, benchmark in run["benchmarks"].items()}
    if missing := [
        f"{name} has {size} of {expected} problems" for name, (size, expected) in sizes.items() if size < expected
    ]:
        raise ValueError(
            f"{folder} is not finished: {', '.join(missing)}; run the command that began it again, it goes on there"
        )
    return run, samples


def _check_samples(place: str, problems: Sequence[ProblemSamples], num_expected: int, num_samples: int) -> None:
    ids = {problem.id for problem in problems}
    if len(ids) < len(problems):
        raise ValueError(f"{place}: {len(problems)} problems have {len(ids)} ids; {REMEDY}")
    if len(problems) > num_expected:
        raise ValueError(f"{place}: {len(problems)} problems, but the run says {num_expected}; mend its run.json")
    for problem in problems:
        if len(problem.completions) != num_samples:
            raise ValueError(
                f"{place}: problem {problem.id!r} has {len(problem.completions)} completions, but the run's "
                f"num_samples is {num_samples}; {REMEDY}"
            )
