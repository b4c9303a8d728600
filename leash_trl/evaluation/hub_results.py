"""Results of a run in the two forms that the Hub shows: files of `.eval_results/`, and the model card's metadata."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import yaml
from huggingface_hub import EvalResult, EvalResultEntry, eval_result_entries_to_yaml

from leash_trl.data.references import SOURCES
from leash_trl.evaluation.intervals import few_problems
from leash_trl.evaluation.results import BenchmarkResult, RunResults


@dataclass(frozen=True)
class HubBenchmark:
    """Where a benchmark lives on the Hub.

    Args:
        dataset_id (`str`):
            Data set, such as `"Idavidrein/gpqa"`.
        task_id (`str`, *optional*, defaults to `"default"`):
            Its task, as the `eval.yaml` of the data set names it, such as `"diamond"`.
        revision (`str`, *optional*):
            Commit of the data set.
        num_problems (`int`, *optional*):
            Problems that the benchmark is known to have; a run on another number is not published.
    """

    dataset_id: str
    task_id: str = "default"
    revision: str | None = None
    num_problems: int | None = None


def hub_benchmarks(run: RunResults) -> dict[str, HubBenchmark]:
    """Where the named sources of a run live, by name; those of which the run lacks problems are left out.

    Args:
        run (`RunResults`):
            A run, finished or not.

    Returns:
        `dict[str, HubBenchmark]`: Empty if there is none to publish.
    """
    return {
        row.name: HubBenchmark(source.hub_id, source.task_id, num_problems=source.num_rows)
        for row in run.benchmarks
        if (source := SOURCES.get(row.name)) is not None
        and source.hub_id is not None
        and source.num_rows in (None, row.num_problems)
    }


def hub_eval_results(
    run: RunResults,
    benchmarks: Mapping[str, HubBenchmark],
    date: str | None = None,
    source_url: str | None = None,
    source_name: str | None = None,
    source_user: str | None = None,
    source_org: str | None = None,
) -> str:
    """Content of one file of a model repository's `.eval_results/` folder: avg@k in percent, one entry per benchmark.

    The notes of each entry say how it was sampled, its interval, its number of problems and of graded ones, its mean
    length, and whether the problems came from a local copy.

    Args:
        run (`RunResults`):
            A finished run.
        benchmarks (`Mapping[str, HubBenchmark]`):
            Where benchmarks live, by their names in the run; those it does not name are left out.
        date (`str`, *optional*):
            ISO-8601 date of the run; the Hub takes the commit's without one.
        source_url (`str`, *optional*), source_name (`str`, *optional*), source_user (`str`, *optional*),
        source_org (`str`, *optional*):
            Where the numbers come from: a link, and its name, user or organisation, which need the link.

    Raises:
        `ValueError`: If a benchmark is not finished or not whole, none is on the Hub, or a source has no link.
    """
    entries = [
        EvalResultEntry(
            dataset_id=benchmark.dataset_id,
            task_id=benchmark.task_id,
            value=_percent(row),
            dataset_revision=benchmark.revision,
            date=date,
            source_url=source_url,
            source_name=source_name,
            source_user=source_user,
            source_org=source_org,
            notes=_notes(run, row, benchmark),
        )
        for row, benchmark in _published(run, benchmarks)
    ]
    return yaml.safe_dump(eval_result_entries_to_yaml(entries), sort_keys=False, allow_unicode=True)


def model_card_results(run: RunResults, benchmarks: Mapping[str, HubBenchmark]) -> list[EvalResult]:
    """Entries for `ModelCardData(eval_results=...)`, which turns them into `model-index`: avg@k and mean length.

    Args:
        run (`RunResults`):
            A finished run.
        benchmarks (`Mapping[str, HubBenchmark]`):
            Where benchmarks live, by their names in the run; those it does not name are left out.

    Raises:
        `ValueError`: If a benchmark is not finished or not whole, or none is on the Hub.
    """
    return [
        EvalResult(
            task_type="text-generation",
            dataset_type=benchmark.dataset_id,
            dataset_name=row.name,
            dataset_revision=benchmark.revision,
            metric_type=metric_type,
            metric_name=metric_name,
            metric_value=value,
        )
        for row, benchmark in _published(run, benchmarks)
        for metric_type, metric_name, value in (
            ("accuracy", f"Avg@{row.num_samples} (%)", _percent(row)),
            ("mean_tokens", "mean tokens per completion", round(row.tokens.value, 1)),
        )
    ]


def _published(
    run: RunResults, benchmarks: Mapping[str, HubBenchmark]
) -> Iterator[tuple[BenchmarkResult, HubBenchmark]]:
    rows = [row for row in run.benchmarks if row.name in benchmarks]
    if not rows:
        raise ValueError(
            f"none of the benchmarks of {run.label!r} ({', '.join(row.name for row in run.benchmarks)}) is among "
            f"those with a place on the Hub ({', '.join(benchmarks)}); add it to the mapping"
        )
    for row in rows:
        if row.is_partial:
            raise ValueError(
                f"{row.name} of {run.label!r} has {row.num_problems} of {row.num_expected} problems; "
                "finish the run before it is published"
            )
        benchmark = benchmarks[row.name]
        if benchmark.num_problems not in (None, row.num_problems):
            raise ValueError(
                f"{row.name} of {run.label!r} has {row.num_problems} problems, but {benchmark.dataset_id} has "
                f"{benchmark.num_problems}; evaluate all of them before it is published"
            )
        yield row, benchmark


def _percent(row: BenchmarkResult) -> float:
    return round(100 * row.accuracy.value, 2)


def _is_local(reference: str | None, benchmark: HubBenchmark) -> bool:
    """Whether what the user typed stands for other rows than the Hub's; older runs do not know what it was."""
    return reference is not None and reference not in SOURCES and reference.partition(":")[0] != benchmark.dataset_id


def _notes(run: RunResults, row: BenchmarkResult, benchmark: HubBenchmark) -> str:
    sampling = run.run["sampling"]
    warning = few_problems({row.name: row.num_graded})
    is_local = _is_local(run.run["benchmarks"][row.name].get("reference"), benchmark)
    graded = "" if row.num_graded == row.num_problems else f", {row.num_graded} of them graded"
    return (
        f"Avg@{row.num_samples} in % [{100 * row.accuracy.low:.1f}, {100 * row.accuracy.high:.1f}]; "
        f"{row.num_problems} problems{graded}{', rows from a local copy' if is_local else ''}; "
        f"{row.tokens.value:.0f} tokens per completion; temperature {sampling['temperature']}, "
        f"top_p {sampling['top_p']}, top_k {sampling['top_k']}, max_new_tokens {sampling['max_new_tokens']}, "
        f"{run.run['decoding']['name']} decoding{f'; {warning}' if warning else ''}"
    )
