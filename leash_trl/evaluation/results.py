"""Metrics of a run's folder: one row per benchmark and an overall row; and the change against a baseline."""

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from leash_trl.evaluation.intervals import (
    Estimate,
    few_problems,
    mean_amount,
    mean_over_benchmarks,
    mean_share,
    mean_share_difference,
)
from leash_trl.evaluation.metrics import (
    accuracy_within_budgets,
    avg_at_k,
    majority_at_k,
    mean_tokens_where,
    pass_at_k,
    shortest_m_at_k,
    token_budgets,
)
from leash_trl.evaluation.samples import (
    REMEDY,
    ProblemSamples,
    SampledCompletion,
    read_run,
    read_samples,
    sample_files,
)


logger = logging.getLogger(__name__)

OVERALL = "overall"
# the paper of short-m@k recommends these two
VOTING_SHORTEST = (1, 3)
GRADED_AGAIN = "run the command that made this folder again: it grades them again"


@dataclass(frozen=True)
class BenchmarkResult:
    """One benchmark's metrics, or their means over benchmarks.

    Args:
        name (`str`):
            Name of the benchmark, or `"overall"`.
        num_problems (`int`), num_expected (`int`):
            Problems sampled, and problems there are; fewer of the former in a run that is not finished.
        num_graded (`int`):
            Problems of which a completion could be graded; the numbers below are of these.
        num_samples (`int`):
            k, completions per problem.
        means (`dict[str, Estimate]`):
            Means over problems, with intervals. In [0, 1]: `accuracy` (avg@k), `pass_at_2`, `pass_at_4`, ... up to k,
            `majority` (maj@k), `short_1_accuracy` and `short_3_accuracy` (short-m@k, where m < k), `truncated_rate`,
            `no_answer_rate`, and `accuracy_within_B` for each budget of B tokens. In tokens: `tokens` (length),
            `generated_tokens` (computed, trials of a decoding strategy included), `short_m_waiting_tokens` and
            `short_m_total_tokens`.
        statistics (`dict[str, float | None]`):
            Numbers of all completions together, in tokens: `median_tokens`, `p95_tokens`, `right_tokens` and
            `wrong_tokens` (mean lengths of right and of wrong completions, `None` where there are none).
    """

    name: str
    num_problems: int
    num_expected: int
    num_graded: int
    num_samples: int
    means: dict[str, Estimate]
    statistics: dict[str, float | None]

    @property
    def is_partial(self) -> bool:
        """Whether problems are missing."""
        return self.num_problems < self.num_expected

    @property
    def accuracy(self) -> Estimate:
        """avg@k, in [0, 1]."""
        return self.means["accuracy"]

    @property
    def tokens(self) -> Estimate:
        """Mean length in tokens."""
        return self.means["tokens"]

    @property
    def budget_curve(self) -> dict[int, Estimate]:
        """Accuracy within each budget, by the budget in tokens, in rising order."""
        prefix = "accuracy_within_"
        return {int(key.removeprefix(prefix)): mean for key, mean in self.means.items() if key.startswith(prefix)}


@dataclass(frozen=True, eq=False)
class ProblemMeans:
    """What comparing two runs problem by problem needs.

    Args:
        ids (`tuple[str, ...]` of length P):
            Names of the problems that could be graded.
        accuracy (`np.ndarray` of shape `(P,)`), tokens (`np.ndarray` of shape `(P,)`):
            Share of right completions in [0, 1], and mean length in tokens, of each problem.
        ungraded (`frozenset[str]`):
            Names of the problems that were sampled, but could not be graded.
    """

    ids: tuple[str, ...]
    accuracy: np.ndarray
    tokens: np.ndarray
    ungraded: frozenset[str]


