"""Draws the paper's figures from curves and evaluated runs, a comparison's from its rows, and the page with all of them."""

from leash_trl.figures.evaluation import budget_figure, pareto_figure, styles_figure
from leash_trl.figures.style import NARROW, WIDE, check_format, inline_svg, write_figure
from leash_trl.figures.training import dynamics_figure, load_curves, training_figure


__all__ = [
    "NARROW",
    "WIDE",
    "budget_figure",
    "check_format",
    "dynamics_figure",
    "inline_svg",
    "load_curves",
    "pareto_figure",
    "styles_figure",
    "training_figure",
    "write_figure",
]
