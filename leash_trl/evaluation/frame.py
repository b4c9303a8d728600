"""Reads a run's folder into DataFrames: its samples, a row per completion, and their metrics, a row per number.

A folder has `run.json` and, for each benchmark, `samples/NAME.jsonl`, a line per problem. Correctness is 1, 0 or NaN;
a completion that could not be graded is left out of shares and has no vote.
"""

import json
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import comb
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from leash_trl.evaluation.intervals import (
    Estimate,
    few_problems,
    mean_amount,
    mean_over_benchmarks,
    mean_share,
    mean_share_difference,
    ratio_minus_one,
)


logger = logging.getLogger(__name__)

RUN_FILE = "run.json"
OVERALL = "overall"
GRADED_AGAIN = "run the command that made this folder again: it grades them again"
SAMPLED_AGAIN = "remove this line and all after it, and run the command that made this folder again: it goes on there"
PROBLEM_FIELDS = {"index", "id", "solution", "completions"}
COMPLETION_FIELDS = {
    "seed",
    "text",
    "num_tokens",
    "num_generated_tokens",
    "finish_reason",
    "answer",
    "is_correct",
    "grader_failure",
}
VOTING_SHORTEST = (1, 3)  # the paper of short-m@k recommends these two
MAX_BUDGETS = 6
RIGHT: Literal[True] = True

# the vote of a completion: correct answers are one class, wrong ones differ by their text, None is no vote
Vote = Literal[True] | str | None
Metric = tuple[str, float, Callable[[np.ndarray], Estimate], np.ndarray]


def samples_path(folder: str | Path, name: str) -> Path:
    """File of one benchmark's samples in a run's folder."""
    return Path(folder) / "samples" / f"{name}.jsonl"


def read_run(folder: str | Path) -> dict[str, Any]:
    """The record in a run's folder of model, engine, sampling and versions.

    Raises:
        `ValueError`: If the folder has no `run.json`, or another program's.
    """
    path = Path(folder) / RUN_FILE
    if not path.is_file():
        raise ValueError(f"{folder} has no {RUN_FILE}, so it is not a folder that leash eval or leash filter wrote")
    try:
        run: dict[str, Any] = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}); delete the folder and evaluate again") from error
    match run:
        case {
            "label": str(),
            "model": str(),
            "num_samples": int(),
            "sampling": {"max_new_tokens": int()},
            "decoding": {"name": str()},
            "benchmarks": dict(benchmarks),
        } if all(isinstance(row, dict) and isinstance(row.get("num_problems"), int) for row in benchmarks.values()):
            return run
    raise ValueError(f"{path} is not one that leash eval or leash filter wrote; name the folder of a run")


def read_lines(path: str | Path) -> list[dict[str, Any]]:
    """All problems of one benchmark's file, in order; a last line that a kill cut short is left out.

    Returns:
        `list[dict]`: For each problem `index`, `id`, `solution` and `completions`, a list of dicts with `seed`, `text`
        without special tokens, `num_tokens` (EOS included), `num_generated_tokens` (trials of a decoding strategy
        included), `finish_reason` (`"eos"`, or `"length"` if the limit cut it off), `answer` (or `None`),
        `is_correct` (`None` where it could not be graded) and `grader_failure` (why, or `None`).

    Raises:
        `ValueError`: If any other line cannot be read.
    """
    problems = []
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n") or not line.strip():
                continue
            try:
                problem = json.loads(line)
                is_ours = problem.keys() == PROBLEM_FIELDS and all(
                    completion.keys() == COMPLETION_FIELDS for completion in problem["completions"]
                )
            except (ValueError, TypeError, AttributeError):
                is_ours = False
            if not is_ours:
                raise ValueError(f"{path}, line {number}: no problem's samples; {SAMPLED_AGAIN}")
            problems.append(problem)
    return problems


