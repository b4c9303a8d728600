"""Builds the tables of `leash eval`, `leash compare`, cards and reports: Markdown to read, CSV and JSON to compute with.

`frame` has the numbers of runs, `intervals` the arithmetic. A number is empty where it does not exist.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from leash_trl.evaluation.intervals import (
    SIGNIFICANCE,
    Estimate,
    holm,
    mean_amount,
    mean_over_seeds,
    mean_share,
    t_quantile,
    welch,
)


# weights of the accuracy-efficiency score
LENGTH_WEIGHT = 1.0
GAIN_WEIGHT = 3.0
LOSS_WEIGHT = 5.0
WINDOW = 10  # training batches in a running mean; single ones are noise
MARGIN = 0.05  # a point may be longer by this share and still beat another

# columns of a comparison's files that hold numbers; with name and seeds, all but the fields of its grid
COMPARISON_NUMBERS = (
    "accuracy",
    "accuracy_interval_low",
    "accuracy_interval_high",
    "mean_tokens",
    "p95_tokens",
    "token_change",
    "efficiency_score",
    "mean_tokens_interval_low",
    "mean_tokens_interval_high",
    "target_length",
    "satisfaction_rate",
    "settling_error",
    "worst_settling_error",
    "near_target_share",
    "overshoot",
    "steps_to_target",
    "num_reached",
    "generated_tokens",
)
COMPARISON_COLUMNS = ("name", "seeds", *COMPARISON_NUMBERS)
COMPARISON_LEGEND = (
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
LEVEL_LEGEND = (
    "By level, which is the number of terms to add: accuracy and mean tokens, means over seeds. levels.csv has "
    "Student's t intervals of the means over seeds."
)


def percent(share: float | None) -> str:
    """A share in percent.

    Example:
        >>> percent(0.1234), percent(None)
        ('12.3', '')
    """
    return "" if pd.isna(share) else f"{100 * share:.1f}"


def tokens(count: float | None) -> str:
    """A number of tokens: without decimals from 1,000 on.

    Example:
        >>> tokens(16912.4), tokens(46.04)
        ('16,912', '46.0')
    """
    return "" if pd.isna(count) else f"{count:,.0f}" if abs(count) >= 1000 else f"{count:.1f}"


def plain(number: float | None) -> str:
    """A number without a unit, with three digits.

    Example:
        >>> plain(0.58061), plain(63.5), plain(0.0)
        ('0.581', '63.5', '0')
    """
    return "" if pd.isna(number) else f"{number:.3g}"


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
    return shown(number.value) + ("" if math.isnan(number.low) else f" [{shown(number.low)}, {shown(number.high)}]")


def markdown(frame: pd.DataFrame) -> str:
    """A Markdown table of a frame of text, whose first column is words and whose others are numbers.

    Example:
        >>> print(markdown(pd.DataFrame({"run": ["base"], "tokens": ["7"]})))
        | run | tokens |
        | --- | ---: |
        | base | 7 |
    """
    alignment = ["---", *["---:"] * (len(frame.columns) - 1)]
    rows = ([*frame.columns], alignment, *frame.itertuples(index=False, name=None))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def csv(frame: pd.DataFrame) -> str:
    """A frame as CSV in full precision, empty for `None` and NaN.

    Example:
        >>> csv(pd.DataFrame([{"run": "base"}, {"run": "leash", "tokens": 7.0}])).splitlines()
        ['run,tokens', 'base,', 'leash,7.0']
    """
    text: str = frame.to_csv(index=False, lineterminator="\n")
    return text


def accuracy_efficiency_score(accuracy: float, tokens: float, base_accuracy: float, base_tokens: float) -> float:
    r"""Accuracy-efficiency score (AES), dimensionless; 0 is the base.

    $$ \mathrm{AES} = \alpha \Delta L + \begin{cases} \beta |\Delta A| & \Delta A \ge 0 \\
    -\gamma |\Delta A| & \Delta A < 0 \end{cases}, \qquad
    \Delta L = \frac{L_0 - L}{L_0}, \quad \Delta A = \frac{A - A_0}{A_0}, \quad \alpha, \beta, \gamma = 1, 3, 5 $$

    Tokens saved count once, accuracy gained three times, accuracy lost five times, each relative to the base.

    Source: [O1-Pruner](https://huggingface.co/papers/2501.12570), with the weights that the literature uses since.

    Example:
        >>> round(accuracy_efficiency_score(0.9, 60.0, base_accuracy=0.8, base_tokens=100.0), 9)  # 0.4 + 3 * 0.125
        0.775
        >>> round(accuracy_efficiency_score(0.72, 60.0, base_accuracy=0.8, base_tokens=100.0), 9)  # 0.4 - 5 * 0.1
        -0.1
    """
    length_gain = (base_tokens - tokens) / base_tokens
    accuracy_change = (accuracy - base_accuracy) / base_accuracy
    weight = GAIN_WEIGHT if accuracy_change >= 0 else LOSS_WEIGHT
    return LENGTH_WEIGHT * length_gain + weight * accuracy_change


def first_step_at_target(steps: np.ndarray, mean_lengths: np.ndarray, target_length: float) -> int | None:
    """The first training step whose batch has a mean length at or under the target; `None` if there is none.

    Args:
        steps (`np.ndarray` of shape `(S,)`):
            Optimizer steps in order.
        mean_lengths (`np.ndarray` of shape `(S,)`):
            Mean lengths of their batches in tokens.
        target_length (`float`):
            Target in tokens.

    Example:
        >>> first_step_at_target(np.array([1, 2, 3]), np.array([60.0, 46.0, 50.0]), 46)
        2
    """
    is_reached = mean_lengths <= target_length
    return int(steps[is_reached.argmax()]) if is_reached.any() else None


def settling(steps: np.ndarray, mean_lengths: np.ndarray, target_length: float | None) -> dict[str, float | None]:
    """How the training batches came to the target and stayed there; `None` for what cannot be said.

    Args:
        steps (`np.ndarray` of shape `(S,)`), mean_lengths (`np.ndarray` of shape `(S,)`):
            Optimizer steps since the target last changed, and the mean length of their batches in tokens.
        target_length (`float`, *optional*):
            Target in tokens.

    Returns:
        `dict`: `settling_error`, the distance of the mean length of the last quarter of the batches from the target,
        as a share of it; from the first batch at or under the target on, `near_target_share`, the share of running
        means over ten batches within 10 % of it; `overshoot`, how far below it any running mean went, as a share of
        it; and `steps_to_target`.

    Example:
        >>> settling(np.arange(1, 17), np.array([128.0] * 6 + [48.0] * 10), 64)
        {'settling_error': 0.25, 'near_target_share': 0.0, 'overshoot': 0.25, 'steps_to_target': 7}
    """
    found = dict.fromkeys(("settling_error", "near_target_share", "overshoot", "steps_to_target"))
    if target_length is None or len(steps) == 0:
        return found
    last_quarter = mean_lengths[-max(1, len(mean_lengths) // 4) :]
    found["settling_error"] = abs(float(last_quarter.mean() / target_length) - 1.0)
    first = first_step_at_target(np.arange(len(steps)), mean_lengths, target_length)
    if first is not None:
        near = np.abs(_running_means(mean_lengths[first:]) / target_length - 1.0) <= 0.1
        found["near_target_share"] = float(near.mean())
        found["overshoot"] = max(0.0, 1.0 - float(_running_means(mean_lengths).min() / target_length))
        found["steps_to_target"] = int(steps[first])
    return found


def _running_means(mean_lengths: np.ndarray) -> np.ndarray:
    window = min(WINDOW, len(mean_lengths))
    return np.convolve(mean_lengths, np.full(window, 1 / window), mode="valid")


def seed_row(
    name: str,
    seed: int,
    samples: pd.DataFrame,
    base: Mapping[str, Any],
    target_length: float | None,
    steps: np.ndarray,
    mean_lengths: np.ndarray,
    generated_tokens: int | None,
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """One trained model's row of `seeds.csv`; [`read_comparison`] reads the file back for [`comparison_markdown`].

    Args:
        name (`str`), seed (`int`):
            Name of the method, and seed of training and sampling.
        samples (`pd.DataFrame`):
            Graded completions, in the columns of [`~leash_trl.evaluation.frame.load_samples`].
        base (`Mapping[str, Any]`):
            The base model's `accuracy`, `accuracy_interval`, `mean_tokens` and `p95_tokens`.
        target_length (`float`, *optional*), steps (`np.ndarray`), mean_lengths (`np.ndarray`):
            As for [`settling`].
        generated_tokens (`int`, *optional*):
            Tokens generated in training.
        settings (`Mapping[str, Any]`):
            Values of the fields of its grid other than the target.
    """
    by_problem = samples.groupby("id", sort=False)
    accuracy = mean_share(by_problem["is_correct"].mean().to_numpy())
    length = mean_amount(by_problem["num_tokens"].mean().to_numpy())
    found = settling(steps, mean_lengths, target_length)
    numbers = {
        **_with_ends("accuracy", accuracy),
        **_with_ends("mean_tokens", length),
        **_against(base, accuracy.value, length.value),
        "p95_tokens": float(np.quantile(samples["num_tokens"], 0.95)),
        "target_length": target_length,
        "satisfaction_rate": None if target_length is None else float((samples["num_tokens"] <= target_length).mean()),
        **found,
        "worst_settling_error": found["settling_error"],
        "num_reached": int(found["steps_to_target"] is not None),
        "generated_tokens": generated_tokens,
    }
    words = {field: str(value) for field, value in settings.items()}
    return {"name": name, "seeds": str(seed), **{column: numbers[column] for column in COMPARISON_NUMBERS}, **words}


def _with_ends(name: str, number: Estimate) -> dict[str, float]:
    return {name: number.value, f"{name}_interval_low": number.low, f"{name}_interval_high": number.high}


def _against(base: Mapping[str, Any], accuracy: float, length: float) -> dict[str, float]:
    score = accuracy_efficiency_score(accuracy, length, base["accuracy"], base["mean_tokens"])
    return {"token_change": length / base["mean_tokens"] - 1, "efficiency_score": score}


def read_comparison(path: str | Path) -> pd.DataFrame:
    """Rows of a comparison's `seeds.csv` or `table.csv`: numbers as numbers, fields of its grid as text."""
    dtype = defaultdict(lambda: str, dict.fromkeys(COMPARISON_NUMBERS, float))
    return pd.read_csv(path, dtype=dtype, keep_default_na=False, na_values=[""])


def comparison_points(seeds: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The seeds of each point of a comparison, by its method, settings and target in words."""
    by = ["name", *_grid(seeds), "target_length"]
    found = {}
    for _, own in seeds.groupby(by, dropna=False, sort=False):
        target = own["target_length"].iloc[0]
        found[in_words(own.iloc[0]) + ("" if math.isnan(target) else f" at {target:g}")] = own
    return found


def _grid(rows: pd.DataFrame) -> list[str]:
    """Fields of a comparison's grid other than the target."""
    return [column for column in rows.columns if column not in COMPARISON_COLUMNS]


def in_words(row: Mapping[str, Any]) -> str:
    """Method and settings of a comparison's row.

    Example:
        >>> in_words({"name": "DOT", "length_control_kwargs.alpha": "0.5", "lambda_lr": ""})
        'DOT, alpha 0.5'
    """
    settings = [
        f"{field.rpartition('.')[2]} {value}"
        for field, value in row.items()
        if field not in COMPARISON_COLUMNS and value != "" and not pd.isna(value)
    ]
    return ", ".join([row["name"], *settings])


def comparison_rows(
    seeds: pd.DataFrame, base: Mapping[str, Any], p95_tokens: Sequence[float] | None = None
) -> pd.DataFrame:
    """The base and each point of a comparison with means over its seeds, in the columns of `table.csv`.

    Args:
        seeds (`pd.DataFrame`):
            As [`read_comparison`] reads it.
        base (`Mapping[str, Any]`):
            As for [`seed_row`].
        p95_tokens (`Sequence[float]`, *optional*):
            95th percentile of the lengths of all seeds together, for each point in order. It does not follow from
            those of the seeds, so without it only points with one seed have one.
    """
    low, high = base["accuracy_interval"]
    first = {"name": "base", "seeds": "", "accuracy": base["accuracy"], "num_reached": 0}
    first |= {"accuracy_interval_low": low, "accuracy_interval_high": high, "mean_tokens": base["mean_tokens"]}
    first |= {"p95_tokens": base["p95_tokens"], "token_change": 0.0, "efficiency_score": 0.0}
    rows = [_point_row(own, base) for own in comparison_points(seeds).values()]
    for row, p95 in zip(rows, p95_tokens or (), strict=bool(p95_tokens)):
        row["p95_tokens"] = p95
    return pd.DataFrame([first, *rows], columns=list(seeds.columns))


def _point_row(own: pd.DataFrame, base: Mapping[str, Any]) -> dict[str, Any]:
    row = own.iloc[0].to_dict()
    if len(own) == 1:
        return row
    accuracy = mean_over_seeds(own["accuracy"].to_numpy(), highest=1.0)
    length = mean_over_seeds(own["mean_tokens"].to_numpy())
    means = own[["satisfaction_rate", "settling_error", "near_target_share", "overshoot", "steps_to_target"]].mean()
    return {
        **row,
        "seeds": " ".join(own["seeds"]),
        **_with_ends("accuracy", accuracy),
        **_with_ends("mean_tokens", length),
        **_against(base, accuracy.value, length.value),
        **means,
        "p95_tokens": math.nan,
        "worst_settling_error": own["settling_error"].max(),
        "num_reached": own["num_reached"].sum(),
        "generated_tokens": own["generated_tokens"].mean(),
    }


def comparison_markdown(
    seeds: pd.DataFrame,
    base: Mapping[str, Any],
    levels: pd.DataFrame | None = None,
    p95_tokens: Sequence[float] | None = None,
) -> str:
    """The result of a comparison: its methods, which of them are told apart, their front, and each level of problems.

    Args:
        seeds (`pd.DataFrame`), base (`Mapping[str, Any]`), p95_tokens (`Sequence[float]`, *optional*):
            As for [`comparison_rows`].
        levels (`pd.DataFrame`, *optional*):
            All [`level_rows`].
    """
    known = {name: own for name, own in comparison_points(seeds).items() if len(own) > 1}
    paragraphs = [_comparison_table(comparison_rows(seeds, base, p95_tokens)), COMPARISON_LEGEND]
    if len(known) > 1:
        others = [name for name in comparison_points(seeds) if name not in known]
        left_out = [f"Not told apart, for want of a second seed: {', '.join(others)}."] if others else []
        paragraphs += [*_pairs_told(known), *left_out, _front_table(known), FRONT_LEGEND, *_equal_length_table(known)]
    if levels is not None:
        paragraphs += [_level_table(levels), LEVEL_LEGEND]
    return "\n\n".join(paragraphs)


def _comparison_table(rows: pd.DataFrame) -> str:
    fields = ["target_length", *_grid(rows)]
    names = ["target", *(field.rpartition(".")[2] for field in fields[1:])]
    headings = {f: name if names.count(name) == 1 else f for f, name in zip(fields, names, strict=True)}
    shown = [field for field in fields if rows[field].nunique() > 1]
    cells = [{headings[field]: _setting(row[field]) for field in shown} for row in rows.to_dict("records")]
    return markdown(
        pd.DataFrame(
            [{"method": row["name"], **own, **_cells(row)} for row, own in zip(rows.to_dict("records"), cells, strict=True)]
        )
    )


def _setting(value: Any) -> str:
    return "" if pd.isna(value) else f"{value:g}" if isinstance(value, float) else value


def _cells(row: Mapping[str, Any]) -> dict[str, str]:
    """One line of a comparison's table after the columns of its grid; the base's has no seeds."""
    accuracy, length = (
        Estimate(row[name], row[f"{name}_interval_low"], row[f"{name}_interval_high"])
        for name in ("accuracy", "mean_tokens")
    )
    num_seeds = len(row["seeds"].split())
    settled = _shown(row["settling_error"], "{:.1%}") + _shown(row["worst_settling_error"], " ({:.1%})")
    return {
        "seeds": str(num_seeds or ""),
        "accuracy [95 % of the mean]": with_interval(accuracy, "{:.3f}".format),
        "tokens [95 % of the mean]": with_interval(length, "{:.1f}".format),
        "p95": _shown(row["p95_tokens"], "{:.0f}"),
        "change": f"{row['token_change']:+.1%}" if num_seeds else "",
        "satisfied": _shown(row["satisfaction_rate"], "{:.3f}"),
        "settled off (worst)": settled,
        "stays near": _shown(row["near_target_share"], "{:.0%}"),
        "overshoot": _shown(row["overshoot"], "{:.1%}"),
        "steps to target": _steps(row, num_seeds),
        "tokens in training": _shown(row["generated_tokens"] / 1e6, "{:.2f} M"),
        "AES": f"{row['efficiency_score']:+.2f}" if num_seeds else "",
    }


def _shown(value: float, form: str) -> str:
    return "" if math.isnan(value) else form.format(value)


def _steps(row: Mapping[str, Any], num_seeds: int) -> str:
    if math.isnan(row["target_length"]):
        return ""
    share = "" if row["num_reached"] == num_seeds else f" ({row['num_reached']:.0f} of {num_seeds})"
    return f"{row['steps_to_target']:.0f}{share}" if row["num_reached"] else "never"


def _shown_signs(differences: Sequence[tuple[float, float]], is_corrected: bool) -> np.ndarray:
    """Of differences with their p values: 1 where shown to be positive, -1 where negative, else 0."""
    means, p_values = np.array(differences).T
    return np.sign(means) * (holm(p_values) if is_corrected else p_values < SIGNIFICANCE)


def _pairs_told(points: Mapping[str, pd.DataFrame]) -> list[str]:
    """How many pairs of methods at the same target are told apart."""
    pairs = [
        (first, second)
        for first, second in itertools.combinations(points.values(), 2)
        if first["name"].iloc[0] != second["name"].iloc[0]
        and first["target_length"].iloc[0] == second["target_length"].iloc[0]
    ]
    if not pairs:
        return []
    differences = [
        welch(first[metric].to_numpy(), second[metric].to_numpy())
        for metric in ("accuracy", "mean_tokens")
        for first, second in pairs
    ]
    counts = []
    for is_corrected in (False, True):
        accuracy, length = np.split(_shown_signs(differences, is_corrected) != 0, 2)
        counts.append((accuracy.sum(), length.sum(), (accuracy | length).sum()))
    alone, corrected = counts
    return [
        f"Of {len(pairs)} pairs of methods at the same target, {alone[0]} are told apart by accuracy, {alone[1]} by "
        f"tokens, {alone[2]} by either: Welch's 95 % t interval of the difference of the means over seeds excludes 0. "
        f"After Holm's correction over these {2 * len(pairs)} intervals: {corrected[0]}, {corrected[1]} and "
        f"{corrected[2]}."
    ]


def _front_table(points: Mapping[str, pd.DataFrame]) -> str:
    alone, corrected = front(points, is_corrected=False), front(points, is_corrected=True)
    return markdown(alone.assign(after=corrected["front"]).rename(columns={"after": "after Holm"}))


def front(points: Mapping[str, pd.DataFrame], is_corrected: bool) -> pd.DataFrame:
    """Where each point lies relative to the front of accuracy over tokens, and which points beat it.

    A point beats another if its accuracy is higher and its mean tokens are less than 1.05 times the other's. What
    another beats is off the front. On the front is a point if each other one has a lower accuracy or more tokens. Both
    must be shown; of the rest it cannot be told.

    Args:
        points (`Mapping[str, pd.DataFrame]`):
            Two seeds or more of each point, with columns `accuracy` and `mean_tokens`.
        is_corrected (`bool`):
            Whether only what Holm's procedure over all differences of all points shows counts as shown.

    Returns:
        `pd.DataFrame`: Columns `point`, `front` ("on it", "off it" or "cannot be told") and `beaten by`.
    """
    names = [*points]
    accuracies, lengths = ([own[name].to_numpy() for own in points.values()] for name in ("accuracy", "mean_tokens"))
    pairs = list(itertools.combinations(range(len(names)), 2))
    turned = [(second, first) for first, second in pairs]
    tests = [(accuracies, 1.0, pairs), (lengths, 1.0, pairs), (lengths, 1 + MARGIN, pairs), (lengths, 1 + MARGIN, turned)]
    differences = [welch(values[j], factor * values[i]) for values, factor, chosen in tests for i, j in chosen]
    # of the second point over the first, by their indexes; 0 on the diagonal
    gain, cost, excess = np.zeros((3, len(names), len(names)))
    upper = np.triu_indices(len(names), 1)
    gain[upper], cost[upper], excess[upper], excess.T[upper] = np.split(_shown_signs(differences, is_corrected), 4)
    gain, cost = gain - gain.T, cost - cost.T
    is_beaten = (gain > 0) & (excess < 0)
    is_safe = (gain < 0) | (cost > 0) | np.eye(len(names), dtype=bool)
    return pd.DataFrame(
        {
            "point": names,
            "front": np.where(
                is_beaten.any(axis=1), "off it", np.where(is_safe.all(axis=1), "on it", "cannot be told")
            ),
            "beaten by": [", ".join(itertools.compress(names, others)) for others in is_beaten],
        }
    )


def _equal_length_table(points: Mapping[str, pd.DataFrame]) -> list[str]:
    """Every curve against the first one: points by method, and by settings where they share a target."""
    curves: dict[str, list[pd.DataFrame]] = {}
    targets = pd.DataFrame([own.iloc[0] for own in points.values()]).groupby("name")["target_length"]
    has_repeats = targets.agg(lambda column: column.dropna().duplicated().any())
    for own in points.values():
        method = own["name"].iloc[0]
        curves.setdefault(in_words(own.iloc[0]) if has_repeats[method] else method, []).append(own)
    (reference, first), *others = [(name, own) for name, own in curves.items() if len(own) > 1] or [("", [])]
    rows = []
    for name, own in others:
        cell, covered = _equal_length(own, first)
        rows.append({"method": name, f"accuracy minus that of {reference} [95 % of the mean]": cell, "tokens": covered})
    return [markdown(pd.DataFrame(rows)), EQUAL_LENGTH_LEGEND] if rows else []


def _equal_length(first: Sequence[pd.DataFrame], second: Sequence[pd.DataFrame]) -> tuple[str, str]:
    found = accuracy_at_equal_length(first, second)
    if found is None:
        return "n/a", ""
    difference, shortest, longest = found
    return with_interval(difference, "{:+.3f}".format), f"{shortest:.1f} to {longest:.1f}"


def accuracy_at_equal_length(
    first: Sequence[pd.DataFrame], second: Sequence[pd.DataFrame]
) -> tuple[Estimate, float, float] | None:
    r"""How much more accurate the first method is at the same length, and the range of that in tokens.

    $$ d_s = \frac{1}{\log b - \log a} \int_{\log a}^{\log b} (A_s - B_s) \, d \log T, \qquad
    \bar d \pm t_{S-1} \, \mathrm{sd}(d) / \sqrt S $$

    $A_s$ and $B_s$ are lines through the points of seed s, accuracy over the logarithm of mean tokens T, and [a, b] is
    the range that the curves of both methods cover with every seed. The integral of such lines is exact.

    Args:
        first (`Sequence[pd.DataFrame]`), second (`Sequence[pd.DataFrame]`):
            The seeds of two methods' points, two points or more each.

    Returns:
        `tuple`, or `None` if the seeds are not the same at all points, or there is no range that all cover.
    """
    if len({tuple(sorted(own["seeds"])) for own in (*first, *second)}) > 1:
        return None
    curves = [_curves(first), _curves(second)]
    low = float(max(lengths[:, 0].max() for lengths, _ in curves))
    high = float(min(lengths[:, -1].min() for lengths, _ in curves))
    if low >= high:
        return None
    differences = []
    for own_lengths, own, other_lengths, other in zip(*curves[0], *curves[1], strict=True):
        inside = np.concatenate([[low, high], own_lengths, other_lengths])
        knots = np.unique(inside[(inside >= low) & (inside <= high)])
        gap = np.interp(knots, own_lengths, own) - np.interp(knots, other_lengths, other)
        differences.append(float(((gap[1:] + gap[:-1]) / 2 * np.diff(knots)).sum() / (high - low)))
    mean, size = float(np.mean(differences)), len(differences)
    reach = t_quantile(size - 1) * math.sqrt(np.var(differences, ddof=1) / size)
    return Estimate(mean, mean - reach, mean + reach), math.exp(low), math.exp(high)


def _curves(points: Sequence[pd.DataFrame]) -> tuple[np.ndarray, np.ndarray]:
    """Logarithms of tokens in rising order, and accuracies, of each seed in the order of seeds, `(S, points)`."""
    ordered = [own.sort_values("seeds") for own in points]
    lengths = np.log([own["mean_tokens"] for own in ordered]).T
    rising = np.argsort(lengths, axis=1)
    accuracies = np.array([own["accuracy"] for own in ordered]).T
    return np.take_along_axis(lengths, rising, 1), np.take_along_axis(accuracies, rising, 1)


def level_rows(
    name: str, target_length: float | None, runs: Sequence[pd.DataFrame], levels: Sequence[int]
) -> list[dict[str, Any]]:
    """One point's rows of `levels.csv`, a row per level of the problems.

    Args:
        name (`str`), target_length (`float`, *optional*):
            Name of the method with its settings ([`in_words`]), and its target in tokens.
        runs (`Sequence[pd.DataFrame]`):
            The samples of its seeds.
        levels (`Sequence[int]`):
            Level of each problem, by the samples' `index`.
    """
    parts = [run.groupby(np.asarray(levels)[run["index"]])[["is_correct", "num_tokens"]].mean() for run in runs]
    return [
        {
            "name": name,
            "target_length": target_length,
            "level": level,
            **_with_ends("accuracy", mean_over_seeds(own["is_correct"].to_numpy(), 1.0)),
            **_with_ends("mean_tokens", mean_over_seeds(own["num_tokens"].to_numpy())),
        }
        for level, own in pd.concat(parts).groupby(level=0)
    ]


def _level_table(levels: pd.DataFrame) -> str:
    """A line per point: its accuracy and tokens at each level."""
    rows = []
    for (name, target), own in levels.groupby(["name", "target_length"], dropna=False, sort=False):
        cells = {f"level {row.level}": f"{row.accuracy:.3f}, {row.mean_tokens:.1f}" for row in own.itertuples()}
        rows.append({"method": name, "target": "" if math.isnan(target) else f"{target:g}", **cells})
    return markdown(pd.DataFrame(rows))
