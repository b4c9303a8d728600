"""`leash report`: one page with tables and figures on training runs, evaluated runs and comparisons."""

from pathlib import Path

from leash_trl.cli.command_parser import CommandParser
from leash_trl.cli.errors import user_errors


def main(argv: list[str]) -> None:
    """Runs `leash report`. The same inputs give the same bytes; files are whole or absent."""
    parser = CommandParser(
        prog="leash report",
        description="Write report.html, one file that needs nothing else, and report.md with its figures beside it.",
    )
    parser.add_argument(
        "paths",
        nargs="+",
        help="folders of training runs, of leash eval and of leash compare, folders that hold some of these, or CSV "
        "files like the LEASH authors' logs",
    )
    parser.add_argument(
        "--baseline", help="folder of leash eval that the others are compared with (default: the first)"
    )
    parser.add_argument("--output_dir", default="report", help="folder to write (default: report)")
    parser.add_argument("--title", default="LEASH report", help="title of the page (default: LEASH report)")
    arguments = parser.parse_args(argv)

    from leash_trl.analysis.report import build_page, write_report

    baseline = None if arguments.baseline is None else Path(arguments.baseline)
    with user_errors():
        page = build_page([Path(path) for path in arguments.paths], arguments.title, baseline)
    write_report(page, Path(arguments.output_dir))
    print(f"wrote {Path(arguments.output_dir) / 'report.html'} and report.md beside it")
