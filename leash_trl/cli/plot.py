"""`leash plot`: the four panels of the paper's training-dynamics figure."""

import argparse

from leash_trl.cli.errors import user_errors


def main(argv: list[str]) -> None:
    """Runs `leash plot`."""
    parser = argparse.ArgumentParser(
        prog="leash plot", description="Draw satisfaction rate, lambda, penalty and length over training."
    )
    parser.add_argument("runs", nargs="+", help="output folders of runs, or CSV files like the LEASH authors' logs")
    parser.add_argument("--output", default="dynamics.png", help="image file to write (default: dynamics.png)")
    arguments = parser.parse_args(argv)

    from leash_trl.analysis.curves import load_curves
    from leash_trl.analysis.figures import dynamics_figure

    with user_errors():
        runs = [load_curves(run) for run in arguments.runs]
    dynamics_figure(runs).savefig(arguments.output, dpi=120)
    print(f"wrote {arguments.output}")
