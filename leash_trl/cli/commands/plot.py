"""`leash plot`: draws the paper's figures and those of evaluations and comparisons."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from leash_trl.cli.arguments import parse
from leash_trl.cli.errors import errors_to_user_errors


@dataclass
class PlotArguments:
    """Draw a figure of one or several runs.

    The figures are: dynamics, with satisfaction rate, lambda, penalty, length and accuracy over training; training,
    with mean length and accuracy over training, of evaluations if all runs logged them; budget, with the accuracy of
    evaluated runs within token budgets; pareto, with accuracy over mean tokens, either of evaluated runs, the first of
    which is the baseline, or of a comparison.

    Args:
        runs (`list[str]`): Folders of leash train for dynamics and training, folders of leash eval for budget and
            pareto, or folders that contain such folders; for pareto also a single folder of leash compare.
        figure (`str`): Figure to draw.
        output (`str`): File to write, as .png, .svg or .pdf (default: the name of the figure with .png).
    """

    runs: list[str] = field(metadata={"positional": True})
    figure: Literal["dynamics", "training", "budget", "pareto"] = "dynamics"
    output: str | None = None


def main(argv: Sequence[str]) -> None:
    """Draws the figure into a file and prints its name."""
    arguments = parse(PlotArguments, argv, "leash plot")
    output = arguments.output or f"{arguments.figure}.png"

    from leash_trl.figures.runs import draw_figure
    from leash_trl.figures.style import write_figure

    runs = [Path(run) for run in arguments.runs]
    with errors_to_user_errors():
        write_figure(draw_figure(arguments.figure, runs), output)
    print(f"wrote {output}")