@dataclass(frozen=True, eq=False)
class RunResults:
    """All metrics of a run.

    Args:
        run (`dict[str, Any]`):
            What the run's folder says about it.
        benchmarks (`tuple[BenchmarkResult, ...]`):
            One row per benchmark, in the run's order.
        overall (`BenchmarkResult`):
            Unweighted means over benchmarks, as in the paper's tables: 30 problems of AIME weigh as much as 83 of AMC.
            Each number is such a mean, medians and percentiles too, and `None` where one benchmark has none.
        problems (`dict[str, ProblemMeans]`):
            Values per problem by benchmark.
    """

    run: dict[str, Any]
    benchmarks: tuple[BenchmarkResult, ...]
    overall: BenchmarkResult
    problems: dict[str, ProblemMeans]

    @property
    def label(self) -> str:
        """Name of the run in tables."""
        return self.run["label"]

    @property
    def rows(self) -> tuple[BenchmarkResult, ...]:
        """The benchmarks, then the overall row."""
        return (*self.benchmarks, self.overall)


def have_overall(runs: Iterable[RunResults]) -> bool:
    """Whether means over benchmarks say something of these runs: all have the same benchmarks, and several."""
    benchmarks = {frozenset(run.problems) for run in runs}
    return len(benchmarks) == 1 and len(benchmarks.pop()) > 1


def interval_warning(runs: Iterable[RunResults]) -> str:
    """One line to say beside the intervals of runs whose problems are few or not all graded; else empty."""
    rows = sorted(((run.label, row) for run in runs for row in run.benchmarks), key=lambda pair: -pair[1].num_graded)
    lost = [
        f"{row.num_problems - row.num_graded} of {row.num_problems} of {row.name} in {label!r}"
        for label, row in rows
        if row.num_graded < row.num_problems
    ]
    left_out = f"Left out, because they could not be graded: {', '.join(lost)} ({GRADED_AGAIN})." if lost else ""
    return " ".join(filter(None, [few_problems({row.name: row.num_graded for _, row in rows}), left_out]))


@dataclass(frozen=True)
class Change:
    """How one benchmark, or the mean over benchmarks, differs from the baseline on the same problems.

    Args:
        name (`str`):
            Name of the benchmark, or `"overall"`.
        accuracy (`Estimate`):
            Difference of avg@k, in [-1, 1]; 0.01 is one point.
        tokens (`Estimate`):
            Difference of mean lengths in tokens; negative is shorter.
        relative_tokens (`Estimate`):
            Ratio of mean lengths minus 1, dimensionless; -0.5 is half as long.
    """

    name: str
    accuracy: Estimate
    tokens: Estimate
    relative_tokens: Estimate


@dataclass(frozen=True)
class RunComparison:
    """A run against a baseline.

    Args:
        label (`str`), baseline_label (`str`):
            Names of the two runs.
        benchmarks (`tuple[Change, ...]`):
            One per benchmark, in the run's order.
        overall (`Change`):
            Change of the unweighted means over benchmarks.
    """

    label: str
    baseline_label: str
    benchmarks: tuple[Change, ...]
    overall: Change

    @property
    def rows(self) -> tuple[Change, ...]:
        """The benchmarks, then the overall row."""
        return (*self.benchmarks, self.overall)


def load_results(folder: str | Path, allow_partial: bool = False) -> RunResults:
    """Metrics of the samples in a run's folder, with 95 % intervals over the problems of each benchmark.

    Args:
        folder (`str` or `Path`):
            Folder that `leash eval` or `leash filter` wrote.
        allow_partial (`bool`, *optional*, defaults to `False`):
            Whether to take a run that is not finished: rows of what is there, marked partial; a benchmark without any
            problem is left out.

    Raises:
        `ValueError`: As [`load_samples`], and if nothing of a benchmark could be graded.
    """
    run, samples = load_samples(folder, allow_partial)
    return _run_results(run, samples, {name: _gradable(f"{folder}, {name}", rows) for name, rows in samples.items()})


