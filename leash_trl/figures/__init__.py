"""Draws figures of training runs, evaluated runs and comparisons, and builds the page with all of them."""

from leash_trl.figures.evaluation import budget_figure, pareto_figure
from leash_trl.figures.style import check_format, write_figure
from leash_trl.figures.training import dynamics_figure, load_curves, training_figure


__all__ = [
    "budget_figure",
    "check_format",
    "dynamics_figure",
    "load_curves",
    "pareto_figure",
    "training_figure",
    "write_figure",
]
