"""Reads a run's folder, `run.json` and `samples/NAME.jsonl` per benchmark, into DataFrames of samples and of metrics.

Correctness is 1, 0 or NaN. Completions that could not be graded (NaN) are left out of shares and have no vote.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import comb
from pathlib import Path
from statistics import multimode
from typing import Any, Literal

import numpy as np
import pandas as pd

from leash_trl.evaluation import intervals
from leash_trl.evaluation.intervals import Estimate


RUN_FILE = "run.json"
OVERALL = "overall"
GRADING = ("reward_funcs", "reward_code", "reward_weights", "correctness_func", "lenient")
OTHER_REWARDS = "The runs were graded by different reward functions, or versions of them."
GRADED_AGAIN = "to grade them again, run the command that created this folder again (own rewards: in a new folder)"
PROBLEM_FIELDS = {"index", "id", "solution", "completions"}
RUN_FIELDS = {"label", "model", "num_samples", "sampling", "decoding", "benchmarks"}
UNKNOWN_CORRECTNESS = (
    "Accuracy is not known with several reward functions or with partial credit: set correctness_func to a function "
    "that is positive only for correct answers."
)
MAX_BUDGETS = 6
FEW_PROBLEMS = 10
COLUMNS = ("benchmark", "num_problems", "num_graded", "num_samples", "metric", "at", "value", "low", "high")

# the vote of a completion: True for every correct answer, the text of a wrong answer, None for no vote
Vote = Literal[True] | str | None


def samples_path(folder: str | Path, name: str) -> Path:
    """Returns the path of one benchmark's samples in a run's folder."""
    return Path(folder) / "samples" / f"{name}.jsonl"


def read_run(folder: str | Path) -> dict[str, Any]:
    """Returns the content of a folder's `run.json`: model, engine, sampling and versions. Raises `ValueError` if
    another program wrote it."""
    path = Path(folder) / RUN_FILE
    try:
        run: dict[str, Any] = json.loads(path.read_bytes())
        if missing := RUN_FIELDS - run.keys():
            raise ValueError(f"no {', '.join(sorted(missing))}")
    except (OSError, ValueError, AttributeError) as error:
        raise ValueError(f"{path} cannot be read ({error}); name a run of leash eval or leash filter") from error
    return run


def read_lines(path: str | Path) -> list[dict[str, Any]]:
    """Returns all problems of one benchmark's file, in order. A last line that is incomplete because the run was
    killed is ignored.

    Each problem has `index`, `id`, `question` (the text of its prompt's last message), `solution`, `columns` (for
    reward functions without a solution: the columns of text and numbers that they may read) and `completions`, which
    are dicts with `seed`, `text` (without special tokens), `num_tokens` (including EOS), `num_thinking_tokens` (up to
    and including the last end of thinking), `finish_reason` (`"eos"`, or `"length"` at the limit), `answer` (or
    `None`), `is_correct` (`None` if the completion could not be graded) and `grader_failure` (the reason, or `None`).

    Raises:
        `ValueError`: If any other line cannot be read.
    """
    problems = []
    for number, line in enumerate(Path(path).read_bytes().split(b"\n")[:-1], 1):
        try:
            problem = json.loads(line)
            if missing := PROBLEM_FIELDS - problem.keys():
                raise ValueError(f"no {', '.join(sorted(missing))}")
            problems.append(problem)
        except (ValueError, AttributeError) as error:
            remedy = "remove it and all lines after it, and run the command again"
            raise ValueError(f"{path}, line {number}: this is not a problem with its samples; {remedy}") from error
    return problems


def load_samples(folder: str | Path) -> pd.DataFrame:
    """Returns one row for each completion of a finished run: `benchmark`, the fields of [`read_lines`], and `sample`
    from 0 to k - 1.

    Raises:
        `ValueError`: If the folder holds no run, or fewer or more samples than its `run.json` says.
    """
    run, lines = read_run(folder), {}
    for name, benchmark in run["benchmarks"].items():
        path = samples_path(folder, name)
        lines[name] = read_lines(path) if path.is_file() else []
        sizes = {line["id"]: len(line["completions"]) for line in lines[name]}
        if [*sizes.values()] != [run["num_samples"]] * benchmark["num_problems"] or len(sizes) < len(lines[name]):
            expected = f"{benchmark['num_problems']} problems once, with {run['num_samples']} completions each"
            raise ValueError(f"{folder}: {name} has {len(sizes)}, not {expected}; run its command again to resume")
    return samples_frame(lines)


def samples_frame(lines: Mapping[str, Sequence[dict[str, Any]]]) -> pd.DataFrame:
    """Turns the problems of each benchmark, as [`read_lines`] returns them, into a row per completion, as in
    [`load_samples`]."""
    rows = [
        {"benchmark": name, **problem, "sample": sample, **completion}
        for name, problems in lines.items()
        for problem in problems
        for sample, completion in enumerate(problem["completions"])
    ]
    frame = pd.DataFrame(rows).drop(columns="completions")
    return frame.astype(dict.fromkeys(frame.columns.intersection(["is_correct", "reward"]), float))


@dataclass(frozen=True, eq=False)
class EvaluatedRun:
    """A run's `run.json`, its [`load_samples`] and its metrics.

    Args:
        results (`pd.DataFrame`): One row per benchmark and metric, with the benchmarks in the run's order, followed by
            `"overall"`, the unweighted mean over benchmarks, as in the paper. Columns are `benchmark`, `num_problems`,
            `num_graded` (number of problems with at least one graded completion, on which all numbers are based),
            `num_samples` (k), `metric`, `at` (k or a budget in tokens, else NaN), `value`, `low` and `high` (95 %
            interval over problems, or NaN). Metrics in [0, 1] are `accuracy` (avg@k), `pass`, `majority` (maj@k),
            `truncated_rate`, `no_answer_rate` and `accuracy_within` (a budget). Runs with reward functions have the
            mean `reward` instead of the metrics of answers; if all rewards are in [0, 1] or in [-1, 1], its interval
            is too. `tokens` is the mean length; `median_tokens`,
            `p95_tokens`, `right_tokens` and `wrong_tokens` (mean lengths of correct and of wrong completions) are over
            all completions together and have no interval.
    """

    run: dict[str, Any]
    samples: pd.DataFrame
    results: pd.DataFrame

    @property
    def label(self) -> str:
        """Name of the run in tables."""
        return self.run["label"]

    @property
    def benchmarks(self) -> list[str]:
        """Names of the benchmarks, in the run's order."""
        return [*self.run["benchmarks"]]

    @property
    def knows_correctness(self) -> bool:
        """False if several reward functions, or one that gives partial credit, graded the completions, and none was
        chosen to decide correctness."""
        return bool((self.results["metric"] == "accuracy").any())

    def estimate(self, metric: str, benchmark: str = OVERALL) -> Estimate:
        """Returns a metric without `at`, with its interval."""
        rows = self.results
        own = rows[(rows["metric"] == metric) & (rows["benchmark"] == benchmark)]
        return Estimate(*own[["value", "low", "high"]].iloc[0].tolist())


