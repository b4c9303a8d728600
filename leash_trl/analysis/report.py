"""Builds a report on any folders of training runs, evaluated runs and comparisons."""

from collections.abc import Sequence
from pathlib import Path

from leash_trl.analysis.before_and_after import before_and_after_section
from leash_trl.analysis.comparisons import comparison_section
from leash_trl.analysis.evaluation_section import evaluation_section
from leash_trl.analysis.page import Page, to_html, to_markdown
from leash_trl.analysis.run_folders import find_runs, kinds_of
from leash_trl.analysis.training_section import training_section
from leash_trl.figures import write_figure
from leash_trl.files import write_whole


FIGURE_FOLDER = "figures"


def build_page(paths: Sequence[Path], title: str, baseline: Path | None = None) -> Page:
    """The page that reports on some folders: headline, comparisons, evaluations, training.

    Args:
        paths (`Sequence[Path]`):
            Folders to report on.
        title (`str`):
            Words for the top of the page.
        baseline (`Path`, *optional*, defaults to the first evaluated run):
            Evaluated run that the others are compared with.

    Raises:
        `ValueError`: If there is nothing to report on at a path, it is not complete, or the baseline is no evaluated
            run.
    """
    if baseline is not None and "evaluation" not in kinds_of(baseline):
        raise ValueError(f"baseline is '{baseline}', but must be a folder that leash eval wrote")
    found = find_runs(paths)
    evaluated = found["evaluation"]
    if baseline is not None:
        evaluated = [baseline, *(run for run in evaluated if run.resolve() != baseline.resolve())]
    sections = [comparison_section(run, f"comparison-{number}") for number, run in enumerate(found["comparison"], 1)]
    if evaluated:
        sections += [evaluation_section(evaluated), *before_and_after_section(evaluated)]
    if found["training"]:
        sections.append(training_section(found["training"], evaluated))
    return Page(title, sections)


def write_report(page: Page, folder: Path) -> None:
    """Writes `report.html`, which needs nothing else, and `report.md` with its figures beside it."""
    for picture in page.pictures:
        write_figure(picture.figure, folder / FIGURE_FOLDER / f"{picture.name}.svg")
    write_whole(folder / "report.md", to_markdown(page, FIGURE_FOLDER))
    write_whole(folder / "report.html", to_html(page))