def load_samples(folder: str | Path) -> pd.DataFrame:
    """All completions of a run, a row each, checked against the run's record.

    Columns are `benchmark`, `id`, `index`, `solution`, `sample` (0 to k - 1) and those of a completion in
    [`read_lines`], with `is_correct` as 1, 0 or NaN.

    Args:
        folder (`str` or `Path`):
            Folder that `leash eval` or `leash filter` wrote.

    Raises:
        `ValueError`: If the folder holds no run, the run is not finished, or its samples belong to another run.
    """
    run, lines, missing = read_run(folder), {}, []
    for name, benchmark in run["benchmarks"].items():
        path = samples_path(folder, name)
        problems = read_lines(path) if path.is_file() else []
        _check_problems(f"{folder}, {name}", problems, benchmark["num_problems"], run["num_samples"])
        if len(problems) < benchmark["num_problems"]:
            missing.append(f"{name} has {len(problems)} of {benchmark['num_problems']} problems")
        lines[name] = problems
    if missing:
        raise ValueError(
            f"{folder} is not finished: {', '.join(missing)}; run the command that began it again, it goes on there"
        )
    return samples_frame(lines)


def samples_frame(lines: Mapping[str, Sequence[dict[str, Any]]]) -> pd.DataFrame:
    """A row per completion, as [`load_samples`] returns it, of each benchmark's problems as [`read_lines`] does."""
    rows = [
        {"benchmark": name, **problem, "sample": sample, **completion}
        for name, problems in lines.items()
        for problem in problems
        for sample, completion in enumerate(problem["completions"])
    ]
    return pd.DataFrame(rows).drop(columns="completions").astype({"is_correct": float})


def _check_problems(place: str, problems: Sequence[dict[str, Any]], num_expected: int, num_samples: int) -> None:
    if (num_ids := len({problem["id"] for problem in problems})) < len(problems):
        raise ValueError(f"{place}: {len(problems)} problems have {num_ids} ids; {SAMPLED_AGAIN}")
    if len(problems) > num_expected:
        raise ValueError(f"{place}: {len(problems)} problems, but the run says {num_expected}; mend its run.json")
    for problem in problems:
        if (size := len(problem["completions"])) != num_samples:
            raise ValueError(
                f"{place}: problem {problem['id']!r} has {size} completions, but the run's num_samples is "
                f"{num_samples}; {SAMPLED_AGAIN}"
            )


