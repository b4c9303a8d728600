"""Reads the result of `leash compare` from its folder, for the figure and for a part of a report."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from leash_trl.analysis.page import Paragraph, Picture, Section, Table
from leash_trl.evaluation.comparison_table import in_words, settings_in
from leash_trl.evaluation.intervals import Estimate, mean_over_seeds
from leash_trl.figures import TradeOff, pareto_figure
from leash_trl.gym import base_record


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
    blocks, (base, *points) = read_comparison(folder)
    num_methods = len({point.name for point in points})
    picture = Picture(
        name=label,
        caption="Accuracy over mean tokens, with the table's 95 % intervals.",
        description=f"Scatter plot of accuracy over mean tokens of {num_methods} methods and the base model.",
        figure=pareto_figure(points, base),
    )
    return Section(f"Comparison: {folder.resolve().name}", [*blocks, picture])


def read_comparison(folder: Path) -> tuple[list[Paragraph | Table], list[TradeOff]]:
    """A comparison's words and tables, and the rows of its figure, the base first.

    Raises:
        `ValueError`: If its tables are not as `leash compare` writes them.
    """
    paragraphs = (folder / "table.md").read_text(encoding="utf-8").strip().split("\n\n")
    places = [place for place, paragraph in enumerate(paragraphs) if paragraph.startswith("| ")]
    if not places:
        raise ValueError(f"{folder / 'table.md'} holds no table; run leash compare again")
    blocks: list[Paragraph | Table] = []
    for place, paragraph in enumerate(paragraphs):
        if place in places:
            # the legend is that of the file, whose intervals may be of another kind than today's
            blocks.append(_table(paragraph, _plain("".join(paragraphs[place + 1 : place + 2]))))
        elif place - 1 not in places:
            blocks.append(Paragraph(_plain(paragraph)))
    return blocks, read_trade_offs(folder / "table.csv")


def _plain(paragraph: str) -> str:
    return paragraph.strip().replace("`", "")


def _table(lines: str, caption: str) -> Table:
    """A table of Markdown, with the columns first that a phone shows."""
    head, _, *rows = [line.removeprefix("| ").removesuffix(" |").split(" | ") for line in lines.splitlines()]
    num_names = head.index("seeds") if "seeds" in head else 1
    order = sorted(range(len(head)), key=lambda column: (column >= num_names, head[column] != "change"))
    return Table(caption, [head[column] for column in order], [[row[column] for column in order] for row in rows])


def comparison_table(path: Path) -> Path | None:
    """The CSV file with a comparison's rows: the path itself, or that in the folder; `None` if there is none."""
    table = path / "table.csv" if path.is_dir() else path
    if table.suffix != ".csv" or not table.is_file():
        return None
    with open(table, encoding="utf-8") as file:
        return table if "accuracy_interval_low" in file.readline() else None


def read_trade_offs(path: Path) -> list[TradeOff]:
    """Accuracy over tokens of each method in a comparison's `table.csv` or `seeds.csv`, the base first.

    The seeds of a method at one target become their mean with its interval over seeds. The base of a file without one
    is the gym's.

    Raises:
        `ValueError`: If a column is missing or holds no number.
    """
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    try:
        by_point: dict[tuple[str, str, str], list[Mapping[str, str]]] = {}
        for row in rows:
            by_point.setdefault(_point(row), []).append(row)
        methods = [_trade_off(name, settings, own) for (name, settings, _), own in by_point.items()]
        has_base = bool(rows) and rows[0]["seeds"] == ""
    except KeyError as error:
        raise ValueError(f"{path} has no column {error}; run leash compare again") from error
    return methods if has_base else [_gym_base(), *methods]


def _point(row: Mapping[str, str]) -> tuple[str, str, str]:
    """Name, settings and target, which the seeds of a point share."""
    return row["name"], in_words(settings_in(row)), row["target_length"]


def _trade_off(name: str, settings: str, seeds: Sequence[Mapping[str, str]]) -> TradeOff:
    target = float(seeds[0]["target_length"]) if seeds[0]["target_length"] else None
    num_seeds = len(seeds)
    if num_seeds == 1:
        num_seeds = len(seeds[0]["seeds"].split())
        accuracy, tokens = _estimate(seeds[0], "accuracy"), _estimate(seeds[0], "mean_tokens")
    else:
        accuracy = mean_over_seeds([float(seed["accuracy"]) for seed in seeds], highest=1.0)
        tokens = mean_over_seeds([float(seed["mean_tokens"]) for seed in seeds])
    return TradeOff(name, accuracy, tokens, target, settings, num_seeds)


def _estimate(row: Mapping[str, str], name: str) -> Estimate:
    low, high = (float(row[f"{name}_interval_{end}"] or "nan") for end in ("low", "high"))
    return Estimate(float(row[name]), low, high)


def _gym_base() -> TradeOff:
    record, unknown = base_record(), float("nan")
    accuracy = Estimate(record["accuracy"], *record["accuracy_interval"])
    return TradeOff("base", accuracy, Estimate(record["mean_tokens"], unknown, unknown))
