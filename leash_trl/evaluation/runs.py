"""Reads a run's folder, `run.json` and `samples/NAME.jsonl` per benchmark, into DataFrames of samples and metrics."""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from leash_trl.completions.costs import name_without_path
from leash_trl.evaluation import intervals
from leash_trl.evaluation.intervals import Estimate
from leash_trl.evaluation.metrics import (
    OVERALL,
    Metric,
    NumProblems,
    metrics_of,
    overall_metrics,
    results_frame,
)


RUN_FILE = "run.json"
# fields of `run.json` that say how the completions were graded
GRADING_FIELDS = ("reward_funcs", "reward_code", "reward_weights", "correctness_func", "lenient")
OTHER_REWARDS_WARNING = "The runs were graded by different reward functions, or versions of them."
HOW_TO_GRADE_AGAIN = (
    "to grade them again, run the command that created this folder again (own rewards: in a new folder)"
)
UNKNOWN_CORRECTNESS_WARNING = (
    "Accuracy is not known with several reward functions, with partial credit, or where correctness_func returned "
    "None for a whole benchmark: set correctness_func to a function that is positive only for correct answers."
)
MIN_RELIABLE_PROBLEMS = 10
MIN_WARNED_TRUNCATION = 1 / 3  # share of truncated completions


def samples_path(folder: str | Path, name: str) -> Path:
    """Returns the path of one benchmark's samples in a run's folder."""
    return Path(folder) / "samples" / f"{name}.jsonl"


def read_run(folder: str | Path) -> dict[str, Any]:
    """Returns the content of a folder's `run.json`: model, engine, sampling, versions and so on."""
    path = Path(folder) / RUN_FILE
    run: dict[str, Any] = json.loads(path.read_bytes())
    return run


def read_lines(path: str | Path) -> list[dict[str, Any]]:
    """Returns all problems of one benchmark's file, in order; none if the run has not begun with the benchmark. A last
    line that is incomplete because the run was killed is ignored.

    Each problem has `index`, `id`, `question` (the text of its prompt's last message), `solution`, `columns` (without
    a solution: the columns of text and numbers, which reward functions may read) and `completions`, which are dicts
    with `seed`, `text` (without special tokens), `num_tokens` (including EOS), `num_thinking_tokens` (up to and
    including the last end of thinking), `num_special_tokens` (if there are any before the last token, which `text`
    does not show), `cost` (if the run's `length_of` is neither `completion` nor `thinking`),
    `finish_reason` (`"eos"`, or `"length"` at the limit), `answer` (or `None`), `is_correct` (`None` if not known),
    `reward` (if reward functions graded; `None` for no reward) and `grader_failure` (the reason, or `None`).
    """
    if not Path(path).is_file():
        return []
    # The part after the last line end is empty, or a line whose writing was interrupted when the run was killed.
    *whole_lines, _ = Path(path).read_bytes().split(b"\n")
    return [json.loads(line) for line in whole_lines]


def load_samples(folder: str | Path) -> pd.DataFrame:
    """Returns one row for each completion of a finished run: `benchmark`, the fields of [`read_lines`], and `sample`
    from 0 to k - 1.

    Raises:
        `OSError`: If the folder holds no run.
        `ValueError`: If the folder holds fewer or more problems than its `run.json` says.
    """
    problems_by_benchmark = {}
    for name, benchmark in read_run(folder)["benchmarks"].items():
        problems = read_lines(samples_path(folder, name))
        num_problems = benchmark["num_problems"]
        if len(problems) != num_problems:
            raise ValueError(
                f"{folder}: {name} has {len(problems)} problems, not {num_problems}; run its command again to resume"
            )
        problems_by_benchmark[name] = problems
    return samples_frame(problems_by_benchmark)


