"""Computes the metrics of a run's folder: one row per benchmark, and one for the mean over benchmarks."""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from leash_trl.evaluation.intervals import Estimate, few_problems, mean_amount, mean_over_benchmarks, mean_share
from leash_trl.evaluation.metrics import (
    accuracy_within_budgets,
    avg_at_k,
    majority_at_k,
    mean_tokens_where,
    pass_at_k,
    shortest_m_at_k,
    token_budgets,
)
from leash_trl.evaluation.samples import ProblemSamples, SampledCompletion, load_samples


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
        num_problems (`int`), num_graded (`int`):
            Problems sampled, and those of which a completion could be graded; the numbers below are of these.
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
            `wrong_tokens` (mean lengths of correct and of wrong completions, `None` where there are none).
    """

    name: str
    num_problems: int
    num_graded: int
    num_samples: int
    means: dict[str, Estimate]
    statistics: dict[str, float | None]

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
class RunResults:
    """All metrics of a run.

    Args:
        run (`dict[str, Any]`):
            The content of the run's `run.json`.
        benchmarks (`tuple[BenchmarkResult, ...]`):
            One row per benchmark, in the run's order.
        overall (`BenchmarkResult`):
            Unweighted means over benchmarks, as in the paper's tables: 30 problems of AIME weigh as much as 83 of AMC.
            Each number is such a mean, medians and percentiles too, and `None` where one benchmark has none.
        problems (`dict[str, dict[str, tuple[float, float] | None]]`):
            By benchmark and id of the problem: its share of correct completions in [0, 1] and its mean length in
            tokens; `None` where no completion could be graded.
    """

    run: dict[str, Any]
    benchmarks: tuple[BenchmarkResult, ...]
    overall: BenchmarkResult
    problems: dict[str, dict[str, tuple[float, float] | None]]

    @property
    def label(self) -> str:
        """Name of the run in tables."""
        return self.run["label"]

    @property
    def rows(self) -> tuple[BenchmarkResult, ...]:
        """The benchmarks, then the overall row."""
        return (*self.benchmarks, self.overall)


def have_overall(runs: Iterable[RunResults]) -> bool:
    """Whether means over benchmarks make sense for these runs: all have the same benchmarks, and several."""
    benchmarks = {frozenset(run.problems) for run in runs}
    return len(benchmarks) == 1 and len(benchmarks.pop()) > 1


def interval_warning(runs: Iterable[RunResults]) -> str:
    """One warning line for the intervals of runs whose problems are few or not all graded; else empty."""
    rows = sorted(((run.label, row) for run in runs for row in run.benchmarks), key=lambda pair: -pair[1].num_graded)
    lost = [
        f"{row.num_problems - row.num_graded} of {row.num_problems} of {row.name} in {label!r}"
        for label, row in rows
        if row.num_graded < row.num_problems
    ]
    left_out = f"Left out, because they could not be graded: {', '.join(lost)} ({GRADED_AGAIN})." if lost else ""
    return " ".join(filter(None, [few_problems({row.name: row.num_graded for _, row in rows}), left_out]))


def load_results(folder: str | Path) -> RunResults:
    """Metrics of the samples in a run's folder, with 95 % intervals over the problems of each benchmark.

    Args:
        folder (`str` or `Path`):
            Folder that `leash eval` or `leash filter` wrote.

    Raises:
        `ValueError`: As [`~leash_trl.evaluation.samples.load_samples`], and if nothing of a benchmark could be graded.
    """
    run, samples = load_samples(folder)
    budgets = token_budgets(run["sampling"]["max_new_tokens"])
    benchmarks, problems = [], {}
    for name, rows in samples.items():
        graded = _gradable(f"{folder}, {name}", rows)
        is_correct, lengths = (
            _table(graded, attrgetter("is_correct")).astype(float),
            _table(graded, attrgetter("num_tokens")),
        )
        values = _problem_values(graded, is_correct, lengths, budgets)
        benchmarks.append(
            BenchmarkResult(
                name=name,
                num_problems=len(rows),
                num_graded=len(graded),
                num_samples=run["num_samples"],
                means={
                    metric: mean_amount(column) if metric.endswith("tokens") else mean_share(column)
                    for metric, column in values.items()
                },
                statistics=_statistics(is_correct, lengths),
            )
        )
        pairs = zip(values["accuracy"].tolist(), values["tokens"].tolist(), strict=True)
        problems[name] = dict.fromkeys(row.id for row in rows) | dict(
            zip((row.id for row in graded), pairs, strict=True)
        )
    return RunResults(run, tuple(benchmarks), _overall(benchmarks), problems)


def _gradable(place: str, problems: list[ProblemSamples]) -> list[ProblemSamples]:
    """The problems with at least one graded completion; warns of the others.

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


def _overall(benchmarks: Sequence[BenchmarkResult]) -> BenchmarkResult:
    first = benchmarks[0]
    return BenchmarkResult(
        name=OVERALL,
        num_problems=sum(row.num_problems for row in benchmarks),
        num_graded=sum(row.num_graded for row in benchmarks),
        num_samples=first.num_samples,
        means={name: mean_over_benchmarks([row.means[name] for row in benchmarks]) for name in first.means},
        statistics={name: _mean_if_all([row.statistics[name] for row in benchmarks]) for name in first.statistics},
    )


def _mean_if_all(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if len(numbers) == len(values) else None


def _table(problems: Sequence[ProblemSamples], field: Callable[[SampledCompletion], Any]) -> np.ndarray:
    """`np.ndarray` of shape `(P, k)`: One field of all completions."""
    return np.array([[field(completion) for completion in problem.completions] for problem in problems])


def _problem_values(
    problems: Sequence[ProblemSamples], is_correct: np.ndarray, lengths: np.ndarray, budgets: Sequence[int]
) -> dict[str, np.ndarray]:
    """Every metric that is a mean over problems, as one value per problem."""
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


def _statistics(is_correct: np.ndarray, lengths: np.ndarray) -> dict[str, float | None]:
    return {
        "median_tokens": float(np.median(lengths)),
        "p95_tokens": float(np.quantile(lengths, 0.95)),
        "right_tokens": mean_tokens_where(lengths, is_correct == 1),
        "wrong_tokens": mean_tokens_where(lengths, is_correct == 0),
    }