def load_evaluated_run(folder: str | Path, label: str | None = None) -> EvaluatedRun:
    """Loads the run of `leash eval` or `leash filter` in a folder; `label` replaces the label of the run.

    Raises:
        `ValueError`: If [`load_samples`] raises it, or if no completion of a benchmark could be graded.
    """
    run, samples = read_run(folder), load_samples(folder)
    k, limit = run["num_samples"], run["sampling"]["max_new_tokens"]
    metrics, sizes, thinks = {}, {}, bool(samples["num_thinking_tokens"].any())
    bounds = reward_bounds(samples)
    for name, own in samples.groupby("benchmark", sort=False):
        verdict = "is_correct" if own["is_correct"].notna().any() or "reward" not in own else "reward"
        graded = own[own.groupby("id")[verdict].transform("count") > 0]
        if graded.empty:
            failure = own["grader_failure"].iloc[0]
            raise ValueError(f"{folder}, {name}: no completion could be graded (the first {failure}); {GRADED_AGAIN}")
        metrics[name], sizes[name] = (
            [*_metrics(graded, k, limit, thinks, bounds)],
            np.array([len(own), len(graded)]) // k,
        )
    by_metric: dict[str, list[tuple[str, float, Estimate]]] = {}
    for row in (row for own in metrics.values() for row in own):
        by_metric.setdefault(f"{row[0]} {row[1]}", []).append(row)
    metrics[OVERALL] = [
        (*rows[0][:2], intervals.mean_over_benchmarks([estimate for *_, estimate in rows]))
        for rows in by_metric.values()
        if len(rows) == len(metrics)  # a benchmark lacks some metrics if its correctness is not known
    ]
    sizes[OVERALL] = sum(sizes.values())
    rows = [(name, *sizes[name], k, *row, *estimate) for name, own in metrics.items() for *row, estimate in own]
    return EvaluatedRun({**run, "label": label or run["label"]}, samples, pd.DataFrame(rows, columns=COLUMNS))


