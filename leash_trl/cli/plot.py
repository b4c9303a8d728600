"""`leash plot`: draws the paper's figures, and those of evaluations and comparisons."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from leash_trl.cli.arguments import parse
from leash_trl.cli.errors import user_errors


@dataclass
class PlotArguments:
    """Draw a figure of one or several runs.

    dynamics: satisfaction rate, lambda, penalty, length and accuracy over training; training: mean tokens and accuracy
    over training, from evaluations where they were logged; behavior: mean length and the paper's keyword groups over
    evaluated checkpoints; budget: accuracy within token budgets of evaluated runs; pareto: accuracy over mean tokens
    of evaluated runs, of which the first is the baseline, or of leash compare.

    Args:
        runs (`list[str]`): Folders of runs, or CSV files like the LEASH authors' logs, for dynamics and training; for
            the others folders that leash eval wrote; or folders that hold some of these.
        figure (`str`): What to draw.
        benchmark (`str`): For budget and pareto: one, not the mean over all.
        output (`str`): File to write, .png, .svg or .pdf (default: the figure's name and .png).
    """

    runs: list[str] = field(metadata={"positional": True})
    figure: Literal["dynamics", "training", "behavior", "budget", "pareto"] = "dynamics"
    benchmark: str | None = None
    output: str | None = None


def main(argv: Sequence[str]) -> None:
    """Runs `leash plot`."""
    arguments = parse(PlotArguments, argv, "leash plot")
    output = arguments.output or f"{arguments.figure}.png"

    from leash_trl.figures.runs import draw
    from leash_trl.figures.style import check_format, write_figure

    with user_errors():
        check_format(output)
        write_figure(draw(arguments.figure, [*map(Path, arguments.runs)], arguments.benchmark), output)
    print(f"wrote {output}")
