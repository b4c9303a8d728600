"""Sampled and graded completions on disk: one folder per run, one JSON line per problem."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO


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
            What the model said, special tokens left out.
        num_tokens (`int`):
            Length in tokens, EOS included.
        num_generated_tokens (`int`):
            Tokens computed to get it; more than `num_tokens` where a decoding strategy makes trials.
        finish_reason (`str`):
            `"eos"`, or `"length"` where the limit cut it off.
        answer (`str`, *optional*):
            The answer it commits to; `None` if it gives none.
        is_correct (`bool`, *optional*):
            Whether the answer is equivalent to the solution; `None` if it could not be graded, and then it counts as
            neither right nor wrong.
        grader_failure (`str`, *optional*):
            Why the comparison did not end, if it did not; then the answer is wrong or, where that is not its fault,
            not graded.
    """

    seed: int
    text: str
    num_tokens: int
    num_generated_tokens: int
    finish_reason: str
    answer: str | None
    is_correct: bool | None
    grader_failure: str | None = None


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
    """One problem's samples of one line of a file.

    Raises:
        `ValueError`: If the line is none.
    """
    try:
        row = json.loads(line.decode("utf-8"))
        completions = tuple(SampledCompletion(**completion) for completion in row.pop("completions"))
        return ProblemSamples(**row, completions=completions)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"no problem's samples ({type(error).__name__}: {error})") from error


def whole_lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Lines of a file with their numbers from 1; not the empty ones, nor a last one that a kill cut short."""
    for number, line in enumerate(file, 1):
        if line.endswith(b"\n") and line.strip():
            yield number, line


def iterate_samples(path: str | Path) -> Iterator[ProblemSamples]:
    """Problems of one file, in order, one at a time; a last line that a kill cut short is left out.

    Args:
        path (`str` or `Path`):
            File of one benchmark.

    Raises:
        `ValueError`: If another line than the last cannot be read.
    """
    with open(path, "rb") as file:
        for number, line in whole_lines(file):
            try:
                problem = parse_line(line)
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}; {REMEDY}") from error
            yield problem


def read_samples(path: str | Path) -> list[ProblemSamples]:
    """All problems of one file; see [`iterate_samples`]."""
    return list(iterate_samples(path))


def read_run(folder: str | Path) -> dict[str, Any]:
    """What a run's folder says about model, engine, sampling and versions.

    Raises:
        `ValueError`: If the folder holds no run.
    """
    path = Path(folder) / RUN_FILE
    if not path.is_file():
        raise ValueError(f"{folder} has no {RUN_FILE}, so it is not a folder that leash eval or leash filter wrote")
    run: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return run


def sample_files(folder: str | Path) -> dict[str, Path]:
    """The files of samples in a run's folder by the name of their data set, in the order of the run."""
    names = read_run(folder)["benchmarks"]
    paths = {name: Path(folder) / SAMPLES_FOLDER / f"{name}.jsonl" for name in names}
    return {name: path for name, path in paths.items() if path.is_file()}