def reward_bounds(*samples: pd.DataFrame) -> tuple[float, float]:
    """Returns the [`~leash_trl.evaluation.intervals.bounds_of`] all rewards of some runs; infinite bounds if none has
    rewards."""
    rewards = pd.concat([own.get("reward", pd.Series(dtype=float)).dropna() for own in samples])
    return intervals.bounds_of(rewards.to_numpy()) if len(rewards) else (-math.inf, math.inf)


def _metrics(
    samples: pd.DataFrame, k: int, limit: int, thinks: bool, bounds: tuple[float, float]
) -> Iterator[tuple[str, float, Estimate]]:
    """Yields each metric of one benchmark's graded problems, with its `at`. `bounds` are those of rewards."""
    table = {name: column.to_numpy().reshape(-1, k) for name, column in samples.items()}
    is_correct, lengths, is_right = table["is_correct"], table["num_tokens"], table["is_correct"] == 1
    knows_correctness = not np.isnan(is_correct).all()
    if knows_correctness:
        yield "accuracy", math.nan, intervals.mean_share(np.nanmean(is_correct, axis=1))
        for size in sorted({*(2**exponent for exponent in range(1, k.bit_length())), k} - {1}):
            yield "pass", size, intervals.mean_share(pass_at_k(is_correct, size))
    if "reward" in table:  # reward functions do not extract answers, so there is no majority
        # a completion may have correctness, but no reward
        rewards = table["reward"][~np.isnan(table["reward"]).all(axis=1)]
        if len(rewards):
            yield "reward", math.nan, intervals.mean_bounded(np.nanmean(rewards, axis=1), *bounds)
    else:
        ballots = np.array(votes(samples["answer"], samples["is_correct"]), dtype=object).reshape(-1, k)
        yield "majority", math.nan, intervals.mean_share(majority_at_k(ballots))
    yield "tokens", math.nan, intervals.mean_amount(lengths.mean(axis=1))
    if thinks:
        thinking = table["num_thinking_tokens"]
        yield "thinking_tokens", math.nan, intervals.mean_amount(thinking.mean(axis=1))
        yield "answer_tokens", math.nan, intervals.mean_amount((lengths - thinking).mean(axis=1))
    yield "truncated_rate", math.nan, intervals.mean_share((table["finish_reason"] == "length").mean(axis=1))
    if "reward" not in table:
        yield "no_answer_rate", math.nan, intervals.mean_share(pd.isna(table["answer"]).mean(axis=1))
    yield "median_tokens", math.nan, Estimate(float(np.median(lengths)), math.nan, math.nan)
    yield "p95_tokens", math.nan, Estimate(float(np.quantile(lengths, 0.95)), math.nan, math.nan)
    if not knows_correctness:
        return
    powers = [2**exponent for exponent in range((limit - 1).bit_length())]
    for budget in (*powers[-(MAX_BUDGETS - 1) :], limit):
        num_within = (is_right & (lengths <= budget)).sum(axis=1)
        yield "accuracy_within", budget, intervals.mean_share(num_within / (~np.isnan(is_correct)).sum(axis=1))
    saved = np.where(np.isnan(is_correct), math.nan, is_right * (1 - lengths / limit))
    yield "auc_oaa", math.nan, intervals.mean_share(np.nanmean(saved, axis=1))
    per_correct = lengths[~np.isnan(is_correct)].sum() / is_right.sum() if is_right.any() else math.nan
    yield "tokens_per_correct", math.nan, Estimate(float(per_correct), math.nan, math.nan)
    lengths_by_grade = samples.groupby("is_correct")["num_tokens"].mean()
    yield "right_tokens", math.nan, Estimate(float(lengths_by_grade.get(1.0, math.nan)), math.nan, math.nan)
    yield "wrong_tokens", math.nan, Estimate(float(lengths_by_grade.get(0.0, math.nan)), math.nan, math.nan)


