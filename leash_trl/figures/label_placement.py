"""Places labels beside crowded points: in columns, each right of the points that it names. Pixels, `y` upwards."""

from collections.abc import Sequence

import numpy as np


def label_columns(edges: np.ndarray, widths: Sequence[float], gap: float) -> np.ndarray:
    """Left end of each of N labels: points too near to each other for a label in between share a column.

    Args:
        edges (`np.ndarray` of shape `(N, 2)`):
            Left and right end of each point's drawing.
        widths (`Sequence[float]` of length N):
            Widths of the labels.
        gap (`float`):
            Distance between a column and the drawings left and right of it.

    Returns:
        `np.ndarray` of shape `(N,)`: Labels with the same value make a column.

    Example:
        >>> label_columns(np.array([[0, 10], [20, 30], [100, 110]]), [40, 40, 40], gap=5).tolist()
        [35.0, 35.0, 115.0]
    """
    columns = np.zeros(len(edges))
    members: list[int] = []
    for index in np.argsort(edges[:, 0], kind="stable"):
        if members and edges[index, 0] < columns[members[0]] + max(widths[member] for member in members) + gap:
            members.append(int(index))
        else:
            members = [int(index)]
        columns[members] = edges[members, 1].max() + gap
    return columns


def spread_out(heights: Sequence[float], distance: float, low: float, high: float) -> np.ndarray:
    """Heights of the labels of one column: in their order, apart, and as near to the wanted heights as possible.

    Neighbours that would touch become a block around the mean of their wanted heights: least squares.

    Args:
        heights (`Sequence[float]` of length N):
            The wanted ones.
        distance (`float`):
            From one label to the next; less if they would not fit.
        low (`float`), high (`float`):
            The lowest and the highest one.

    Example:
        >>> spread_out([5.0, 50.0, 4.0], distance=2, low=0, high=60).tolist()
        [5.5, 50.0, 3.5]
    """
    order = np.argsort(heights, kind="stable")
    distance = min(distance, (high - low) / max(1, len(order) - 1))
    # each label at its height less the room of those below it: such numbers only have to rise
    offsets = distance * np.arange(len(order))
    blocks: list[list[float]] = []
    for wanted in np.asarray(heights, dtype=float)[order] - offsets:
        blocks.append([float(wanted)])
        while len(blocks) > 1 and np.mean(blocks[-2]) > np.mean(blocks[-1]):
            last = blocks.pop()
            blocks[-1] += last
    means = np.concatenate([np.full(len(block), np.mean(block)) for block in blocks])
    placed = np.empty(len(order))
    placed[order] = np.clip(means, low, high - offsets[-1]) + offsets
    return placed
