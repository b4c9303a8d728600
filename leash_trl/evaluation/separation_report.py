"""Writes what `separation` finds as paragraphs and tables of Markdown; the paragraph after a table explains it."""

from collections.abc import Sequence

import numpy as np

from leash_trl.evaluation.numbers import markdown_table
from leash_trl.evaluation.separation import (
    EqualLength,
    Point,
    accuracy_at_equal_length,
    front,
    method_pairs,
    shown_signs,
    welch_difference,
)


FRONT_LEGEND = (
    "front: a point is off it if another one beats it, which has a higher accuracy at less than 1.05 times its mean "
    "tokens. It is on it if every other point has a lower accuracy or more tokens. Each must be shown: the 95 % "
    "interval of the difference excludes 0. after Holm: the same with Holm's correction over all differences of all "
    "points."
)
EQUAL_LENGTH_LEGEND = (
    "Accuracy at equal length: lines through the points of each seed, over the logarithm of tokens, and the mean of "
    "their difference over the logarithms that both curves cover with every seed. [95 % of the mean]: Student's t "
    "interval of the seeds' differences. n/a: no such tokens, or other seeds."
)


def separation_paragraphs(points: Sequence[Point]) -> list[str]:
    """What can be told of the points of a comparison; nothing if fewer than two of them have two seeds.

    Args:
        points (`Sequence[Point]`):
            Points on the same problems, in the order of the table.
    """
    known = [point for point in points if len(point.seeds) > 1]
    if len(known) < 2:
        return []
    others = [point.name for point in points if len(point.seeds) < 2]
    left_out = [f"Not told apart, for want of a second seed: {', '.join(others)}."] if others else []
    return [*_pairs_told(known), *left_out, *_front_table(known), *_equal_length_table(known)]


def _pairs_told(points: Sequence[Point]) -> list[str]:
    pairs = method_pairs(points)
    if not pairs:
        return []
    accuracies = [welch_difference(points[a].accuracies, points[b].accuracies) for a, b in pairs]
    tokens = [welch_difference(points[a].tokens, points[b].tokens) for a, b in pairs]
    counts = []
    for is_corrected in (False, True):
        accuracy, length = np.split(shown_signs([*accuracies, *tokens], is_corrected) != 0, 2)
        counts.append((accuracy.sum(), length.sum(), (accuracy | length).sum()))
    plain, corrected = counts
    return [
        f"Of {len(pairs)} pairs of methods at the same target, {plain[0]} are told apart by accuracy, {plain[1]} by "
        f"tokens, {plain[2]} by either: Welch's 95 % t interval of the difference of the means over seeds excludes 0. "
        f"After Holm's correction over these {2 * len(pairs)} intervals: {corrected[0]}, {corrected[1]} and "
        f"{corrected[2]}."
    ]


def _front_table(points: Sequence[Point]) -> list[str]:
    plain, corrected = (front(points, is_corrected) for is_corrected in (False, True))
    rows = [
        [point.name, place, ", ".join(points[other].name for other in beaten_by), place_after]
        for point, (place, beaten_by), (place_after, _) in zip(points, plain, corrected, strict=True)
    ]
    return [markdown_table(["point", "front", "beaten by", "after Holm"], rows), FRONT_LEGEND]


def _equal_length_table(points: Sequence[Point]) -> list[str]:
    """Every curve against the first one of LEASH, or the first one."""
    curves = {name: own for name, own in _curves(points).items() if len(own) > 1}
    if len(curves) < 2:
        return []
    reference = next((name for name in curves if name.upper().startswith("LEASH")), next(iter(curves)))
    rows = [
        [name, *_equal_length_cells(accuracy_at_equal_length(own, curves[reference]))]
        for name, own in curves.items()
        if name != reference
    ]
    heading = f"accuracy minus that of {reference} [95 % of the mean]"
    return [markdown_table(["method", heading, "tokens"], rows), EQUAL_LENGTH_LEGEND]


def _curves(points: Sequence[Point]) -> dict[str, list[Point]]:
    """Points by method; where a method has several settings at one target, by method and settings."""
    curves: dict[str, list[Point]] = {}
    for method in dict.fromkeys(point.method for point in points):
        own = [point for point in points if point.method == method]
        targets = [point.target_length for point in own if point.target_length is not None]
        has_repeats = len({*targets}) < len(targets)
        for point in own:
            curves.setdefault(f"{method}, {point.settings}" if has_repeats else method, []).append(point)
    return curves


def _equal_length_cells(found: EqualLength | None) -> list[str]:
    if found is None:
        return ["n/a", ""]
    difference = found.difference
    shown = f"{difference.value:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}]"
    return [shown, f"{found.shortest:.1f} to {found.longest:.1f}"]