def pass_at_k(is_correct: np.ndarray, k: int) -> np.ndarray:
    r"""Returns the probability that k of a problem's n completions, drawn without replacement, include a correct one.

    $$ 1 - \binom{n-c}{k} \Big/ \binom{n}{k} $$

    There are c correct completions among n graded ones. Unlike `1 - (1 - c/n)^k`, this estimate is unbiased. If n is
    below k, all completions are drawn.

    Source: Eq. (1) of [Evaluating large language models trained on code](https://huggingface.co/papers/2107.03374).

    Example:
        >>> pass_at_k(np.array([[1, 0, 0, 0]]), k=2).tolist()  # 1 - 3/6
        [0.5]
    """
    graded, right = (~np.isnan(is_correct)).sum(axis=1).tolist(), (is_correct == 1).sum(axis=1).tolist()
    # computed in integers, since a product of floats would lose precision
    return np.array([1 - comb(n - c, min(k, n)) / comb(n, min(k, n)) for n, c in zip(graded, right, strict=True)])


def votes(answers: Iterable[str | None], is_correct: Iterable[float]) -> list[Vote]:
    """Returns the vote of each completion: all correct answers are one class; wrong answers are compared by their
    text, without blanks and dollar signs.

    Example:
        >>> votes(["1/2", "0.5", "$ 3$", "3", None], [1, 1, 0, 0, 0])
        [True, True, '3', '3', None]
    """
    return [
        None
        if not isinstance(answer, str) or pd.isna(right)
        else bool(right) or "".join(answer.replace("$", "").split())
        for answer, right in zip(answers, is_correct, strict=True)
    ]


def majority_at_k(ballots: Iterable[Iterable[Vote]]) -> np.ndarray:
    """Returns the probability that the majority vote of each problem is correct, with ties broken at random; its mean
    is maj@k.

    Example:
        >>> majority_at_k([[True, True, "5"], [True, "5", None], [None, None, None]]).tolist()
        [1.0, 0.5, 0.0]
    """
    winners = (multimode(vote for vote in ballot if vote is not None) for ballot in ballots)
    return np.array([(True in tied) / max(1, len(tied)) for tied in winners])


