"""`leash report`: writes one page with tables and figures of training runs, evaluations and comparisons."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from leash_trl.cli.arguments import parse
from leash_trl.cli.errors import errors_to_user_errors


@dataclass
class ReportArguments:
    """Write report.html, which is self-contained, and report.md with its figures next to it.

    Args:
        paths (`list[str]`): Folders of leash train, eval and compare, or folders that contain such folders;
            evaluations are compared with the first of them.
        output_dir (`str`): Folder to write into.
        title (`str`): Title of the page.
    """

    paths: list[str] = field(metadata={"positional": True})
    output_dir: str = "report"
    title: str = "LEASH report"


def main(argv: Sequence[str]) -> None:
    """Writes the page in both formats and prints where it is."""
    arguments = parse(ReportArguments, argv, "leash report")
    folder = Path(arguments.output_dir)
    paths = [Path(path) for path in arguments.paths]
    from leash_trl.figures.report import write_report

    with errors_to_user_errors():
        write_report(paths, folder, arguments.title)
    print(f"wrote {folder / 'report.html'} and report.md beside it")
