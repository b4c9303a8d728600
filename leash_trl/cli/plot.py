"""`leash plot`: draws the paper's figures, and those of evaluations and comparisons."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from leash_trl.cli.arguments import option, parse
from leash_trl.cli.errors import user_errors


FIGURES = {
    "dynamics": "satisfaction rate, lambda, penalty, length and accuracy over training",
    "training": "mean tokens and accuracy over training, from evaluations where they were logged",
    "behavior": "mean length and the paper's keyword groups over evaluated checkpoints",
    "budget": "accuracy within token budgets of evaluated runs",
    "pareto": "accuracy over mean tokens of evaluated runs, of which the first is the baseline, or of leash compare",
}
RUNS_HELP = (
    "for dynamics and training: folders of runs, or CSV files like the LEASH authors' logs; "
    "for the others: folders that leash eval wrote; or folders that hold some of these"
)


@dataclass
class PlotArguments:
    """Draw a figure of one or several runs."""

    runs: list[str] = field(metadata={"positional": True, "help": RUNS_HELP})
    figure: str = option("what to draw", "dynamics", choices=[*FIGURES])
    benchmark: str | None = option("for budget and pareto: one, not the mean over all")
    output: str | None = option(".png, .svg or .pdf (default: the figure's name.png)")


def main(argv: Sequence[str]) -> None:
    """Runs `leash plot`."""
    epilog = "Figures: " + "; ".join(f"{name}: {text}" for name, text in FIGURES.items()) + "."
    arguments = parse(PlotArguments, argv, "leash plot", epilog=epilog)
    output = arguments.output or f"{arguments.figure}.png"

    from leash_trl.figures.runs import draw
    from leash_trl.figures.style import check_format, write_figure

    with user_errors():
        check_format(output)
        write_figure(draw(arguments.figure, [*map(Path, arguments.runs)], arguments.benchmark), output)
    print(f"wrote {output}")
