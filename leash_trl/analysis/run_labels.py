"""Gives each run one label for every table, figure, legend and sentence."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from leash_trl.evaluation.samples import read_run


def run_labels(evaluations: Sequence[str | Path], trainings: Sequence[str | Path] = ()) -> dict[Path, str]:
    """Label of each run by its path; different runs have different ones.

    An evaluated run has the label that `leash eval` gave it. If several have the same label, their training steps are
    added if these differ, else their folders. A training run has the label of its evaluation, or else the name of its
    folder.

    Args:
        evaluations (`Sequence[str | Path]`):
            Folders that `leash eval` wrote.
        trainings (`Sequence[str | Path]`, *optional*):
            Training runs: folders, event files, CSV files.

    Raises:
        `ValueError`: If a folder of the first kind holds no evaluated run.
    """
    runs = {Path(path): read_run(path) for path in evaluations}
    trained = [Path(path) for path in trainings]
    labels = _evaluation_labels(runs)
    places, folders = _places([*runs, *trained]), _places(trained)
    for path in trained:
        own = [folder for folder, run in runs.items() if [path] == [t for t in trained if _is_of(run, t)]]
        names = {labels[folder] for folder in own} if len(own) == 1 else {runs[folder]["label"] for folder in own}
        label = names.pop() if len(names) == 1 else folders[path]
        is_taken = label in (name for folder, name in labels.items() if folder not in (path, *own))
        labels.setdefault(path, f"{label} ({places[path]})" if is_taken else label)
    return labels


def _evaluation_labels(runs: Mapping[Path, Mapping[str, Any]]) -> dict[Path, str]:
    labels = {}
    for path, run in runs.items():
        steps = {other.get("step") for other in runs.values() if other["label"] == run["label"]}
        has_own_step = len(steps) > 1 and run.get("step") is not None
        labels[path] = f"{run['label']}, step {run['step']}" if has_own_step else run["label"]
    places, shown = _places(list(runs)), list(labels.values())
    return {path: f"{label} ({places[path]})" if shown.count(label) > 1 else label for path, label in labels.items()}


def _is_of(run: Mapping[str, Any], training: Path) -> bool:
    """Whether the evaluated model comes from that training run or one of its checkpoints.

    The evaluation may have been started in another folder than this report: a relative path counts by its end.
    """
    if run.get("step") is None:
        return False  # a model that was not trained here
    model = tuple(part for part in Path(run["model"]).parts if part not in (".", ".."))
    ends = [model, model[:-1]] if model[-1:] and model[-1].startswith("checkpoint-") else [model]
    return any(end and training.resolve().parts[-len(end) :] == end for end in ends)


def _places(paths: Sequence[Path]) -> dict[Path, str]:
    """The last parts of each path, as many as make the paths different; `.csv` is left out."""
    parts = {path: _parts(path) for path in paths}
    size = 1
    while len({part[-size:] for part in parts.values()}) < len(set(parts.values())):
        size += 1
    return {path: "/".join(part[-size:]) for path, part in parts.items()}


def _parts(path: Path) -> tuple[str, ...]:
    resolved = path.resolve()
    return (resolved.with_suffix("") if path.suffix == ".csv" else resolved).parts