def samples_frame(problems_by_benchmark: Mapping[str, Sequence[dict[str, Any]]]) -> pd.DataFrame:
    """Turns the problems of each benchmark, as [`read_lines`] returns them, into a row per completion, as in
    [`load_samples`]."""
    rows = []
    for name, problems in problems_by_benchmark.items():
        for problem in problems:
            for sample, completion in enumerate(problem["completions"]):
                rows.append({"benchmark": name, **problem, "sample": sample, **completion})
    # The rows repeat all fields of the problem. The list of its completions is not needed any more.
    frame = pd.DataFrame(rows).drop(columns="completions")
    for column in ("is_correct", "reward"):
        if column in frame:
            # True becomes 1.0, False 0.0, and None NaN.
            frame[column] = frame[column].astype(float)
    return frame


@dataclass(frozen=True, eq=False)
class EvaluatedRun:
    """A run's `run.json`, its [`load_samples`] and its metrics.

    `results` has a row for each benchmark and metric, with the benchmarks in the run's order, followed by `"overall"`,
    the unweighted mean over benchmarks, as in the paper. Its columns are:

    | column | meaning |
    |---|---|
    | `benchmark` | name, or `"overall"` |
    | `num_problems` | number of problems |
    | `num_graded` | number of problems with at least one graded completion, on which all numbers are based |
    | `num_samples` | k, completions per problem |
    | `metric` | see below |
    | `at` | k of `pass`, budget in tokens of `accuracy_within`, target of `within_target`, else NaN |
    | `value` | the number |
    | `low`, `high` | 95 % interval over problems, or NaN |

    | metric | meaning |
    |---|---|
    | `accuracy`, `pass`, `majority` | avg@k, pass@k and maj@k, in [0, 1] |
    | `truncated_rate`, `no_answer_rate` | shares of completions, in [0, 1] |
    | `completed_accuracy`, `truncated_accuracy` | of completed and of truncated completions, without an interval |
    | `completed_reward`, `truncated_reward` | their mean rewards, if correctness is not known |
    | `accuracy_within` | share of completions that are correct and within a budget, in [0, 1] |
    | `reward` | mean reward; if all rewards are in [0, 1] or in [-1, 1], so is its interval |
    | `tokens` | mean length |
    | `thinking_tokens`, `answer_tokens` | mean lengths, if a completion thinks or `length_of` is `"thinking"` |
    | `cost` | mean of what the target limits (`length_of`), if it is neither `tokens` nor `thinking_tokens` |
    | `within_target` | share of completions that cost no more than the target, if there is one |
    | `sd_tokens`, `median_tokens`, `p95_tokens` | over all completions together, without an interval |
    | `right_tokens`, `wrong_tokens` | mean lengths of all correct and of all wrong completions, without an interval |

    Runs with reward functions have `reward` instead of `majority` and `no_answer_rate`.
    """

    record: dict[str, Any]
    samples: pd.DataFrame
    results: pd.DataFrame

    @property
    def label(self) -> str:
        """Name of the run in tables."""
        return self.record["label"]

    @property
    def benchmarks(self) -> list[str]:
        """Short names of the benchmarks, without `"overall"`, in the run's order."""
        return [*self.record["benchmarks"]]

    def knows_correctness(self, benchmark: str = OVERALL) -> bool:
        """Returns whether a benchmark, or by default every benchmark, has an accuracy.

        It has none if several reward functions, or one that gives partial credit, graded the completions without a
        `correctness_func`, or if this function returned `None` for all of them.
        """
        return not math.isnan(self.estimate("accuracy", benchmark).value)

    def estimate(self, metric: str, benchmark: str = OVERALL) -> Estimate:
        """Returns a metric with its interval, at the first of several `at`; NaN if the run does not have the
        metric."""
        is_metric = self.results["metric"] == metric
        is_benchmark = self.results["benchmark"] == benchmark
        rows = self.results.loc[is_metric & is_benchmark, ["value", "low", "high"]]
        if rows.empty:
            return Estimate(math.nan, math.nan, math.nan)
        return Estimate(*rows.iloc[0])