@dataclass(frozen=True, eq=False)
class EvaluatedRun:
    """A run with its metrics.

    Args:
        run (`dict[str, Any]`):
            The content of the run's `run.json`.
        samples (`pd.DataFrame`):
            As [`load_samples`] returns it.
        results (`pd.DataFrame`):
            A row per benchmark and metric, the benchmarks in the run's order and `"overall"` last: unweighted means
            over benchmarks, as in the paper's tables, so that 30 problems of AIME weigh as much as 83 of AMC. Columns
            are `benchmark`, `metric`, `at` (k, m or a budget in tokens; NaN for metrics without one), `value`, `low`
            and `high` (95 % interval over problems; NaN where there is none), `num_problems`, `num_graded` (problems
            of which a completion could be graded, which the numbers are of) and `num_samples` (k).

            Metrics in [0, 1] are `accuracy` (avg@k), `pass`, `majority` (maj@k), `short_accuracy` (short-m@k),
            `truncated_rate`, `no_answer_rate` and `accuracy_within` (a budget). In tokens: `tokens` (length),
            `generated_tokens` (computed, trials of a decoding strategy included), `short_waiting_tokens`,
            `short_total_tokens`; and without interval, of all completions together, `median_tokens`, `p95_tokens`,
            `right_tokens` and `wrong_tokens` (mean lengths of correct and of wrong completions).
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

    def estimate(self, metric: str, benchmark: str = OVERALL) -> Estimate:
        """A metric without `at`, with its interval."""
        rows = self.results
        own = rows[(rows["metric"] == metric) & (rows["benchmark"] == benchmark)]
        return Estimate(*own[["value", "low", "high"]].iloc[0].tolist())


def load_evaluated_run(folder: str | Path, label: str | None = None) -> EvaluatedRun:
    """A run's samples and metrics, with 95 % intervals over the problems of each benchmark.

    Args:
        folder (`str` or `Path`):
            Folder that `leash eval` or `leash filter` wrote.
        label (`str`, *optional*, defaults to that of `run.json`):
            Name of the run in tables.

    Raises:
        `ValueError`: As [`load_samples`], and if nothing of a benchmark could be graded.
    """
    run, samples = read_run(folder), load_samples(folder)
    parts = [
        _benchmark_results(f"{folder}, {name}", name, run, samples[samples["benchmark"] == name])
        for name in run["benchmarks"]
    ]
    overall = [
        {
            **rows[0],
            "benchmark": OVERALL,
            **mean_over_benchmarks([Estimate(row["value"], row["low"], row["high"]) for row in rows])._asdict(),
            "num_problems": sum(row["num_problems"] for row in rows),
            "num_graded": sum(row["num_graded"] for row in rows),
        }
        for rows in zip(*parts, strict=True)
    ]
    run = run if label is None else {**run, "label": label}
    return EvaluatedRun(run, samples, pd.DataFrame([row for rows in (*parts, overall) for row in rows]))


def _benchmark_results(place: str, name: str, run: dict[str, Any], samples: pd.DataFrame) -> list[dict[str, Any]]:
    graded, k = _gradable(place, samples), run["num_samples"]
    fields = {
        "benchmark": name,
        "num_problems": len(samples) // k,
        "num_graded": len(graded) // k,
        "num_samples": k,
    }
    means = [
        {"metric": metric, "at": at, **interval(values)._asdict()}
        for metric, at, interval, values in _problem_values(graded, k, run["sampling"]["max_new_tokens"])
    ]
    lengths, is_correct = graded["num_tokens"], graded["is_correct"]
    statistics = {
        "median_tokens": np.median(lengths),
        "p95_tokens": np.quantile(lengths, 0.95),
        "right_tokens": lengths[is_correct == 1].mean(),
        "wrong_tokens": lengths[is_correct == 0].mean(),
    }
    numbers = [
        {"metric": metric, "at": math.nan, **Estimate(float(value), math.nan, math.nan)._asdict()}
        for metric, value in statistics.items()
    ]
    return [{**fields, **row} for row in (*means, *numbers)]


def _gradable(place: str, samples: pd.DataFrame) -> pd.DataFrame:
    """The samples of problems with at least one graded completion; warns of the others."""
    lost = samples[samples["is_correct"].isna()]
    if lost.empty:
        return samples
    kept = samples[samples.groupby("id")["is_correct"].transform("count") > 0]
    reason = lost["grader_failure"].iloc[0]
    if kept.empty:
        raise ValueError(f"{place}: no completion could be graded (the first {reason}); {GRADED_AGAIN}")
    logger.warning(
        "%s: %d of %d completions could not be graded (the first %s) and count as neither right nor wrong; so %d "
        "problems are left out; %s",
        place,
        len(lost),
        len(samples),
        reason,
        samples["id"].nunique() - kept["id"].nunique(),
        GRADED_AGAIN,
    )
    return kept


def _problem_values(samples: pd.DataFrame, k: int, limit: int) -> Iterator[Metric]:
    """Every metric that is a mean over problems: its name, its `at`, its kind of interval, and a value per problem."""
    table = {name: column.to_numpy().reshape(-1, k) for name, column in samples.items()}
    is_correct, lengths = table["is_correct"], table["num_tokens"]
    has_answer = samples["answer"].notna().to_numpy().reshape(-1, k)
    ballots = [votes(*row) for row in zip(table["answer"], has_answer, is_correct, strict=True)]
    yield "accuracy", math.nan, mean_share, avg_at_k(is_correct)
    for size in sorted({*(2**exponent for exponent in range(1, k.bit_length())), k} - {1}):
        yield "pass", size, mean_share, pass_at_k(is_correct, size)
    yield "majority", math.nan, mean_share, majority_at_k(ballots)
    for m in (m for m in VOTING_SHORTEST if m < k):
        is_right, waiting, total = shortest_m_at_k(ballots, lengths, m)
        yield "short_accuracy", m, mean_share, is_right
        yield "short_waiting_tokens", m, mean_amount, waiting
        yield "short_total_tokens", m, mean_amount, total
    yield "tokens", math.nan, mean_amount, lengths.mean(axis=1)
    yield "generated_tokens", math.nan, mean_amount, table["num_generated_tokens"].mean(axis=1)
    yield "truncated_rate", math.nan, mean_share, (table["finish_reason"] == "length").mean(axis=1)
    yield "no_answer_rate", math.nan, mean_share, (~has_answer).sum(axis=1) / k
    for budget in token_budgets(limit):
        yield "accuracy_within", budget, mean_share, accuracy_within(is_correct, lengths, budget)


def avg_at_k(is_correct: np.ndarray) -> np.ndarray:
    """Share of correct completions of each problem, `(P, k)` to `(P,)`; its mean is avg@k.

    Example:
        >>> avg_at_k(np.array([[1, 1], [1, np.nan], [1, 0]])).tolist()
        [1.0, 1.0, 0.5]
    """
    return np.nanmean(is_correct, axis=1)


def pass_at_k(is_correct: np.ndarray, k: int) -> np.ndarray:
    r"""Probability that k of a problem's n completions, drawn without replacement, hold a correct one, in [0, 1].

    $$ 1 - \binom{n-c}{k} \Big/ \binom{n}{k} $$

    with c correct completions among n graded ones: unbiased where `1 - (1 - c/n)^k` is not; n below k draws all.

    Source: Eq. (1) of [Evaluating large language models trained on code](https://huggingface.co/papers/2107.03374).

    Args:
        is_correct (`np.ndarray` of shape `(P, n)`):
            Whether each completion is correct.
        k (`int`):
            Completions drawn. From 1 (avg@n) to n (1 for a problem with any correct completion).

    Example:
        >>> pass_at_k(np.array([[1, 0, 0, 0]]), k=2).tolist()  # 1 - 3/6
        [0.5]
    """
    graded, right = (~np.isnan(is_correct)).sum(axis=1), (is_correct == 1).sum(axis=1)
    # integers of any size: a product of floats would lose digits
    return np.array(
        [1 - comb(n - c, min(k, n)) / comb(n, min(k, n)) for n, c in zip(graded.tolist(), right.tolist(), strict=True)]
    )


def votes(answers: Sequence[str], has_answer: Sequence[bool], is_correct: Sequence[float]) -> list[Vote]:
    """The vote of each completion of one problem.

    Correct answers are all equivalent to the gold and so one class. Wrong ones differ by their text without
    blanks and dollars; equal values in other words (1/2, 0.5) stay apart, which splits their votes.

    Example:
        >>> votes(["1/2", "0.5", "$ 3$", "3", ""], [True, True, True, True, False], [1, 1, 0, 0, 0])
        [True, True, '3', '3', None]
    """
    return [
        None if not given or np.isnan(right) else RIGHT if right else "".join(answer.replace("$", "").split())
        for answer, given, right in zip(answers, has_answer, is_correct, strict=True)
    ]


def majority(ballot: Sequence[Vote]) -> set[Vote]:
    """The classes with the most votes: several in a tie, none if nobody votes.

    Example:
        >>> sorted(majority(["7", "5", "5", "7", "9", None, None, None]))
        ['5', '7']
    """
    counts = Counter(vote for vote in ballot if vote is not None)
    most = max(counts.values(), default=0)
    return {vote for vote, count in counts.items() if count == most}


def majority_at_k(ballots: Sequence[Sequence[Vote]]) -> np.ndarray:
    """Probability that the majority of each problem's k votes is correct, `(P,)`, in [0, 1]; its mean is maj@k.

    A tie is broken at random: the value is the share of the tied classes that are correct, 1/2 in a tie of two. A
    problem without any vote has 0.

    Example:
        >>> majority_at_k([[True, True, "5"], [True, "5", None], [None, None, None]]).tolist()
        [1.0, 0.5, 0.0]
    """
    winners = [majority(ballot) for ballot in ballots]
    return np.array([(RIGHT in tied) / max(1, len(tied)) for tied in winners])


def shortest_m_at_k(
    ballots: Sequence[Sequence[Vote]], lengths: np.ndarray, m: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    r"""short-m@k: k completions side by side, all stopped when the first m have finished, majority vote among those.

    $$ \text{waiting} = L_{(m)}, \qquad \text{total} = \sum_{i=1}^{k} \min(L_i, L_{(m)}) $$

    Of tied classes that of the shortest completion wins; of completions of equal length, the earlier counts as the
    shorter. A completion that was cut off counts as finished at its last token.

    Source: [Don't overthink it](https://huggingface.co/papers/2505.17813), from completions that ran to their end.

    Args:
        ballots (`Sequence` of P sequences of k votes):
            As [`votes`] returns them.
        lengths (`np.ndarray` of shape `(P, k)`):
            Lengths in tokens.
        m (`int`):
            Completions waited for, 1 to k.

    Returns:
        Three `np.ndarray` of shape `(P,)`: whether the vote is correct, 0 or 1; how long one waits, and what all k
        have computed until then, in tokens.

    Example:
        >>> [values.tolist() for values in shortest_m_at_k([["7", True, True]], np.array([[9, 12, 15]]), m=2)]
        [[0.0], [12.0], [33.0]]
    """
    winners = []
    for ballot, row in zip(ballots, lengths, strict=True):
        first_to_finish = [ballot[i] for i in np.argsort(row, kind="stable")[:m]]
        tied = majority(first_to_finish)
        winners.append(next((vote for vote in first_to_finish if vote in tied), None))
    waiting = np.sort(lengths, axis=1)[:, m - 1].astype(float)
    total = np.minimum(lengths, waiting[:, None]).sum(axis=1)
    return np.array([float(winner is RIGHT) for winner in winners]), waiting, total


def token_budgets(limit: int) -> tuple[int, ...]:
    """Budgets in tokens to read accuracy at: the limit, and before it the five greatest powers of two below it.

    Args:
        limit (`int`):
            Generation limit in tokens. Must be positive.

    Example:
        >>> token_budgets(32768)
        (1024, 2048, 4096, 8192, 16384, 32768)
        >>> token_budgets(10)
        (1, 2, 4, 8, 10)
    """
    powers = [2**exponent for exponent in range((limit - 1).bit_length())]
    return (*powers[-(MAX_BUDGETS - 1) :], limit)


def accuracy_within(is_correct: np.ndarray, lengths: np.ndarray, budget: float) -> np.ndarray:
    """Share of completions of each problem that are correct and no longer than a budget, `(P, k)` to `(P,)`.

    Example:
        >>> [accuracy_within(np.array([[1.0, 1.0]]), np.array([[10, 20]]), budget).item() for budget in (9, 10, 20)]
        [0.0, 0.5, 1.0]
    """
    return ((lengths <= budget) & (is_correct == 1)).sum(axis=1) / (~np.isnan(is_correct)).sum(axis=1)


def problem_means(run: EvaluatedRun) -> pd.DataFrame:
    """Each problem's share of correct completions and mean length in tokens, by `benchmark` and `id`.

    The column `is_correct` is NaN where no completion could be graded.
    """
    return run.samples.groupby(["benchmark", "id"], sort=False)[["is_correct", "num_tokens"]].mean()


def changes(run: EvaluatedRun, baseline: EvaluatedRun) -> pd.DataFrame:
    """Differences of accuracy and length from a baseline on the same problems, with 95 % intervals.

    The intervals are those of the differences problem by problem, so the difficulty of the problems cancels. Problems
    that one run could not grade are left out of both; [`warning`] counts them.

    Args:
        run ([`EvaluatedRun`]), baseline ([`EvaluatedRun`]):
            Runs on the same problems of the same benchmarks, in any order.

    Returns:
        `pd.DataFrame`: Columns `benchmark` (`"overall"` last, the change of the unweighted means), `metric`, `value`,
        `low`, `high`. Metrics are `accuracy`, in [-1, 1]; `tokens`, negative is shorter; and `relative_tokens`, the
        ratio of mean lengths minus 1.

    Raises:
        `ValueError`: If benchmarks or sampled problems differ, or the runs have no graded problem in common.
    """
    own, base = problem_means(run), problem_means(baseline)
    _check_same(run, baseline, {*run.benchmarks}, {*baseline.benchmarks}, "benchmarks")
    pairs = {}
    for name in run.benchmarks:
        _check_same(run, baseline, {*own.loc[name].index}, {*base.loc[name].index}, f"problems of {name}")
        pairs[name] = own.loc[name].join(base.loc[name].add_suffix("_base")).dropna()
        if pairs[name].empty:
            raise ValueError(
                f"{run.label!r} and its baseline {baseline.label!r} have no problem of {name} graded in both; run the "
                "commands that made their folders again: they grade them again"
            )
    k = min(run.run["num_samples"], baseline.run["num_samples"])
    parts = [(name, [pair]) for name, pair in pairs.items()]
    return pd.DataFrame(
        [
            {"benchmark": name, "metric": metric, **estimate._asdict()}
            for name, own_pairs in (*parts, (OVERALL, [*pairs.values()]))
            for metric, estimate in _change(own_pairs, k).items()
        ]
    )


def _check_same(run: EvaluatedRun, baseline: EvaluatedRun, own: set[str], other: set[str], what: str) -> None:
    if own != other:
        raise ValueError(
            f"{run.label!r} and its baseline {baseline.label!r} differ in {what}: only in the run "
            f"{_first_few(own - other)}, only in the baseline {_first_few(other - own)}; "
            "evaluate both on the same problems"
        )


def _first_few(names: set[str]) -> str:
    shown = ", ".join(sorted(names)[:5]) or "none"
    return f"{shown} and {len(names) - 5} more" if len(names) > 5 else shown


def _change(pairs: Sequence[pd.DataFrame], num_samples: int) -> dict[str, Estimate]:
    """Changes of the means over benchmarks, from both runs' means of each problem."""
    accuracies = [(pair["is_correct"] - pair["is_correct_base"]).to_numpy() for pair in pairs]
    lengths = [pair["num_tokens"].to_numpy() for pair in pairs]
    lengths_base = [pair["num_tokens_base"].to_numpy() for pair in pairs]
    differences = [own - base for own, base in zip(lengths, lengths_base, strict=True)]
    return {
        "accuracy": mean_over_benchmarks([mean_share_difference(column, num_samples) for column in accuracies]),
        "tokens": mean_over_benchmarks([mean_amount(column, lowest=-math.inf) for column in differences]),
        "relative_tokens": ratio_minus_one(lengths, lengths_base),
    }


def have_overall(runs: Iterable[EvaluatedRun]) -> bool:
    """Whether means over benchmarks make sense for these runs: all have the same benchmarks, and several."""
    benchmarks = {frozenset(run.benchmarks) for run in runs}
    return len(benchmarks) == 1 and len(benchmarks.pop()) > 1


def warning(runs: Iterable[EvaluatedRun]) -> str:
    """One line on the intervals of runs whose problems are few or not all graded; else empty."""
    rows = [
        (run.label, row.benchmark, row.num_problems, row.num_graded)
        for run in runs
        for row in run.results[run.results["benchmark"] != OVERALL].drop_duplicates("benchmark").itertuples()
    ]
    rows.sort(key=lambda row: -row[-1])
    lost = [f"{size - graded} of {size} of {name} in {label!r}" for label, name, size, graded in rows if graded < size]
    left_out = f"Left out, because they could not be graded: {', '.join(lost)} ({GRADED_AGAIN})." if lost else ""
    return " ".join(filter(None, [few_problems({name: graded for _, name, _, graded in rows}), left_out]))
