"""Differences of a run from its baseline on the same problems."""

import itertools
import math
from collections.abc import Sequence

import pandas as pd

from leash_trl.completions.costs import COST_COLUMN, cost_column, name_without_path
from leash_trl.evaluation import intervals
from leash_trl.evaluation.metrics import OVERALL, Metric, NumProblems, results_frame
from leash_trl.evaluation.runs import EvaluatedRun, reward_bounds


PROBLEM_KEY = ["benchmark", "id", "solution"]  # an id may be a row number, which in other data is another problem's
NO_BOUNDS = (-math.inf, math.inf)


def changes_from_baseline(run: EvaluatedRun, baseline: EvaluatedRun) -> pd.DataFrame:
    """Returns [`mean_changes`] of one run from its baseline."""
    return mean_changes([(run, baseline)])


def mean_changes(runs: Sequence[tuple[EvaluatedRun, EvaluatedRun]]) -> pd.DataFrame:
    """Returns differences of accuracy and length between runs and their baselines on the same problems, with 95 %
    intervals.

    `runs` has a pair of a run and its baseline for each seed; the values of a problem are means over the seeds. The
    intervals are over the differences of each problem, so that the difficulty of the problems cancels. The order of
    problems may differ. Problems that could not be graded in one run of a pair are left out of both.

    Rows have the columns of [`~leash_trl.evaluation.runs.EvaluatedRun`]. Metrics are `accuracy_change` in [-1, 1] if
    correctness is known, `reward_change` if there are rewards, `tokens_change`, `cost_change` if the target of both
    limits the same other cost, and `relative_tokens_change`, the ratio of mean lengths minus 1. A change is left out
    for a benchmark if one of the runs does not know the values, and for the mean over benchmarks if a benchmark lacks
    it.

    Raises:
        `ValueError`: If benchmarks or sampled problems differ.
    """
    all_runs = [*itertools.chain(*runs)]
    # If runs have different numbers of samples, the smallest number is taken, with which the intervals are widest.
    samples_per_problem = len(runs) * min(run.record["num_samples"] for run in all_runs)
    reward_range = reward_bounds(*(run.samples for run in all_runs))
    pairs_by_benchmark = mean_pairs_by_benchmark(runs)
    metrics = {}
    num_problems = {}
    for name, benchmark in all_runs[0].record["benchmarks"].items():
        pairs = pairs_by_benchmark[name]
        metrics[name] = change_metrics([pairs], samples_per_problem, reward_range)
        num_problems[name] = NumProblems(benchmark["num_problems"], len(pairs))
    # These are not means of the metrics above: the overall relative change is a ratio of means over benchmarks.
    metrics[OVERALL] = change_metrics([*pairs_by_benchmark.values()], samples_per_problem, reward_range)
    return results_frame(metrics, num_problems, samples_per_problem)


def mean_pairs_by_benchmark(runs: Sequence[tuple[EvaluatedRun, EvaluatedRun]]) -> dict[str, pd.DataFrame]:
    """Returns the means over pairs of runs of [`paired_means_by_benchmark`], of the columns that all pairs have."""
    means_of_runs = [paired_means_by_benchmark(run, baseline) for run, baseline in runs]
    pairs_by_benchmark = {}
    for name in means_of_runs[0]:
        # The inner join keeps the columns that all pairs have, since one pair may not know correctness.
        rows = pd.concat([means[name] for means in means_of_runs], join="inner")
        # A problem that several seeds have in common becomes a single row.
        pairs_by_benchmark[name] = rows.groupby(PROBLEM_KEY, sort=False).mean()
    return pairs_by_benchmark