def load_evaluated_run(folder: str | Path, label: str | None = None) -> EvaluatedRun:
    """Loads the run of `leash eval` or `leash filter` in a folder; `label` replaces the label of the run.

    Raises:
        `OSError`: If the folder holds no run.
        `ValueError`: If [`load_samples`] raises it, or if no completion of a benchmark could be graded.
    """
    run = read_run(folder)
    samples = load_samples(folder)
    check_graded(folder, samples)
    num_samples = run["num_samples"]
    # `has_thinking` and `bounds` come from the whole run, so that all benchmarks have the same metrics and the same
    # kind of interval. If the target limits thinking, a mean of 0 is a result, too.
    has_thinking = run["length_of"] == "thinking" or bool(samples["num_thinking_tokens"].any())
    bounds = reward_bounds(samples)

    metrics: dict[str, list[Metric]] = {}
    num_problems: dict[str, NumProblems] = {}
    for name, completions in samples.groupby("benchmark", sort=False):
        graded = only_graded_problems(completions)
        metrics[name] = metrics_of(graded, run, has_thinking=has_thinking, reward_bounds=bounds)
        # Every problem has the same number of completions.
        num_problems[name] = NumProblems(len(completions) // num_samples, len(graded) // num_samples)

    metrics[OVERALL] = overall_metrics(metrics)
    results = results_frame(metrics, num_problems, num_samples)
    return EvaluatedRun({**run, "label": label or run["label"]}, samples, results)


def check_graded(folder: str | Path, samples: pd.DataFrame) -> None:
    """Raises `ValueError` if no completion of a benchmark could be graded."""
    for name, completions in samples.groupby("benchmark", sort=False):
        if completions[grade_column_name(completions)].isna().all():
            failure = completions["grader_failure"].iloc[0]  # such as "had no reward"
            raise ValueError(
                f"{folder}, {name}: no completion could be graded (the first {failure}); {HOW_TO_GRADE_AGAIN}"
            )


def only_graded_problems(completions: pd.DataFrame) -> pd.DataFrame:
    """Returns the completions of those problems of a benchmark that have at least one graded completion."""
    # for each row the number of graded completions of its problem; `count` leaves NaN out
    num_graded = completions.groupby("id")[grade_column_name(completions)].transform("count")
    return completions[num_graded > 0]


def grade_column_name(completions: pd.DataFrame) -> str:
    """Returns the column that is NaN for completions of a benchmark that could not be graded: `is_correct` or, if the
    correctness of the whole benchmark is unknown and there are rewards, `reward`."""
    is_known = completions["is_correct"].notna().any()
    return "reward" if "reward" in completions and not is_known else "is_correct"


def reward_bounds(*samples: pd.DataFrame) -> tuple[float, float]:
    """Returns the [`~leash_trl.evaluation.intervals.narrowest_usual_bounds`] of all rewards of some runs; infinite
    bounds if none has rewards."""
    rewards = [frame["reward"].dropna() for frame in samples if "reward" in frame]
    if not any(len(values) for values in rewards):
        return -math.inf, math.inf
    return intervals.narrowest_usual_bounds(pd.concat(rewards).to_numpy())


def have_comparable_overall(runs: Iterable[EvaluatedRun]) -> bool:
    """Returns whether means over benchmarks can be compared: all runs have the same benchmarks, and more than one."""
    benchmarks = {frozenset(run.benchmarks) for run in runs}
    return len(benchmarks) == 1 and len(benchmarks.pop()) > 1


def warning_line(runs: Sequence[EvaluatedRun]) -> str:
    """Returns one line of warnings, which may be empty: about few problems, about completions that could not be graded
    or were truncated, about unknown accuracy, and about code that differs between the runs."""
    warnings = [
        few_problems_warning(runs),
        ungraded_warning(runs),
        truncation_warning(truncated_shares_by_benchmark(runs)),
        "" if all(run.knows_correctness() for run in runs) else UNKNOWN_CORRECTNESS_WARNING,
        "" if are_graded_alike(runs) else OTHER_REWARDS_WARNING,
        cost_code_warning(runs),
    ]
    return " ".join(filter(None, warnings))


def few_problems_warning(runs: Sequence[EvaluatedRun]) -> str:
    """Returns a warning that names the benchmarks with fewer than `MIN_RELIABLE_PROBLEMS` graded problems in a run;
    empty if there are none."""
    results = pd.concat([run.results for run in runs])
    by_benchmark = results.groupby("benchmark", sort=False)
    num_graded = by_benchmark["num_graded"].min().drop(OVERALL)
    few = [f"{name} has {number}" for name, number in num_graded.items() if number < MIN_RELIABLE_PROBLEMS]
    if not few:
        return ""
    return (
        f"Warning: few problems ({', '.join(few)}); below {MIN_RELIABLE_PROBLEMS}, intervals are unreliable, so add "
        "problems."
    )


def ungraded_warning(runs: Sequence[EvaluatedRun]) -> str:
    """Returns a warning that says how many completions could not be graded, in which benchmark and run, and why; empty
    if there are none."""
    places = []  # such as "3 of aime24 in 'leash' (the first had no reward)"
    for run in runs:
        for name, completions in run.samples.groupby("benchmark", sort=False):
            ungraded = completions[completions[grade_column_name(completions)].isna()]
            if len(ungraded):
                failure = ungraded["grader_failure"].iloc[0]
                places.append(f"{len(ungraded)} of {name} in {run.label!r} (the first {failure})")
    if not places:
        return ""
    return (
        f"Ungraded completions (problems that have no others are left out): {', '.join(places)}; {HOW_TO_GRADE_AGAIN}."
    )


def truncated_shares_by_benchmark(runs: Sequence[EvaluatedRun]) -> dict[str, float]:
    """Returns the share of truncated completions of each benchmark of each run, by a description of both."""
    shares = {}
    for run in runs:
        is_truncated = run.samples["finish_reason"] == "length"
        share_by_benchmark = is_truncated.groupby(run.samples["benchmark"], sort=False).mean()
        for name, share in share_by_benchmark.items():
            shares[f"{name} in {run.label!r}"] = share
    return shares


def truncation_warning(shares: Mapping[str, float]) -> str:
    """Returns a warning that names where a third or more of the completions were truncated; else an empty string.

    Example:
        >>> truncation_warning({"aime24": 0.5, "amc23": 0.1})
        'Truncated at max_new_tokens: 50 % of aime24; raise it, since lengths and accuracy are too low.'
    """
    truncated = []
    for name, share in shares.items():
        if share >= MIN_WARNED_TRUNCATION:
            percent = f"{share:.0%}".replace("%", " %")  # such as "50 %"
            truncated.append(f"{percent} of {name}")
    if not truncated:
        return ""
    return f"Truncated at max_new_tokens: {', '.join(truncated)}; raise it, since lengths and accuracy are too low."


def are_graded_alike(runs: Iterable[EvaluatedRun]) -> bool:
    """Returns whether the same reward functions, in the same versions, graded all runs."""
    gradings = set()
    for run in runs:
        grading = [run.record.get(field) for field in GRADING_FIELDS]
        gradings.add(str(grading))
    return len(gradings) == 1


def cost_code_warning(runs: Iterable[EvaluatedRun]) -> str:
    """Returns a warning that names the cost functions whose code differs between the runs; else an empty string."""
    digests_by_name: dict[str, set[str]] = defaultdict(set)
    for run in runs:
        # The module of a function has one digest. Functions of notebooks and our own costs have none.
        digests = run.record.get("cost_code", {}).values()
        name = name_without_path(run.record["length_of"])
        digests_by_name[name].update(digests)
    differing = [name for name, digests in digests_by_name.items() if len(digests) > 1]
    if not differing:
        return ""
    return (
        f"The code of length_of {', '.join(differing)} is not the same in all runs, so its numbers may differ by the "
        "code alone: evaluate all models with the same code."
    )
