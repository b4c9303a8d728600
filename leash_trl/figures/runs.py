"""Finds training runs, evaluated runs and comparisons in folders, and gives each run a unique label."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from leash_trl.comparison.tables import comparison_rows, read_comparison_rows
from leash_trl.evaluation.metrics import OVERALL
from leash_trl.evaluation.runs import RUN_FILE, EvaluatedRun, load_evaluated_run, read_run, warning_line
from leash_trl.figures.evaluation import budget_figure, budget_points, pareto_figure, pareto_points
from leash_trl.figures.style import NARROW_INCHES
from leash_trl.figures.training import dynamics_figure, load_curves, training_figure
from leash_trl.paths import existing_path
from leash_trl.run_folder import TRAINER_STATE_FILE


logger = logging.getLogger(__name__)

RUN_TYPES = ("comparison", "evaluation", "training")  # in the order of a report


def run_types(path: Path) -> list[str]:
    """Returns the types of the runs at a path: `"comparison"`, `"evaluation"`, `"training"`; empty if there is no run.

    A training run whose evaluation was saved in the same folder has two types.
    """
    # The files by which each type of run is recognized.
    types = []
    if (path / "table.csv").is_file() and (path / "seeds.csv").is_file():
        types.append("comparison")
    if (path / RUN_FILE).is_file():
        types.append("evaluation")
    if any(path.glob(TRAINER_STATE_FILE)) or any(path.glob(f"checkpoint-*/{TRAINER_STATE_FILE}")):
        types.append("training")
    return types


def find_runs(paths: Sequence[Path], types: Sequence[str] = RUN_TYPES) -> dict[str, list[Path]]:
    """Returns the paths of runs by type. A folder that is not a run of these types is searched for runs."""
    runs: dict[str, list[Path]] = {run_type: [] for run_type in types}
    for path in paths:
        is_run = not set(types).isdisjoint(run_types(path))
        # A folder that is no run may hold runs; folders below these are not searched.
        candidates = sorted(path.iterdir()) if path.is_dir() and not is_run else [path]
        has_runs = False
        for candidate in candidates:
            for run_type in run_types(candidate):
                if run_type in types:
                    runs[run_type].append(candidate)
                    has_runs = True
        if not has_runs:
            raise ValueError(f"{path} has no {' or '.join(types)} run; give a run's folder, or a folder of runs")
    # A run that several paths name counts once.
    return {run_type: [*dict.fromkeys(folders)] for run_type, folders in runs.items()}


def load_evaluated_runs(folders: Sequence[Path]) -> list[EvaluatedRun]:
    """Loads evaluated runs, and adds the folders to the labels of `leash eval` where these are equal."""
    labels = {folder: read_run(folder)["label"] for folder in folders}
    return [load_evaluated_run(folder, label) for folder, label in _unique_labels(labels).items()]


def load_labeled_curves(paths: Sequence[str | Path]) -> list[pd.DataFrame]:
    """Loads the curves of several runs with [`load_curves`], and adds the paths to equal labels."""
    runs = {Path(path): load_curves(path) for path in paths}
    labels = {path: run.attrs["label"] for path, run in runs.items()}
    for path, label in _unique_labels(labels).items():
        runs[path].attrs["label"] = label
    return [*runs.values()]


def _unique_labels(labels: Mapping[Path, str]) -> dict[Path, str]:
    """Returns the labels, with the paths added to equal ones."""
    counts = Counter(labels.values())
    return {path: f"{label} ({path})" if counts[label] > 1 else label for path, label in labels.items()}


def draw_figure(name: str, paths: Sequence[Path], benchmark: str | None = None) -> Figure:
    """Draws the figure with the given name: `dynamics`, `training`, `budget` or `pareto`."""
    paths = [Path(existing_path(path, "runs")) for path in paths]
    if name in ("dynamics", "training"):
        curves = load_labeled_curves(find_runs(paths, ["training"])["training"])
        return dynamics_figure(curves) if name == "dynamics" else training_figure(curves)
    # The Pareto figure can show the table of a comparison, which a path names itself or by its folder.
    tables = [path / "table.csv" if path.is_dir() else path for path in paths]
    if name == "pareto" and all(table.suffix == ".csv" and table.is_file() for table in tables):
        if len(tables) > 1:
            raise ValueError(f"runs are {len(tables)} comparisons, but the Pareto figure shows one; give one of them")
        return pareto_figure(comparison_rows(read_comparison_rows(tables[0])), width=NARROW_INCHES)

    runs = load_evaluated_runs(find_runs(paths, ["evaluation"])["evaluation"])
    if message := warning_line(runs):
        logger.warning(message)
    _check_benchmark(runs, benchmark)
    if name == "budget":
        return budget_figure(budget_points(runs, benchmark or OVERALL))
    return pareto_figure(pareto_points(runs, benchmark or OVERALL))


def _check_benchmark(runs: Sequence[EvaluatedRun], benchmark: str | None) -> None:
    """Checks that all runs have the benchmark, or without one the same benchmarks, and that all or none have an
    accuracy.

    Raises:
        `ValueError`: If that is not the case.
    """
    first = runs[0]
    for run in runs:
        # Without a benchmark, means over all of them are drawn, so they must be the same ones.
        is_comparable = {*run.benchmarks} == {*first.benchmarks} if benchmark is None else benchmark in run.benchmarks
        if not is_comparable:
            names = ", ".join(run.benchmarks)
            raise ValueError(
                f"benchmark is {benchmark!r}, but {run.label!r} has {names}; choose a benchmark that all runs have"
            )
        if run.knows_correctness(benchmark or OVERALL) != first.knows_correctness(benchmark or OVERALL):
            raise ValueError(f"only one of {first.label!r} and {run.label!r} has an accuracy; draw them apart")
