"""`leash report`: one page with tables and figures on training runs, evaluated runs and comparisons."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from leash_trl.cli.arguments import option, parse
from leash_trl.cli.errors import user_errors


@dataclass
class ReportArguments:
    """Options of `leash report`."""

    paths: list[str] = field(
        metadata={
            "positional": True,
            "help": "folders of training runs, of leash eval and of leash compare, folders that hold some of these, "
            "or CSV files like the LEASH authors' logs",
        }
    )
    baseline: str | None = option("folder of leash eval to compare with (the first)")
    output_dir: str = option("folder to write", "report")
    title: str = option("title of the page", "LEASH report")
    case_sensitive: bool = option("keywords count only as the paper's table has them", False)


def main(argv: Sequence[str]) -> int:
    """Runs `leash report`. The same inputs give the same bytes; files are whole or absent."""
    description = "Write report.html, one file that needs nothing else, and report.md with its figures beside it."
    arguments = parse(ReportArguments, argv, prog="leash report", description=description)
    folder = Path(arguments.output_dir)

    from leash_trl.figures.report import write_report

    baseline = None if arguments.baseline is None else Path(arguments.baseline)
    with user_errors():
        write_report([*map(Path, arguments.paths)], folder, arguments.title, baseline, arguments.case_sensitive)
    print(f"wrote {folder / 'report.html'} and report.md beside it")
    return 0