def paired_means_by_benchmark(run: EvaluatedRun, baseline: EvaluatedRun) -> dict[str, pd.DataFrame]:
    """Returns for each benchmark a row for each problem that is graded in both runs: its means in the run and, in
    columns that end in `_base`, in the baseline, such as `{"num_tokens": 90.5, "num_tokens_base": 210.0}`. Columns
    that one of the runs does not know for a whole benchmark are left out.

    Raises:
        `ValueError`: If benchmarks or sampled problems differ.
    """
    means = means_by_problem(run)
    base_means = means_by_problem(baseline)
    # Keys of problems that only one of the runs has, such as ("aime24", "60", "204").
    unpaired = {*means.index} ^ {*base_means.index}
    if unpaired:
        raise ValueError(
            f"{run.label!r} and its baseline {baseline.label!r} differ in {len(unpaired)} problems, such as "
            f"{min(unpaired)}; evaluate the same ones"
        )
    # Different costs, such as thinking and checking, have no difference. They are compared by their short names, since
    # the file of a cost function may be in another folder now.
    if name_without_path(run.record["length_of"]) != name_without_path(baseline.record["length_of"]):
        means = means.drop(columns=COST_COLUMN, errors="ignore")
    pairs_by_benchmark = {}
    for name in run.benchmarks:
        pairs_by_benchmark[name] = graded_pairs(means.loc[[name]], base_means.loc[[name]])
    return pairs_by_benchmark


def graded_pairs(means: pd.DataFrame, base_means: pd.DataFrame) -> pd.DataFrame:
    """Returns the means of the problems of a benchmark that are graded in both runs, in the columns that both know."""
    # If a run does not know correctness or rewards for this benchmark, all values of their column are NaN.
    means = means.dropna(axis="columns", how="all")
    base_means = base_means.dropna(axis="columns", how="all")
    columns = means.columns.intersection(base_means.columns, sort=False)
    pairs = means[columns].join(base_means[columns].add_suffix("_base"))
    # If no completion of a problem could be graded in one run, its mean is NaN, and the problem is dropped.
    return pairs.dropna()


def means_by_problem(run: EvaluatedRun) -> pd.DataFrame:
    """Returns the means over the completions of each problem, indexed by `PROBLEM_KEY`; NaN where none is graded.
    `cost` is another cost than tokens that the target limits, such as thinking."""
    samples = samples_with_text_keys(run)
    columns = ["num_tokens"]
    length_of = run.record["length_of"]
    if length_of != "completion":
        # Thinking, which counts tokens, has a column of its own.
        samples[COST_COLUMN] = samples[cost_column(length_of)]
        columns.append(COST_COLUMN)
    columns += [column for column in ("reward", "is_correct") if column in samples]
    return samples.groupby(PROBLEM_KEY, sort=False)[columns].mean()


def samples_with_text_keys(run: EvaluatedRun) -> pd.DataFrame:
    """Returns the samples of a run with texts in all columns of `PROBLEM_KEY`."""
    samples = run.samples.astype(dict.fromkeys(PROBLEM_KEY, str))
    return samples.fillna({"solution": ""})  # a problem for reward functions may have none, and NaN is no key


def change_metrics(
    benchmarks: Sequence[pd.DataFrame], samples_per_problem: int, reward_range: tuple[float, float]
) -> list[Metric]:
    """Returns the changes of the means over some benchmarks, of the columns that all of them have.

    Args:
        benchmarks (`Sequence[pd.DataFrame]`): For each benchmark a row per problem, with its means in the run and, in
            columns that end in `_base`, in the baseline.
        samples_per_problem (`int`): k, completions per problem.
        reward_range (`tuple[float, float]`): Smallest and largest possible reward.
    """
    # for each column the metric of its changes, and the smallest and largest value that a completion can have
    changes = [
        ("is_correct", "accuracy_change", (0.0, 1.0)),
        ("reward", "reward_change", reward_range),
        ("num_tokens", "tokens_change", NO_BOUNDS),
        (COST_COLUMN, "cost_change", NO_BOUNDS),
    ]
    metrics = []
    for column, name, (low, high) in changes:
        if all(column in pairs for pairs in benchmarks):
            estimates = []
            for pairs in benchmarks:
                differences = (pairs[column] - pairs[f"{column}_base"]).to_numpy()
                estimates.append(intervals.mean_bounded_difference(differences, low, high, samples_per_problem))
            metrics.append(Metric(name, intervals.mean_over_benchmarks(estimates)))
    lengths = [pairs["num_tokens"].to_numpy() for pairs in benchmarks]
    base_lengths = [pairs["num_tokens_base"].to_numpy() for pairs in benchmarks]
    metrics.append(Metric("relative_tokens_change", intervals.ratio_minus_one(lengths, base_lengths)))
    return metrics
