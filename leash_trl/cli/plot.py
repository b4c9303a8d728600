"""`leash plot`: draws the paper's figures, and those of evaluations."""

from leash_trl.cli.command_parser import CommandParser
from leash_trl.cli.errors import user_errors


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

    from leash_trl.analysis.drawn_runs import draw
    from leash_trl.figures import check_format, write_figure

    with user_errors():
        check_format(output)
        figure = draw(arguments.figure, arguments.runs, arguments.benchmark)
    write_figure(figure, output)
    print(f"wrote {output}")
