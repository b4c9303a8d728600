"""Draws the paper's figures from curves and evaluated runs, and a comparison's figure from its rows."""

from leash_trl.figures.drawing import NARROW, WIDE
from leash_trl.figures.evaluation import behavior_figure, budget_figure
from leash_trl.figures.files import check_format, inline_svg, write_figure
from leash_trl.figures.pareto import TradeOff, pareto_figure
from leash_trl.figures.styles import styles_figure
from leash_trl.figures.training import PANELS, dynamics_figure, training_figure


__all__ = [
    "NARROW",
    "PANELS",
    "WIDE",
    "TradeOff",
    "behavior_figure",
    "budget_figure",
    "check_format",
    "dynamics_figure",
    "inline_svg",
    "pareto_figure",
    "styles_figure",
    "training_figure",
    "write_figure",
]