def changes(run: EvaluatedRun, baseline: EvaluatedRun) -> pd.DataFrame:
    """Returns differences of accuracy and length from a baseline on the same problems, with 95 % intervals.

    The intervals are over the differences of each problem, so that the difficulty of the problems cancels. The order
    of problems may differ. Problems that could not be graded in one run are left out of both. Rows have the columns of
    [`EvaluatedRun`]; metrics are `accuracy_change` in [-1, 1], `reward_change` if there are rewards, `tokens_change`,
    and `relative_tokens_change`, the ratio of mean lengths minus 1.

    Raises:
        `ValueError`: If benchmarks or sampled problems differ, or the runs have no graded problem in common.
    """
    columns = ["num_tokens", *({"reward"} & {*run.samples} & {*baseline.samples})]
    columns += ["is_correct"] if run.knows_correctness and baseline.knows_correctness else []
    key = ["benchmark", "id", "solution"]  # an id alone may be a row number, which another problem may have too
    own, base = (
        each.samples.astype(dict.fromkeys(key, str)).fillna({"solution": ""}).groupby(key, sort=False)[columns].mean()
        for each in (run, baseline)
    )
    both = f"{run.label!r} and its baseline {baseline.label!r}"
    if others := {*own.index} ^ {*base.index}:
        raise ValueError(f"{both} differ in {len(others)} problems, such as {min(others)}; evaluate the same ones")
    pairs = own.join(base.add_suffix("_base")).dropna()
    parts = {name: [pair] for name, pair in pairs.groupby("benchmark", sort=False)}
    if missing := {*run.benchmarks} - parts.keys():
        raise ValueError(f"{both} have no problem graded in both of {', '.join(missing)}; {GRADED_AGAIN}")
    k = min(run.run["num_samples"], baseline.run["num_samples"])
    rows = []
    shares = partial(intervals.mean_share_difference, num_samples=k)
    low, high = reward_bounds(run.samples, baseline.samples)
    rewards = partial(intervals.mean_bounded_difference, low=low, high=high, num_samples=k)
    amounts = partial(intervals.mean_amount, lowest=-math.inf)
    means = {"is_correct": ("accuracy", shares), "reward": ("reward", rewards), "num_tokens": ("tokens", amounts)}
    for name, frames in {**parts, OVERALL: [pair for (pair,) in parts.values()]}.items():
        place = (name, len(own if name == OVERALL else own.loc[name]), sum(map(len, frames)), k)
        values = {column: [pair[column].to_numpy() for pair in frames] for column in pairs}
        for column, (metric, mean) in means.items():
            if column in columns:
                gaps = map(np.subtract, values[column], values[f"{column}_base"])
                estimate = intervals.mean_over_benchmarks([*map(mean, gaps)])
                rows.append((*place, f"{metric}_change", math.nan, *estimate))
        ratio = intervals.ratio_minus_one(values["num_tokens"], values["num_tokens_base"])
        rows.append((*place, "relative_tokens_change", math.nan, *ratio))
    return pd.DataFrame(rows, columns=COLUMNS)


def have_overall(runs: Iterable[EvaluatedRun]) -> bool:
    """Returns whether means over benchmarks can be compared: all runs have the same benchmarks, and more than one."""
    benchmarks = {frozenset(run.benchmarks) for run in runs}
    return len(benchmarks) == 1 and len(benchmarks.pop()) > 1


def warning(runs: Sequence[EvaluatedRun]) -> str:
    """Returns one line of warnings, or an empty string: of intervals over few problems, of completions that could not
    be graded or were truncated, and of unknown accuracy."""
    results = pd.concat([run.results for run in runs])
    sizes = results.groupby("benchmark", sort=False)["num_graded"].min().drop(OVERALL)
    few = ", ".join(f"{name} has {size}" for name, size in sizes[sizes < FEW_PROBLEMS].items())
    lost = [
        f"{len(own)} of {name} in {run.label!r} (the first {own['grader_failure'].iloc[0]})"
        for run in runs
        for name, own in run.samples[run.samples["is_correct" if run.knows_correctness else "reward"].isna()].groupby(
            "benchmark", sort=False
        )
    ]
    rough = f"Warning: few problems ({few}); below {FEW_PROBLEMS}, intervals are unreliable, so add problems."
    ungraded = f"Ungraded completions (problems that have no others are left out): {', '.join(lost)}; {GRADED_AGAIN}."
    cut = truncation_warning(
        {
            f"{name} in {run.label!r}": (own["finish_reason"] == "length").mean()
            for run in runs
            for name, own in run.samples.groupby("benchmark", sort=False)
        }
    )
    is_unknown = not all(run.knows_correctness for run in runs)
    is_mixed = len({str([run.run.get(name) for name in GRADING]) for run in runs}) > 1
    said = {rough: few, ungraded: lost, cut: cut, UNKNOWN_CORRECTNESS: is_unknown, OTHER_REWARDS: is_mixed}
    return " ".join(text for text, holds in said.items() if holds)


def truncation_warning(shares: Mapping[str, float]) -> str:
    """Returns a warning that names where a third or more of the completions were truncated; else an empty string.

    Example:
        >>> truncation_warning({"aime24": 0.5, "amc23": 0.1})
        'Truncated at max_new_tokens: 50 % of aime24; raise it, since lengths and accuracy are too low.'
    """
    cut = ", ".join(f"{share:.0%} of {name}".replace("%", " %") for name, share in shares.items() if share >= 1 / 3)
    return f"Truncated at max_new_tokens: {cut}; raise it, since lengths and accuracy are too low." if cut else ""
