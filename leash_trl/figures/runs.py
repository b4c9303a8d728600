"""Finds training runs, evaluated runs and comparisons in folders, and gives each run a unique label."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from leash_trl.comparison.tables import comparison_rows, read_comparison_rows
from leash_trl.evaluation.runs import RUN_FILE, EvaluatedRun, load_evaluated_run, read_run, warning_line
from leash_trl.figures.evaluation import budget_figure, budget_points, pareto_figure, pareto_points
from leash_trl.figures.style import NARROW_INCHES
from leash_trl.figures.training import dynamics_figure, load_curves, training_figure
from leash_trl.run_folder import TRAINER_STATE_FILE


logger = logging.getLogger(__name__)

RUN_TYPES = ("comparison", "evaluation", "training")  # in the order of a report


def run_types(path: Path) -> list[str]:
    """Returns the types of the runs at a path: `"comparison"`, `"evaluation"`, `"training"`; empty if there is no run.

    A training run whose evaluation was saved in the same folder has two types.
    """
    types = []
    if (path / "table.csv").is_file() and (path / "seeds.csv").is_file():
        types.append("comparison")
    if (path / RUN_FILE).is_file():
        types.append("evaluation")
    state_files = [path / TRAINER_STATE_FILE, *path.glob(f"checkpoint-*/{TRAINER_STATE_FILE}")]
    if any(file.is_file() for file in state_files):
        types.append("training")
    return types


def find_runs(paths: Sequence[Path], types: Sequence[str] = RUN_TYPES) -> dict[str, list[Path]]:
    """Returns the paths of runs by type. A folder that is no run of these types is searched for runs; raises
    `ValueError` if there are none."""
    runs: list[tuple[str, Path]] = []  # type and path
    for path in paths:
        runs_at_path = _runs_at(path, types)
        if not runs_at_path:
            raise ValueError(f"{path} has no {' or '.join(types)} run; give a run's folder, or a folder of runs")
        runs.extend(runs_at_path)
    paths_by_type: dict[str, list[Path]] = {run_type: [] for run_type in types}
    for run_type, path in dict.fromkeys(runs):  # a run that several paths name counts once
        paths_by_type[run_type].append(path)
    return paths_by_type


def _runs_at(path: Path, types: Sequence[str]) -> list[tuple[str, Path]]:
    """Returns the types and the path of a run or, of a folder that is no run, those of the runs in it."""
    runs = [(run_type, path) for run_type in run_types(path) if run_type in types]
    if runs or not path.is_dir():
        return runs
    for folder in sorted(path.iterdir()):
        runs.extend((run_type, folder) for run_type in run_types(folder) if run_type in types)
    return runs


def load_evaluated_runs(folders: Sequence[Path]) -> list[EvaluatedRun]:
    """Loads evaluated runs, and adds the folder to the label of each run whose label is not unique."""
    labels = {folder: read_run(folder)["label"] for folder in folders}
    return [load_evaluated_run(folder, label) for folder, label in _unique_labels(labels).items()]


def load_labeled_curves(paths: Sequence[Path]) -> list[pd.DataFrame]:
    """Loads the curves of several runs with [`load_curves`], and adds the path to each label that is not unique."""
    runs = {path: load_curves(path) for path in paths}
    labels = {path: run.attrs["label"] for path, run in runs.items()}
    for path, label in _unique_labels(labels).items():
        runs[path].attrs["label"] = label
    return [*runs.values()]


def _unique_labels(labels: Mapping[Path, str]) -> dict[Path, str]:
    """Returns the labels, with the path added to each label that is not unique."""
    counts = Counter(labels.values())
    unique_labels = {}
    for path, label in labels.items():
        unique_labels[path] = f"{label} ({path})" if counts[label] > 1 else label
    return unique_labels


def draw_figure(name: str, paths: Sequence[Path]) -> Figure:
    """Draws the figure with the given name: `dynamics`, `training`, `budget` or `pareto`. For `pareto`, a single path
    may also be that of a comparison."""
    if name in ("dynamics", "training"):
        curves = load_labeled_curves(find_runs(paths, ["training"])["training"])
        return dynamics_figure(curves) if name == "dynamics" else training_figure(curves)
    table = _comparison_table(paths)
    if name == "pareto" and table is not None:
        points = comparison_rows(read_comparison_rows(table))
        return pareto_figure(points, width=NARROW_INCHES)
    runs = load_evaluated_runs(find_runs(paths, ["evaluation"])["evaluation"])
    if message := warning_line(runs):
        logger.warning(message)
    _check_comparable(runs)
    if name == "budget":
        return budget_figure(budget_points(runs))
    return pareto_figure(pareto_points(runs))


def _comparison_table(paths: Sequence[Path]) -> Path | None:
    """Returns the file of a comparison's table if a single path is this file or its folder, else `None`."""
    if len(paths) > 1:
        return None
    (table,) = paths
    if table.is_dir():
        table = table / "table.csv"
    return table if table.is_file() else None


def _check_comparable(runs: Sequence[EvaluatedRun]) -> None:
    """Raises `ValueError` if runs have different benchmarks, whose means are drawn, or if only some runs have an
    accuracy."""
    first = runs[0]
    for run in runs:
        if {*run.benchmarks} != {*first.benchmarks}:
            raise ValueError(
                f"{run.label!r} has the benchmarks {', '.join(run.benchmarks)}, and {first.label!r} has "
                f"{', '.join(first.benchmarks)}; evaluate both on the same ones"
            )
        if run.knows_correctness() != first.knows_correctness():
            raise ValueError(f"only one of {first.label!r} and {run.label!r} has an accuracy; draw them apart")