def load_samples(
    folder: str | Path, allow_partial: bool = False
) -> tuple[dict[str, Any], dict[str, list[ProblemSamples]]]:
    """What a run's folder says about the run, and its samples by benchmark, which fit each other.

    Args:
        folder (`str` or `Path`), allow_partial (`bool`, *optional*, defaults to `False`):
            As in [`load_results`].

    Raises:
        `ValueError`: If the folder holds no run, the run is not finished and `allow_partial` is false, no problem is
            sampled at all, or the samples do not fit what the run says.
    """
    run = read_run(folder)
    files = sample_files(folder)
    samples = {name: read_samples(files[name]) if name in files else [] for name in run["benchmarks"]}
    for name, problems in samples.items():
        _check_samples(f"{folder}, {name}", problems, run["benchmarks"][name]["num_problems"], run["num_samples"])
    if not allow_partial:
        _check_complete(folder, run, samples)
    samples = {name: problems for name, problems in samples.items() if problems}
    if not samples:
        raise ValueError(f"{folder} holds no samples yet; let leash eval sample at least one problem")
    return run, samples


def _check_samples(place: str, problems: list[ProblemSamples], num_expected: int, num_samples: int) -> None:
    ids = {problem.id for problem in problems}
    if len(ids) < len(problems):
        raise ValueError(f"{place}: {len(problems)} problems have {len(ids)} ids; {REMEDY}")
    if len(problems) > num_expected:
        raise ValueError(f"{place}: {len(problems)} problems, but the run says {num_expected}; mend its run.json")
    for problem in problems:
        if len(problem.completions) != num_samples:
            raise ValueError(
                f"{place}: problem {problem.id!r} has {len(problem.completions)} completions, but the run's "
                f"num_samples is {num_samples}; {REMEDY}"
            )


def _gradable(place: str, problems: list[ProblemSamples]) -> list[ProblemSamples]:
    """The problems without those of which nothing could be graded; says what could not.

    Raises:
        `ValueError`: If nothing is left.
    """
    failures = [
        completion.grader_failure
        for problem in problems
        for completion in problem.completions
        if completion.is_correct is None
    ]
    if not failures:
        return problems
    kept = [problem for problem in problems if any(c.is_correct is not None for c in problem.completions)]
    if not kept:
        raise ValueError(f"{place}: no completion could be graded (the first {failures[0]}); {GRADED_AGAIN}")
    logger.warning(
        "%s: %d of %d completions could not be graded (the first %s) and count as neither right nor wrong; so %d "
        "problems are left out; %s",
        place,
        len(failures),
        sum(len(problem.completions) for problem in problems),
        failures[0],
        len(problems) - len(kept),
        GRADED_AGAIN,
    )
    return kept


def _check_complete(folder: str | Path, run: dict[str, Any], samples: dict[str, list[ProblemSamples]]) -> None:
    expected = {name: benchmark["num_problems"] for name, benchmark in run["benchmarks"].items()}
    missing = [
        f"{name} has {len(problems)} of {expected[name]} problems"
        for name, problems in samples.items()
        if len(problems) < expected[name]
    ]
    if missing:
        raise ValueError(
            f"{folder} is not finished: {', '.join(missing)}; run the command that began it again, it goes on there"
        )


def _run_results(
    run: dict[str, Any], samples: dict[str, list[ProblemSamples]], graded: dict[str, list[ProblemSamples]]
) -> RunResults:
    budgets = token_budgets(run["sampling"]["max_new_tokens"])
    values = {name: _problem_values(problems, budgets) for name, problems in graded.items()}
    benchmarks = tuple(
        BenchmarkResult(
            name=name,
            num_problems=len(samples[name]),
            num_expected=run["benchmarks"][name]["num_problems"],
            num_graded=len(problems),
            num_samples=run["num_samples"],
            means={metric: _mean(metric, column) for metric, column in values[name].items()},
            statistics=_statistics(problems),
        )
        for name, problems in graded.items()
    )
    return RunResults(
        run=run,
        benchmarks=benchmarks,
        overall=_overall(run, benchmarks),
        problems={
            name: ProblemMeans(
                ids := tuple(problem.id for problem in problems),
                values[name]["accuracy"],
                values[name]["tokens"],
                frozenset(problem.id for problem in samples[name]).difference(ids),
            )
            for name, problems in graded.items()
        },
    )


def _mean(metric: str, values: np.ndarray) -> Estimate:
    return mean_amount(values) if metric.endswith("tokens") else mean_share(values)


