"""Finds the training runs, evaluated runs and comparisons in a folder."""

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from leash_trl.analysis.comparisons import read_comparison
from leash_trl.analysis.curves import event_files, load_curves
from leash_trl.engines.checkpoint_path import TRAINER_STATE_FILE
from leash_trl.evaluation.samples import RUN_FILE, load_samples


logger = logging.getLogger(__name__)

# in the order of a report, each with the reader that fails if a run cannot be read
READERS: Mapping[str, Callable[[Path], object]] = {
    "comparison": read_comparison,
    "evaluation": load_samples,
    "training": load_curves,
}


def kinds_of(path: Path) -> list[str]:
    """The kinds of runs at a path: `"comparison"`, `"evaluation"`, `"training"`; empty if there is none.

    A training run that was evaluated into its own folder has two kinds.
    """
    has_state = any(path.glob(TRAINER_STATE_FILE)) or any(path.glob(f"checkpoint-*/{TRAINER_STATE_FILE}"))
    is_log = path.is_file() and path.suffix == ".csv"
    found = {
        "comparison": (path / "table.csv").is_file() and (path / "seeds.csv").is_file(),
        "evaluation": (path / RUN_FILE).is_file(),
        "training": has_state or is_log or bool(event_files(path)),
    }
    return [kind for kind in READERS if found[kind]]


def find_runs(paths: Sequence[Path]) -> dict[str, list[Path]]:
    """Paths by kind; a folder that is no run itself, such as that of `leash demo`, stands for the runs in it.

    Runs in such a folder that cannot be read are left out with a warning.

    Raises:
        `ValueError`: If there is nothing to report on at a path.
    """
    found: dict[str, list[Path]] = {kind: [] for kind in READERS}
    for path in paths:
        runs = [(kind, path) for kind in kinds_of(path)]
        runs = runs or [(kind, run) for kind in READERS for run in runs_inside(path, kind)]
        if not runs:
            raise ValueError(
                f"{path} holds neither a training run nor what leash eval or leash compare writes; give their folders"
            )
        for kind, run in runs:
            if run not in found[kind]:
                found[kind].append(run)
    return found


def runs_of_kind(paths: Sequence[Path], kind: str) -> list[Path]:
    """The paths of runs of that kind; a folder that is no such run stands for those in it, if it holds some."""
    return [run for path in paths for run in ([] if kind in kinds_of(path) else runs_inside(path, kind)) or [path]]


def runs_inside(folder: Path, kind: str) -> list[Path]:
    """Runs of that kind directly in a folder, by name; those that cannot be read are left out with a warning."""
    runs = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        # other CSV files, such as the table of an evaluation, have no steps
        if kind not in kinds_of(path) or (
            path.suffix == ".csv" and "_step" not in path.read_text().partition("\n")[0]
        ):
            continue
        try:
            READERS[kind](path)
        except (ValueError, FileNotFoundError) as error:
            logger.warning("left out: %s", error)
        else:
            runs.append(path)
    return runs
