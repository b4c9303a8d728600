"""Writes a run's results in the two forms that the Hub shows: `.eval_results/` files, and model card metadata."""

import yaml
from huggingface_hub import EvalResult, EvalResultEntry, eval_result_entries_to_yaml

from leash_trl.data.sources import SOURCES
from leash_trl.evaluation.intervals import few_problems
from leash_trl.evaluation.results import BenchmarkResult, RunResults


def hub_benchmarks(run: RunResults) -> list[tuple[BenchmarkResult, str, str]]:
    """The benchmarks of a run that live on the Hub, each with the id of its data set and the name of its task there.

    Only named sources exist there, and only a complete benchmark is published, not a part of it.
    """
    return [
        (row, source.hub_id, source.task_id)
        for row in run.benchmarks
        if (source := SOURCES.get(row.name)) is not None
        and source.hub_id is not None
        and source.num_rows in (None, row.num_problems)
    ]


def hub_eval_results(run: RunResults) -> str:
    """Content of one file of a model repository's `.eval_results/` folder: avg@k in percent, one entry per benchmark.

    The notes of each entry say how it was sampled, its interval, its number of problems and of graded ones, its mean
    length, and whether the problems came from a local copy.

    Args:
        run (`RunResults`):
            A run with at least one of [`hub_benchmarks`].
    """
    entries = [
        EvalResultEntry(dataset_id=hub_id, task_id=task_id, value=_percent(row), notes=_notes(run, row, hub_id))
        for row, hub_id, task_id in hub_benchmarks(run)
    ]
    return yaml.safe_dump(eval_result_entries_to_yaml(entries), sort_keys=False, allow_unicode=True)


def model_card_results(run: RunResults) -> list[EvalResult]:
    """Entries for `ModelCardData(eval_results=...)`, which turns them into `model-index`: avg@k and mean length.

    Args:
        run (`RunResults`):
            A run; the list is empty if it has none of [`hub_benchmarks`].
    """
    return [
        EvalResult(
            task_type="text-generation",
            dataset_type=hub_id,
            dataset_name=row.name,
            metric_type=metric_type,
            metric_name=metric_name,
            metric_value=value,
        )
        for row, hub_id, _ in hub_benchmarks(run)
        for metric_type, metric_name, value in (
            ("accuracy", f"Avg@{row.num_samples} (%)", _percent(row)),
            ("mean_tokens", "mean tokens per completion", round(row.tokens.value, 1)),
        )
    ]


def _percent(row: BenchmarkResult) -> float:
    return round(100 * row.accuracy.value, 2)


def _is_local(reference: str | None, hub_id: str) -> bool:
    """Whether the user's reference means other rows than the Hub's; older runs did not record it."""
    return reference is not None and reference not in SOURCES and reference.partition(":")[0] != hub_id


def _notes(run: RunResults, row: BenchmarkResult, hub_id: str) -> str:
    sampling = run.run["sampling"]
    warning = few_problems({row.name: row.num_graded})
    is_local = _is_local(run.run["benchmarks"][row.name].get("reference"), hub_id)
    graded = "" if row.num_graded == row.num_problems else f", {row.num_graded} of them graded"
    return (
        f"Avg@{row.num_samples} in % [{100 * row.accuracy.low:.1f}, {100 * row.accuracy.high:.1f}]; "
        f"{row.num_problems} problems{graded}{', rows from a local copy' if is_local else ''}; "
        f"{row.tokens.value:.0f} tokens per completion; temperature {sampling['temperature']}, "
        f"top_p {sampling['top_p']}, top_k {sampling['top_k']}, max_new_tokens {sampling['max_new_tokens']}, "
        f"{run.run['decoding']['name']} decoding{f'; {warning}' if warning else ''}"
    )