def _overall(run: dict[str, Any], benchmarks: Sequence[BenchmarkResult]) -> BenchmarkResult:
    return BenchmarkResult(
        name=OVERALL,
        num_problems=sum(benchmark.num_problems for benchmark in benchmarks),
        num_expected=sum(benchmark["num_problems"] for benchmark in run["benchmarks"].values()),
        num_graded=sum(benchmark.num_graded for benchmark in benchmarks),
        num_samples=run["num_samples"],
        means={
            metric: mean_over_benchmarks([benchmark.means[metric] for benchmark in benchmarks])
            for metric in benchmarks[0].means
        },
        statistics={
            name: _mean_if_all([benchmark.statistics[name] for benchmark in benchmarks])
            for name in benchmarks[0].statistics
        },
    )


def _mean_if_all(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if len(numbers) == len(values) else None


def _table(problems: Sequence[ProblemSamples], field: Callable[[SampledCompletion], Any]) -> np.ndarray:
    """`np.ndarray` of shape `(P, k)`: One field of all completions."""
    return np.array([[field(completion) for completion in problem.completions] for problem in problems])


def _correctness_and_lengths(problems: Sequence[ProblemSamples]) -> tuple[np.ndarray, np.ndarray]:
    """Two `np.ndarray` of shape `(P, k)`: 1, 0 or, where it could not be graded, NaN; and tokens."""
    return _table(problems, attrgetter("is_correct")).astype(float), _table(problems, attrgetter("num_tokens"))


def _problem_values(problems: Sequence[ProblemSamples], budgets: Sequence[int]) -> dict[str, np.ndarray]:
    """Every metric that is a mean over problems, as one value per problem."""
    is_correct, lengths = _correctness_and_lengths(problems)
    answers = [[completion.answer for completion in problem.completions] for problem in problems]
    num_samples = is_correct.shape[1]
    values = {"accuracy": avg_at_k(is_correct)}
    values |= {f"pass_at_{k}": pass_at_k(is_correct, k) for k in _pass_sizes(num_samples)}
    values["majority"] = majority_at_k(answers, is_correct)
    for m in (m for m in VOTING_SHORTEST if m < num_samples):
        vote = shortest_m_at_k(answers, is_correct, lengths, m)
        values[f"short_{m}_accuracy"] = vote.is_right
        values[f"short_{m}_waiting_tokens"] = vote.waiting_tokens
        values[f"short_{m}_total_tokens"] = vote.total_tokens
    values["tokens"] = lengths.mean(axis=1)
    values["generated_tokens"] = _table(problems, attrgetter("num_generated_tokens")).mean(axis=1)
    values["truncated_rate"] = (_table(problems, attrgetter("finish_reason")) == "length").mean(axis=1)
    values["no_answer_rate"] = np.array([row.count(None) / num_samples for row in answers])
    within = accuracy_within_budgets(is_correct, lengths, budgets)
    return values | {f"accuracy_within_{budget}": within[:, i] for i, budget in enumerate(budgets)}


def _pass_sizes(num_samples: int) -> list[int]:
    doublings = [2**exponent for exponent in range(1, num_samples.bit_length())]
    return sorted({*doublings, num_samples} - {1})


def _statistics(problems: Sequence[ProblemSamples]) -> dict[str, float | None]:
    is_correct, lengths = _correctness_and_lengths(problems)
    return {
        "median_tokens": float(np.median(lengths)),
        "p95_tokens": float(np.quantile(lengths, 0.95)),
        "right_tokens": mean_tokens_where(lengths, is_correct == 1),
        "wrong_tokens": mean_tokens_where(lengths, is_correct == 0),
    }


def compare_results(run: RunResults, baseline: RunResults) -> RunComparison:
    """Differences of accuracy and length from a baseline on the same problems, with 95 % intervals.

    The intervals are those of the differences problem by problem, so how hard the problems are drops out. What one of
    the runs could not grade is left out of both; [`interval_warning`] says how much.

    Args:
        run (`RunResults`), baseline (`RunResults`):
            Runs on the same problems of the same benchmarks, in any order.

    Raises:
        `ValueError`: If benchmarks or sampled problems differ, or the runs have no graded problem in common.
    """
    _check_same(run, baseline, set(run.problems), set(baseline.problems), "benchmarks")
    num_samples = min(run.overall.num_samples, baseline.overall.num_samples)
    pairs = {}
    for name, own in run.problems.items():
        base = baseline.problems[name]
        _check_same(run, baseline, {*own.ids, *own.ungraded}, {*base.ids, *base.ungraded}, f"problems of {name}")
        ids = tuple(problem_id for problem_id in own.ids if problem_id not in base.ungraded)
        if not ids:
            raise ValueError(
                f"{run.label!r} and its baseline {baseline.label!r} have no problem of {name} graded in both; run the "
                "commands that made their folders again: they grade them again"
            )
        pairs[name] = (_chosen(own, ids), _chosen(base, ids))
    changes = tuple(_change(name, [pair], num_samples) for name, pair in pairs.items())
    return RunComparison(
        label=run.label,
        baseline_label=baseline.label,
        benchmarks=changes,
        overall=_change(OVERALL, list(pairs.values()), num_samples),
    )


def _check_same(run: RunResults, baseline: RunResults, own: set[str], other: set[str], what: str) -> None:
    if own != other:
        raise ValueError(
            f"{run.label!r} and its baseline {baseline.label!r} differ in {what}: only in the run "
            f"{_first_few(own - other)}, only in the baseline {_first_few(other - own)}; "
            "evaluate both on the same problems"
        )


def _first_few(names: set[str]) -> str:
    shown = ", ".join(sorted(names)[:5]) or "none"
    return f"{shown} and {len(names) - 5} more" if len(names) > 5 else shown


def _chosen(problems: ProblemMeans, ids: tuple[str, ...]) -> ProblemMeans:
    place = {problem_id: i for i, problem_id in enumerate(problems.ids)}
    order = [place[problem_id] for problem_id in ids]
    return ProblemMeans(ids, problems.accuracy[order], problems.tokens[order], problems.ungraded)


def _change(name: str, pairs: Sequence[tuple[ProblemMeans, ProblemMeans]], num_samples: int) -> Change:
    """Change of the mean over benchmarks, of each of which there is a pair: the run's problems and the baseline's."""
    return Change(
        name=name,
        accuracy=mean_over_benchmarks(
            [mean_share_difference(own.accuracy - base.accuracy, num_samples) for own, base in pairs]
        ),
        tokens=mean_over_benchmarks([mean_amount(own.tokens - base.tokens, lowest=-math.inf) for own, base in pairs]),
        relative_tokens=ratio_minus_one([own.tokens for own, _ in pairs], [base.tokens for _, base in pairs]),
    )


def ratio_minus_one(values: Sequence[np.ndarray], baseline: Sequence[np.ndarray]) -> Estimate:
    r"""Ratio of two means over benchmarks minus 1, with the interval of what each problem changes in it.

    $$ v_i = (P_b - 1) (r - r_{-i}) $$

    with the ratio $r_{-i}$ without problem i, the jackknife: long problems of the baseline count for what they are.

    Args:
        values (`Sequence` of B arrays of shape `(P_b,)`), baseline (`Sequence` of B arrays of shape `(P_b,)`):
            One positive value per problem, by benchmark; both of the same problems.
    """
    total, base = sum(float(column.mean()) for column in values), sum(float(column.mean()) for column in baseline)
    ratio, parts = total / base, []
    for own, other in zip(values, baseline, strict=True):
        others = max(1, len(own) - 1)
        without = (total + (own.mean() - own) / others) / (base + (other.mean() - other) / others)
        # times B, because what the benchmarks change adds up, and the mean below divides by B
        parts.append(mean_amount(len(values) * others * (ratio - without), lowest=-math.inf))
    change = mean_over_benchmarks(parts)
    low, high = (ratio - 1 + end - change.value for end in (change.low, change.high))
    return Estimate(ratio - 1, max(low, -1.0), high)  # in this order NaN stays NaN
