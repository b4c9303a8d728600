"""Formats numbers and tables for people (rounded, with intervals) and for programs (CSV, JSON)."""

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from leash_trl.evaluation.intervals import Estimate


def percent(share: float | None) -> str:
    """A share in percent.

    Example:
        >>> percent(0.1234)
        '12.3'
    """
    return "" if share is None else f"{100 * share:.1f}"


def tokens(count: float | None) -> str:
    """A number of tokens: without decimals from 1,000 on.

    Example:
        >>> tokens(16912.4), tokens(46.04)
        ('16,912', '46.0')
    """
    return "" if count is None else f"{count:,.0f}" if abs(count) >= 1000 else f"{count:.1f}"


def plain(number: float | None) -> str:
    """A number without a unit, with three digits.

    Example:
        >>> plain(0.58061), plain(63.5), plain(0.0)
        ('0.581', '63.5', '0')
    """
    return "" if number is None else f"{number:.3g}"


def points(share: float) -> str:
    """A difference of shares in points, or a relative one in percent, with its sign.

    Example:
        >>> points(-0.5), points(-0.0001)
        ('-50.0', '+0.0')
    """
    return f"{_without_minus_zero(100 * share):+.1f}"


def signed_tokens(count: float) -> str:
    """A difference of numbers of tokens.

    Example:
        >>> signed_tokens(-9854.2), signed_tokens(-0.01)
        ('-9,854', '+0.0')
    """
    return f"{count:+,.0f}" if abs(count) >= 1000 else f"{_without_minus_zero(count):+.1f}"


def _without_minus_zero(value: float) -> float:
    """A value at the one digit it is shown with; adding zero turns the -0.0 of a small loss into 0.0."""
    return round(value, 1) + 0.0


def with_interval(number: Estimate, shown: Callable[[float], str]) -> str:
    """A number and its interval, if it has one.

    Example:
        >>> with_interval(Estimate(0.5, 0.4, 0.625), percent)
        '50.0 [40.0, 62.5]'
    """
    if not number.has_interval:
        return shown(number.value)
    return f"{shown(number.value)} [{shown(number.low)}, {shown(number.high)}]"


def without_nan(document: Any) -> Any:
    """A document of dicts, lists and numbers for JSON and CSV: with `None` for NaN.

    Example:
        >>> without_nan({"low": [float("nan"), 1.0]})
        {'low': [None, 1.0]}
    """
    if isinstance(document, dict):
        return {key: without_nan(value) for key, value in document.items()}
    if isinstance(document, list | tuple):
        return [without_nan(value) for value in document]
    return None if isinstance(document, float) and math.isnan(document) else document


def markdown_table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose first column is words and whose others are numbers.

    Example:
        >>> print(markdown_table(["run", "tokens"], [["base", "7"]]))
        | run | tokens |
        | --- | ---: |
        | base | 7 |
    """
    alignment = ["---", *["---:"] * (len(heading) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heading, alignment, *rows))


def csv_table(records: Sequence[Mapping[str, Any]]) -> str:
    """Records as CSV in full precision: every column that one of them has, empty for `None` and NaN.

    Example:
        >>> csv_table([{"run": "base"}, {"run": "leash", "tokens": 7.0}]).splitlines()
        ['run,tokens', 'base,', 'leash,7.0']
    """
    output = io.StringIO()
    columns = dict.fromkeys(column for record in records for column in record)
    writer = csv.DictWriter(output, list(columns), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(without_nan(record) for record in records)
    return output.getvalue()
