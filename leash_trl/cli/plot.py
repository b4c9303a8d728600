"""`leash plot`: draws the paper's figures, and those of evaluations."""

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from leash_trl.cli.command_parser import CommandParser
from leash_trl.cli.errors import user_errors


if TYPE_CHECKING:
    from matplotlib.figure import Figure

logger = logging.getLogger(__name__)

FIGURES = {
    "dynamics": "satisfaction rate, lambda, penalty and length over training",
    "training": "mean tokens and accuracy over training, from evaluations where they were logged",
    "behavior": "mean length and the paper's keyword groups over evaluated checkpoints",
    "budget": "accuracy within token budgets of evaluated runs",
    "pareto": "accuracy over mean tokens of evaluated runs, of which the first is the baseline, or of leash compare",
}


def main(argv: list[str]) -> None:
    """Runs `leash plot`."""
    parser = CommandParser(
        prog="leash plot",
        description="Draw a figure of one or several runs.",
        epilog="Figures: " + "; ".join(f"{name}: {text}" for name, text in FIGURES.items()) + ".",
    )
    parser.add_argument(
        "runs",
        nargs="+",
        help="for dynamics and training: output folders of runs, TensorBoard event files or their folders, or CSV "
        "files like the LEASH authors' logs; for the others: folders that leash eval wrote; a folder that holds some "
        "of these stands for them",
    )
    parser.add_argument("--figure", choices=FIGURES, default="dynamics", help="what to draw (default: dynamics)")
    parser.add_argument(
        "--benchmark", help="for budget and pareto: one benchmark (default: the mean over all, as in the paper)"
    )
    parser.add_argument(
        "--output", help="image file to write, .png, .svg or .pdf (default: the figure's name with .png)"
    )
    arguments = parser.parse_args(argv)
    output = arguments.output or f"{arguments.figure}.png"

    from leash_trl.figures import check_format, write_figure

    with user_errors():
        check_format(output)
        figure = draw(arguments.figure, arguments.runs, arguments.benchmark)
    write_figure(figure, output)
    print(f"wrote {output}")


def draw(name: str, runs: list[str], benchmark: str | None) -> "Figure":
    """The figure with that name.

    Raises:
        `ValueError`: If a run is not what the figure needs.
    """
    from leash_trl import figures
    from leash_trl.analysis.behavior import draw_behavior, load_behaviors
    from leash_trl.analysis.comparisons import comparison_table, read_trade_offs
    from leash_trl.analysis.curves import load_runs
    from leash_trl.analysis.evaluated_runs import budget_curves, load_evaluated_runs, trade_offs
    from leash_trl.analysis.run_folders import runs_of_kind
    from leash_trl.evaluation.results import interval_warning

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
    return figures.pareto_figure(rows, base, intervals_over="problems")


def _warn_of_few_problems(warnings: Iterable[str]) -> None:
    for warning in dict.fromkeys(filter(None, warnings)):
        logger.warning(warning)
