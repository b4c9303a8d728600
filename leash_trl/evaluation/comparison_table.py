"""Writes the table of `leash compare`, as Markdown to read and as CSV to compute with."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from leash_trl.evaluation import numbers
from leash_trl.evaluation.comparison import ComparisonRow


HEADINGS = (
    "method",
    "seeds",
    "accuracy [95 % of the mean]",
    "tokens [95 % of the mean]",
    "p95",
    "change",
    "satisfied",
    "settled off (worst)",
    "stays near",
    "overshoot",
    "steps to target",
    "tokens in training",
    "AES",
)
LEGEND = (
    "[95 % of the mean]: Student's t interval of the mean over seeds, for these problems; it is no range of the "
    "seeds, which seeds.csv lists. Where there is one seed or none, it is an interval over problems. "
    "p95: 95th percentile of the lengths of all completions. "
    "change: tokens against base. satisfied: share of completions at or under the target. "
    "settled off (worst): distance of the last quarter of the training batches from the target, mean over seeds and "
    "the greatest of them. "
    "stays near: once it is met, share of running means over ten training batches within 10 % of it. "
    "overshoot: how far they went below it, in the seeds that met it. "
    "steps to target: first training batch with its mean at or under the target, mean over the seeds that got there. "
    "These four count from the last change of the target. "
    "Where generation is cut at the target, they show the cut, not the policy. "
    "AES: accuracy-efficiency score of the means over seeds, 0 is the base."
)


def markdown_table(rows: Sequence[ComparisonRow]) -> str:
    """A table to read: rounded, intervals in brackets, empty where a number does not exist."""
    columns = _grid_columns(rows)
    head = [HEADINGS[0], *columns, *HEADINGS[1:]]
    cells = [_cells(row) for row in rows]
    own = zip(*columns.values(), strict=True) if columns else [()] * len(rows)
    return numbers.markdown_table(head, [[cell[0], *grid, *cell[1:]] for cell, grid in zip(cells, own, strict=True)])


def _grid_columns(rows: Sequence[ComparisonRow]) -> dict[str, list[str]]:
    """Cells by short heading: the target, if rows have several, and each field of a grid that has several values."""
    columns = {"target": ["" if row.target_length is None else f"{row.target_length:g}" for row in rows]}
    fields = list(dict.fromkeys(field for row in rows for field in row.settings))
    short = [field.rpartition(".")[2] for field in fields]
    for field, heading in zip(fields, short, strict=True):
        heading = heading if short.count(heading) == 1 else field
        columns[heading] = [str(row.settings.get(field, "")) for row in rows]
    return {heading: cells for heading, cells in columns.items() if len({*cells} - {""}) > 1}


def in_words(settings: Mapping[str, Any]) -> str:
    """The values of a grid's fields other than the target.

    Example:
        >>> in_words({"length_control_kwargs.alpha": 0.5, "lambda_lr": ""})
        'alpha 0.5'
    """
    return ", ".join(f"{field.rpartition('.')[2]} {value}" for field, value in settings.items() if value != "")


def settings_in(row: Mapping[str, str]) -> dict[str, str]:
    """The values of a grid's fields in a row of the CSV file, empty where the row has none."""
    known = {name for name, _ in _columns(ComparisonRow("", (), 0.0, (0.0, 0.0), 0.0, 0.0))}
    return {field: value for field, value in row.items() if field not in known}


def _cells(row: ComparisonRow) -> list[str]:
    return [
        row.name,
        str(len(row.seeds)) if row.seeds else "",
        f"{row.accuracy:.3f} {_interval(row.accuracy_interval, 3)}".strip(),
        f"{row.mean_tokens:.1f} {_interval(row.mean_tokens_interval, 1)}".strip(),
        f"{row.p95_tokens:.0f}",
        f"{row.token_change:+.1%}" if row.seeds else "",
        "" if row.satisfaction_rate is None else f"{row.satisfaction_rate:.3f}",
        "" if row.settling_error is None else f"{row.settling_error:.1%} ({row.worst_settling_error:.1%})",
        "" if row.near_target_share is None else f"{row.near_target_share:.0%}",
        "" if row.overshoot is None else f"{row.overshoot:.1%}",
        _steps(row),
        "" if row.generated_tokens is None else f"{row.generated_tokens / 1e6:.2f} M",
        f"{row.efficiency_score:+.2f}" if row.seeds else "",
    ]


def _interval(interval: tuple[float, float] | None, digits: int) -> str:
    return "" if interval is None else f"[{interval[0]:.{digits}f}, {interval[1]:.{digits}f}]"


def _steps(row: ComparisonRow) -> str:
    if row.target_length is None:
        return ""
    if row.steps_to_target is None:
        return "never"
    share = "" if row.num_reached == len(row.seeds) else f" ({row.num_reached} of {len(row.seeds)})"
    return f"{row.steps_to_target:.0f}{share}"


def csv_table(rows: Sequence[ComparisonRow]) -> str:
    """All columns in full precision, an interval in two; empty where a number does not exist."""
    return numbers.csv_table([dict(_columns(row)) for row in rows])


def _columns(row: ComparisonRow) -> Iterator[tuple[str, Any]]:
    for name, value in asdict(row).items():
        if name.endswith("_interval"):
            yield from zip((f"{name}_low", f"{name}_high"), value or ("", ""), strict=True)
        elif name == "settings":
            yield from value.items()
        else:
            yield name, " ".join(map(str, value)) if name == "seeds" else value
