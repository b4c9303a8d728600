"""The part of a report that a folder of `leash compare` fills: its table and its figure."""

import csv
from collections.abc import Mapping
from pathlib import Path

from leash_trl.analysis.page import Paragraph, Picture, Section, Table
from leash_trl.evaluation.comparison import ComparisonRow
from leash_trl.figures import pareto_figure


def comparison_section(folder: Path, label: str) -> Section:
    """Table and figure of a comparison, as `leash compare` wrote them.

    Args:
        folder (`Path`):
            Its output folder.
        label (`str`):
            Name of the comparison in the report, letters, digits and hyphens.

    Raises:
        `ValueError`: If its tables are not as `leash compare` writes them.
    """
    blocks, (base, *methods) = read_comparison(folder)
    return Section(
        f"Comparison: {folder.resolve().name}",
        [
            *blocks,
            Picture(
                name=label,
                caption="Accuracy over mean tokens, with the table's 95 % intervals.",
                description=f"Scatter plot of accuracy over mean tokens of {len(methods)} methods and the base model.",
                figure=pareto_figure(methods, base),
            ),
        ],
    )


def read_comparison(folder: Path) -> tuple[list[Paragraph | Table], list[ComparisonRow]]:
    """A comparison's words and table, and the rows of its figure, the base first.

    Raises:
        `ValueError`: If its tables are not as `leash compare` writes them.
    """
    paragraphs = (folder / "table.md").read_text(encoding="utf-8").split("\n\n")
    tables = [paragraph for paragraph in paragraphs if paragraph.startswith("| ")]
    if len(tables) != 1:
        raise ValueError(f"{folder / 'table.md'} holds {len(tables)} tables instead of one; run leash compare again")
    head, _, *rows = [line.removeprefix("| ").removesuffix(" |").split(" | ") for line in tables[0].splitlines()]
    # the legend is that of the file, whose intervals may be of another kind than today's
    *words, legend = [text.strip().replace("`", "") for text in paragraphs if text != tables[0]]
    # a phone shows the first columns
    order = sorted(range(len(head)), key=lambda column: (column > 0, head[column] != "change"))
    table = Table(legend, [head[column] for column in order], [[row[column] for column in order] for row in rows])
    return [*map(Paragraph, words), table], read_rows(folder / "table.csv")


def read_rows(path: Path) -> list[ComparisonRow]:
    """What the figure needs of each row in a comparison's `table.csv`, the base first.

    Raises:
        `ValueError`: If a column is missing or holds no number.
    """
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    try:
        return [_row(row) for row in rows]
    except KeyError as error:
        raise ValueError(f"{path} has no column {error}; run leash compare again") from error


def _row(row: Mapping[str, str]) -> ComparisonRow:
    has_interval = row["mean_tokens_interval_low"] != ""
    return ComparisonRow(
        name=row["name"],
        seeds=tuple(int(seed) for seed in row["seeds"].split()),
        accuracy=float(row["accuracy"]),
        accuracy_interval=_interval(row, "accuracy"),
        mean_tokens=float(row["mean_tokens"]),
        mean_tokens_interval=_interval(row, "mean_tokens") if has_interval else None,
        p95_tokens=float(row["p95_tokens"]),
        target_length=float(row["target_length"]) if row["target_length"] else None,
    )


def _interval(row: Mapping[str, str], name: str) -> tuple[float, float]:
    return float(row[f"{name}_interval_low"]), float(row[f"{name}_interval_high"])
