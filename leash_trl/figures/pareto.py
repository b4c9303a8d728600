"""Draws accuracy over tokens, the trade-off of length control, with intervals and labels."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, ScalarFormatter

from leash_trl.figures.drawing import (
    COLORS,
    LABEL_SIZE,
    NEUTRAL,
    WIDE,
    Estimate,
    common_target,
    new_figure,
    show_text_as_it_is,
)
from leash_trl.figures.label_placement import label_columns, spread_out


ROOM = 0.06  # share of an axis on each side of the outermost points
REACHING_OUT = 0.25  # share of intervals
# pixels
LABEL_GAP = 10.0
LABEL_HEIGHT = 18.0
MARKER_RADIUS = 6.0
NUM_FITTINGS = 5
SHORT_INTERVAL = 0.11  # share of the frame's width
WIDE_RANGE = 6.0  # ratio of the longest to the shortest tokens from which even steps would crowd at the right
MARKERS = ("s", "^", "v", "P", "X", "<", ">", "p")  # of curves; a circle is a method of one point, a diamond the base


@dataclass(frozen=True)
class TradeOff:
    """One method or run of the figure.

    Args:
        name (`str`):
            Its label; those that begin with "LEASH" are marked. Rows of one name are one curve, those of one name at
            the same target a curve for each of their settings.
        accuracy (`Estimate`):
            Share of correct completions in [0, 1].
        tokens (`Estimate`):
            Mean length of a completion in tokens.
        target_length (`float`, *optional*):
            Its target in tokens.
        settings (`str`, *optional*, defaults to `""`):
            Other settings that the rows of its name differ in, in words.
        num_seeds (`int`, *optional*, defaults to `1`):
            How many seeds it is the mean of; of one, the intervals are over problems, of several, over seeds.
    """

    name: str
    accuracy: Estimate
    tokens: Estimate
    target_length: float | None = None
    settings: str = ""
    num_seeds: int = 1

    def __str__(self) -> str:
        """Its numbers in words; an interval that is not known is left out."""

        def told(estimate: Estimate, digits: int) -> str:
            value, low, high = (f"{number:.{digits}f}" for number in (estimate.value, estimate.low, estimate.high))
            return value if math.isnan(estimate.low) else f"{value} [{low}, {high}]"

        target = "" if self.target_length is None else f" at target {self.target_length:g}"
        return f"{self.label}{target}: accuracy {told(self.accuracy, 3)}, tokens {told(self.tokens, 1)}"

    @property
    def label(self) -> str:
        """Its name and settings."""
        return f"{self.name}, {self.settings}" if self.settings else self.name

    @property
    def is_leash(self) -> bool:
        """Whether it is marked."""
        return self.name.upper().startswith("LEASH")

    @property
    def color(self) -> str:
        """Colour of its marker where it is no curve."""
        return COLORS[1] if self.is_leash else COLORS[0]


@dataclass(frozen=True)
class _Curve:
    """The points of one method in the order of their targets or else tokens, or a single one."""

    points: Sequence[TradeOff]
    color: str
    marker: str
    is_dashed: bool = False

    @property
    def end(self) -> TradeOff:
        """The point that has the label: the longest one, where there is most room."""
        return max(self.points, key=lambda point: point.tokens.value)

    @property
    def label(self) -> str:
        return self.end.label if len({point.settings for point in self.points}) == 1 else self.end.name

    @property
    def is_single(self) -> bool:
        return len(self.points) == 1


def pareto_figure(rows: Sequence[TradeOff], base: TradeOff, width: float = WIDE) -> Figure:
    """Accuracy over mean tokens: one marker per row with both intervals, the base and the targets.

    The rows of one method at several targets or settings are joined by a line and have one label. If there are many
    intervals, the longest end at the frame.

    Args:
        rows (`Sequence[TradeOff]`):
            Methods or runs to draw. The target is a dotted line if all that have one agree; where there are curves,
            each of their targets is.
        base (`TradeOff`):
            The base model, or the run that the others are compared with.
        width (`float`, *optional*, defaults to `10.0`):
            Width in inches.

    Returns:
        `Figure`: 10 by 6.5 inches, 1200 pixels wide at 120 dpi; 5 inches high where it is narrower. Its label tells
        the numbers.
    """
    figure, (axis,) = new_figure(width, 6.5 if width >= WIDE else 5)
    curves = _curves(rows)
    figure.set_label("; ".join(map(str, [base, *(point for curve in curves for point in curve.points)])))
    canvas = FigureCanvasAgg(figure)
    everything = [*curves, _Curve([base], "black", "D")]
    for curve in everything:
        _draw_curve(axis, curve)
    target = common_target([row.target_length for row in rows])
    targets = sorted(
        {
            point.target_length
            for curve in curves
            if not curve.is_single
            for point in curve.points
            if point.target_length is not None
        }
    )
    targets = targets or ([] if target is None else [target])
    _set_frame(axis, [*rows, base], targets)
    for length in targets:
        axis.axvline(length, color="black", linestyle=":", linewidth=1.2, zorder=0)
        words = f" target {length:g}" if len(targets) == 1 else f" {length:g}"
        axis.text(length, 0.01, words, fontsize=LABEL_SIZE, transform=axis.get_xaxis_transform())
    dotted = "; dotted: targets" if len(targets) > 1 else ""
    has_several = {row.num_seeds > 1 for row in rows}
    sample = "seeds or problems" if len(has_several) > 1 else "seeds" if True in has_several else "problems"
    axis.set_xlabel(f"mean tokens, with 95 % interval over {sample}{dotted}")
    axis.set_ylabel(f"accuracy, with 95 % interval over {sample}")
    show_text_as_it_is(figure)
    canvas.draw()  # fixes where everything is
    figure.set_layout_engine("none")
    _draw_labels(axis, everything)
    return figure


def _curves(rows: Sequence[TradeOff]) -> list[_Curve]:
    """Rows of one method as one, with a look of its own; any other row by itself."""
    curves: list[_Curve] = []
    index = 0
    for own in _by_method(rows):
        targets = {row.target_length for row in own} - {None}
        if len(own) == 1 or len(targets or {row.settings for row in own}) < len(own):
            curves += [_Curve([row], row.color, "o") for row in own]
            continue
        points = sorted(own, key=lambda row: row.target_length or row.tokens.value)
        look = COLORS[index % len(COLORS)], MARKERS[index % len(MARKERS)]
        curves.append(_Curve(points, *look, is_dashed=index >= len(COLORS)))
        index += 1
    return curves


def _by_method(rows: Sequence[TradeOff]) -> list[list[TradeOff]]:
    """Rows by name; where a name has several settings at one target, by name and settings."""
    groups: dict[tuple[str, str], list[TradeOff]] = {}
    for row in rows:
        targets = [other.target_length for other in rows if other.name == row.name and other.target_length is not None]
        has_repeats = len({*targets}) < len(targets)
        groups.setdefault((row.name, row.settings if has_repeats else ""), []).append(row)
    return list(groups.values())


def _draw_curve(axis: Axes, curve: _Curve) -> None:
    for point in curve.points:
        accuracy, tokens = point.accuracy, point.tokens
        bars: dict[str, Any] = {"color": NEUTRAL if curve.is_single else curve.color, "linewidth": 0.8, "zorder": 2}
        axis.vlines(tokens.value, accuracy.low, accuracy.high, **bars)
        axis.hlines(accuracy.value, tokens.low, tokens.high, **bars)
    axis.plot(
        [point.tokens.value for point in curve.points],
        [point.accuracy.value for point in curve.points],
        linestyle="None" if curve.is_single else "--" if curve.is_dashed else "-",
        linewidth=1.4,
        marker=curve.marker,
        markersize=7 if curve.marker == "D" or not curve.is_single else 6,
        color=curve.color,
        zorder=3 + curve.end.is_leash,
    )


def _set_frame(axis: Axes, rows: Sequence[TradeOff], targets: Sequence[float]) -> None:
    """Limits around the points and most of their intervals; tokens by ratio, as lengths are shortened."""
    axis.set_xscale("log")
    axis.set_xlim(*np.exp(_limits([row.tokens for row in rows], targets, np.log, above=0.0)))
    axis.set_ylim(*_limits([row.accuracy for row in rows]))
    low, high = axis.get_xlim()
    is_wide = high / low > WIDE_RANGE
    axis.xaxis.set_major_locator(
        LogLocator(subs=(1, 2, 3, 5)) if is_wide else MaxNLocator(nbins=8, steps=[1, 2, 5, 10])
    )
    axis.xaxis.set_major_formatter(ScalarFormatter())
    axis.minorticks_off()


def _limits(
    estimates: Sequence[Estimate],
    others: Sequence[float] = (),
    scale: Callable[[Any], Any] = np.asarray,
    above: float = -math.inf,
) -> np.ndarray:
    """Ends of an axis: all values lie inside; of five or more intervals, the longest quarter may extend beyond."""
    values = [*(estimate.value for estimate in estimates), *others]
    lows = [estimate.low for estimate in estimates if estimate.low > above] or values
    highs = [estimate.high for estimate in estimates if not math.isnan(estimate.high)] or values
    low = min([*values, np.quantile(lows, REACHING_OUT, method="lower")])
    high = max([*values, np.quantile(highs, 1 - REACHING_OUT, method="higher")])
    ends = scale(np.array([low, high]))
    return np.asarray(ends + ROOM * (np.ptp(ends) or 0.2) * np.array([-1, 1]))


def _draw_labels(axis: Axes, curves: Sequence[_Curve]) -> None:
    """Names in columns right of the markers, each with a line to its own."""
    paper = {"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.5}
    style: dict[str, Any] = {"fontsize": LABEL_SIZE, "va": "center", "parse_math": False, "bbox": paper, "zorder": 2.5}
    texts = [axis.text(1, 0, curve.label, **style, **_label_style(curve)) for curve in curves]
    # behind the points that have a label, those without one, which keep labels away all the same
    rows = [curve.end for curve in curves]
    rows += [point for curve in curves for point in curve.points if point is not curve.end]
    widths = [text.get_window_extent().width for text in texts] + [0.0] * (len(rows) - len(texts))
    frame = axis.get_window_extent()
    points, columns = _columns(axis, rows, widths)
    for _ in range(NUM_FITTINGS):  # a narrower scale may join columns
        left, right = np.log(axis.get_xlim())
        beyond = max(columns + widths) + LABEL_GAP - frame.x1
        if beyond <= 0:
            break
        axis.set_xlim(right=np.exp(left + (right - left) * frame.width / (frame.width - beyond)))
        points, columns = _columns(axis, rows, widths)
    to_data = axis.transData.inverted().transform
    low, high = frame.y0 + LABEL_HEIGHT, frame.y1 - LABEL_HEIGHT
    for column in np.unique(columns[: len(texts)]):
        members = np.flatnonzero(columns[: len(texts)] == column).tolist()
        heights = spread_out(points[members, 1].tolist(), LABEL_HEIGHT, low, high)
        for member, height in zip(members, heights, strict=True):
            place = to_data((column, height))
            texts[member].set_position((place[0], place[1]))
            axis.plot(
                *np.array([to_data(points[member]), place]).T,
                color=curves[member].color,
                linewidth=0.6,
                zorder=2.4,
            )


def _label_style(curve: _Curve) -> dict[str, Any]:
    weight = {"fontweight": "bold"} if curve.end.is_leash else {}
    is_colored = curve.end.is_leash or not curve.is_single
    return {"color": curve.color, **weight} if is_colored else weight


def _columns(axis: Axes, rows: Sequence[TradeOff], widths: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Markers of shape `(N, 2)`, and where their labels begin, in pixels."""
    points = axis.transData.transform([(row.tokens.value, row.accuracy.value) for row in rows])
    ends = axis.transData.transform([(row.tokens.high, row.accuracy.value) for row in rows])[:, 0]
    # labels stand clear of intervals; the longest pass below them
    is_short = ends - points[:, 0] < SHORT_INTERVAL * axis.get_window_extent().width
    right = np.where(is_short, ends, points[:, 0])
    edges = np.column_stack([points[:, 0] - MARKER_RADIUS, np.fmax(right, points[:, 0] + MARKER_RADIUS)])
    return points, label_columns(edges, widths, LABEL_GAP)
