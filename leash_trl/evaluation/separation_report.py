"""Writes what `separation` finds as paragraphs and tables of Markdown; the paragraph after a table explains it."""

from collections.abc import Sequence
from itertools import combinations

from leash_trl.evaluation.numbers import markdown_table
from leash_trl.evaluation.separation import (
    EqualLength,
    Pair,
    Point,
    accuracy_at_equal_length,
    compared,
    front,
    method_pairs,
)


FRONT_LEGEND = (
    "front: a point is off it if another one beats it, which has a higher accuracy (the interval of the difference "
    "excludes 0) at mean tokens that are not more. It is on it if every other point has a lower accuracy or more "
    "tokens (one of the intervals excludes 0). after Holm: the same with Holm's correction over all pairs of points."
)
EQUAL_LENGTH_LEGEND = (
    "Accuracy at equal length: lines through the points of each seed, over the logarithm of tokens, and the mean of "
    "their difference over the tokens that both curves cover with every seed. [95 % of the mean]: Student's t "
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
    return [_pairs_told(known), *_front_table(known), *_equal_length_table(known)]


def _pairs_told(points: Sequence[Point]) -> str:
    pairs = method_pairs(points)
    plain, corrected = (_counts(compared(points, pairs, is_corrected)) for is_corrected in (False, True))
    return (
        f"Of {len(pairs)} pairs of methods at the same target (one without a target is compared with all), {plain[0]} "
        f"are told apart by accuracy, {plain[1]} by tokens, {plain[2]} by either: Welch's 95 % t interval of the "
        f"difference of the means over seeds excludes 0. After Holm's correction over these {2 * len(pairs)} "
        f"intervals: {corrected[0]}, {corrected[1]} and {corrected[2]}."
    )


def _counts(pairs: Sequence[Pair]) -> tuple[int, int, int]:
    return (
        sum(pair.accuracy_told for pair in pairs),
        sum(pair.tokens_told for pair in pairs),
        sum(pair.accuracy_told or pair.tokens_told for pair in pairs),
    )


def _front_table(points: Sequence[Point]) -> list[str]:
    pairs = list(combinations(range(len(points)), 2))
    plain, corrected = (front(len(points), compared(points, pairs, is_corrected)) for is_corrected in (False, True))
    rows = [
        [point.name, place, place_after, ", ".join(points[other].name for other in beaten_by)]
        for point, (place, beaten_by), (place_after, _) in zip(points, plain, corrected, strict=True)
    ]
    return [markdown_table(["point", "front", "after Holm", "beaten by"], rows), FRONT_LEGEND]


def _equal_length_table(points: Sequence[Point]) -> list[str]:
    """Every curve against the first one of LEASH, or the first one."""
    curves: dict[str, list[Point]] = {}
    for point in points:
        if point.target_length is not None:
            curves.setdefault(point.method, []).append(point)
    curves = {name: own for name, own in curves.items() if len({point.target_length for point in own}) > 1}
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


def _equal_length_cells(found: EqualLength | None) -> list[str]:
    if found is None:
        return ["n/a", ""]
    difference = found.difference
    shown = f"{difference.value:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}]"
    return [shown, f"{found.shortest:.1f} to {found.longest:.1f}"]
