"""Behaviour of checkpoints as tables: rows to read, CSV and JSON to compute with."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict

from leash_trl.analysis.behavior import Behavior
from leash_trl.analysis.page import Table
from leash_trl.evaluation.numbers import plain, tokens, with_interval, without_nan


CAPTION = (
    "Keywords per response, mean over responses and benchmarks, with 95 % intervals of the mean over problems; and "
    "per 1,000 tokens (/ 1k), where the change of length is taken out."
)


def behavior_table(checkpoints: Sequence[Behavior]) -> Table:
    """A table to read, one row per checkpoint."""
    groups = list(checkpoints[0].groups)
    return Table(
        caption=" ".join([CAPTION, *dict.fromkeys(point.warning for point in checkpoints if point.warning)]),
        head=["run", "step", "responses", "tokens", *groups, *(f"{group} / 1k" for group in groups)],
        rows=[
            [
                point.label,
                "" if point.step is None else str(point.step),
                str(point.num_responses),
                with_interval(point.tokens, tokens),
                *(with_interval(point.groups[group], plain) for group in groups),
                *(plain(point.per_1000_tokens(group)) for group in groups),
            ]
            for point in checkpoints
        ],
    )


def behavior_csv(checkpoints: Sequence[Behavior]) -> str:
    """One row per checkpoint in full precision: groups with intervals and rates, then every keyword."""
    output = io.StringIO()
    rows = [_csv_row(point) for point in checkpoints]
    writer = csv.DictWriter(output, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(map(without_nan, rows))
    return output.getvalue()


def _csv_row(point: Behavior) -> dict[str, object]:
    row: dict[str, object] = {
        "run": point.label,
        "step": "" if point.step is None else point.step,
        "problems": point.num_problems,
        "responses": point.num_responses,
    }
    for name, estimate in {"tokens": point.tokens, **point.groups}.items():
        row |= {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
    row |= {f"{group}_per_1000_tokens": point.per_1000_tokens(group) for group in point.groups}
    # rethink and step are keywords too
    return row | {f"keyword {keyword}": mean for keyword, mean in point.keywords.items()}


def behavior_json(checkpoints: Sequence[Behavior], case_sensitive: bool) -> str:
    """Everything in full precision, and how keywords were matched."""
    content = {"case_sensitive": case_sensitive, "checkpoints": [asdict(point) for point in checkpoints]}
    return json.dumps(without_nan(content), indent=2, ensure_ascii=False) + "\n"
