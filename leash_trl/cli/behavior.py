"""`leash behavior`: the paper's analysis of thinking patterns over evaluated checkpoints: tables and figure."""

from pathlib import Path

from leash_trl.cli.command_parser import CommandParser
from leash_trl.cli.errors import user_errors


def main(argv: list[str]) -> None:
    """Runs `leash behavior`. Counting takes seconds, so nothing is stored between runs; files are whole or absent."""
    parser = CommandParser(
        prog="leash behavior",
        description="Count the paper's summary, rethink and plan keywords in evaluated completions. Writes "
        "behavior.md, behavior.csv and behavior.png.",
    )
    parser.add_argument("runs", nargs="+", help="folders that leash eval wrote, one per checkpoint")
    parser.add_argument("--output_dir", default="behavior", help="folder for tables and figure (default: behavior)")
    parser.add_argument(
        "--case_sensitive",
        action="store_true",
        help="count only the spellings of the paper's table, so that Wait is not wait",
    )
    arguments = parser.parse_args(argv)

    from tqdm import tqdm

    from leash_trl.analysis.behavior import behavior_csv, behavior_table, draw_behavior, load_behaviors
    from leash_trl.analysis.run_folders import runs_of_kind
    from leash_trl.figures import write_figure
    from leash_trl.files import write_whole

    with user_errors():
        runs = runs_of_kind([Path(run) for run in arguments.runs], "evaluation")
        checkpoints = load_behaviors(tqdm(runs, desc="counting", unit="run"), arguments.case_sensitive)
    table = behavior_table(checkpoints).to_markdown()
    output = Path(arguments.output_dir)
    write_whole(output / "behavior.md", table + "\n")
    write_whole(output / "behavior.csv", behavior_csv(checkpoints))
    write_figure(draw_behavior(checkpoints), output / "behavior.png")
    print(f"\n{table}\n\nTables and figure are in {output}.")
