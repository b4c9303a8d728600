"""The figures of `leash plot`, by name, drawn from folders of runs."""

import logging
from collections.abc import Iterable
from pathlib import Path

from matplotlib.figure import Figure

from leash_trl import figures
from leash_trl.analysis.behavior import draw_behavior, load_behaviors
from leash_trl.analysis.comparisons import comparison_table, read_trade_offs
from leash_trl.analysis.curves import load_runs
from leash_trl.analysis.evaluated_runs import budget_curves, load_evaluated_runs, trade_offs
from leash_trl.analysis.run_folders import runs_of_kind
from leash_trl.evaluation.results import interval_warning


logger = logging.getLogger(__name__)


def draw(name: str, runs: list[str], benchmark: str | None) -> Figure:
    """The figure of that name.

    Raises:
        `ValueError`: If a run is not what the figure needs.
    """
    if name == "pareto" and len(runs) == 1 and (table := comparison_table(Path(runs[0]))) is not None:
        base, *rows = read_trade_offs(table)
        return figures.pareto_figure(rows, base, width=figures.NARROW)
    kind = "training" if name in ("dynamics", "training") else "evaluation"
    folders = runs_of_kind([Path(run) for run in runs], kind)
    if kind == "training":
        curves = load_runs(folders)
        return figures.dynamics_figure(curves) if name == "dynamics" else figures.training_figure(curves)
    if name == "behavior":
        checkpoints = load_behaviors(folders)
        _warn_of_few_problems(point.warning for point in checkpoints)
        return draw_behavior(checkpoints)
    evaluated = load_evaluated_runs(folders)
    _warn_of_few_problems([interval_warning(evaluated.values())])
    if name == "budget":
        return figures.budget_figure(budget_curves(evaluated, benchmark))
    base, *rows = trade_offs(evaluated, benchmark)
    return figures.pareto_figure(rows, base)


def _warn_of_few_problems(warnings: Iterable[str]) -> None:
    for warning in dict.fromkeys(filter(None, warnings)):
        logger.warning(warning)
