"""`leash report`: one page with tables and figures on training runs, evaluated runs and comparisons."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from leash_trl.cli.arguments import option, parse
from leash_trl.cli.errors import user_errors


PATHS_HELP = "folders of leash train, eval and compare, folders that hold some, or CSV files like the authors' logs"


@dataclass
class ReportArguments:
    """Write report.html, one file that needs nothing else, and report.md with its figures beside it."""

    paths: list[str] = field(metadata={"positional": True, "help": PATHS_HELP})
    baseline: str | None = option("folder of leash eval to compare with (the first)")
    output_dir: str = option("folder to write", "report")
    title: str = option("title of the page", "LEASH report")


def main(argv: Sequence[str]) -> None:
    """Runs `leash report`."""
    arguments = parse(ReportArguments, argv, "leash report")
    folder, baseline = Path(arguments.output_dir), Path(arguments.baseline) if arguments.baseline else None
    from leash_trl.figures.report import write_report

    with user_errors():
        write_report([*map(Path, arguments.paths)], folder, arguments.title, baseline)
    print(f"wrote {folder / 'report.html'} and report.md beside it")
