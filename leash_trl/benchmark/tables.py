"""Writes the results of a benchmark as a dictionary for JSON and as a page of Markdown."""

from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, NamedTuple

from leash_trl.benchmark.settings import BenchSettings


PACKAGES = ("leash-trl", "torch", "trl", "transformers", "accelerate")
Results = dict[str, dict[str, Any]]  # by arm or engine; one that did not finish has the key "failed" alone


class Column(NamedTuple):
    """A quantity in a table.

    Args:
        label (`str`), key (`str`), spec (`str`):
            Its heading, its name in the results, and the format of its values.
        is_cost (`bool`, *optional*):
            Whether less is better, or more; without it values are not compared.
    """

    label: str
    key: str
    spec: str
    is_cost: bool | None = None


STEP_COLUMNS = (
    Column("forward and backward, s per step", "forward_backward_seconds", ".4g", is_cost=True),
    Column("scoring, s per step", "scoring_seconds", ".4g", is_cost=True),
    Column("completion tokens per s of forward and backward", "completion_tokens_per_second", ".0f", is_cost=False),
    Column("padding share", "padding_share", ".1%"),
    Column("peak memory, GiB", "peak_memory_gib", ".3g", is_cost=True),
    Column("model FLOP utilisation", "model_flop_utilisation", ".1%"),
)
ROLLOUT_COLUMNS = (
    Column("completion tokens per s", "completion_tokens_per_second", ".0f", is_cost=False),
    Column("peak memory, GiB", "peak_memory_gib", ".3g", is_cost=True),
)


def finished(results: Results) -> Results:
    """The results that hold measurements."""
    return {name: result for name, result in results.items() if "failed" not in result}


def with_utilisation(results: Results) -> Results:
    """The arms of a step benchmark with model FLOP utilisation, relative to the best matrix rate of all arms."""
    done = finished(results)
    best = max((result["matrix_flops_per_second"] for result in done.values()), default=0.0)
    used = {name: {"model_flop_utilisation": result["model_flops_per_second"] / best} for name, result in done.items()}
    return {name: {**result, **used.get(name, {})} for name, result in results.items()}


def make_report(command: str, settings: BenchSettings, results: Results, **more: Any) -> dict[str, Any]:
    """Everything about one benchmark: command, date (UTC), device, versions, settings and results."""
    return {
        "command": command,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": ", ".join({result["device"]: None for result in finished(results).values()}) or "no result",
        "versions": {package: version(package) for package in PACKAGES},
        "settings": vars(settings),
        **more,
        "results": results,
    }


def markdown(report: dict[str, Any]) -> str:
    """The page of a report: a table of what finished, the distance of the gradients, and what failed."""
    versions = ", ".join(f"{package} {number}" for package, number in report["versions"].items())
    lines = [f"`{report['command']}`", "", f"{report['date']} · {report['device']} · {versions}", ""]
    if done := finished(report["results"]):
        first = next(iter(done))
        mean, longest = done[first]["mean_length"], done[first]["longest"]
        columns = STEP_COLUMNS if "gradient_difference" in report else ROLLOUT_COLUMNS
        lines += [
            f"Completion lengths: mean {mean:.0f}, longest {longest} tokens.",
            "",
            *_table(done, columns),
            "",
            f"Medians of {report['settings']['steps']}, after one more. In brackets: times better than {first}. Peak "
            f"memory: {done[first]['peak_memory_kind']}.",
        ]
    if dead := report.get("num_dead_groups"):
        lines.append(f"{dead} of {report['num_groups']} groups dead in every step.")
    if difference := report.get("gradient_difference"):
        lines.append(
            f"Gradients of the first step, ours - stock: relative l2 {difference['relative_l2']:.2g}, largest "
            f"{difference['relative_max']:.2g} of the largest."
        )
    failures = {name: result["failed"] for name, result in report["results"].items() if "failed" in result}
    return "\n".join([*lines, *(f"{name} failed: {why}" for name, why in failures.items())]) + "\n"


def _table(done: Results, columns: tuple[Column, ...]) -> list[str]:
    reference = next(iter(done.values()))
    lines = [f"| | {' | '.join(column.label for column in columns)} |", "|---" * (len(columns) + 1) + "|"]
    for name, result in done.items():
        cells = [_cell(column, result[column.key], reference[column.key], result is reference) for column in columns]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def _cell(column: Column, value: float, reference: float, is_reference: bool) -> str:
    written = f"{value:{column.spec}}"
    if column.is_cost is None or is_reference or not value or not reference:
        return written
    return f"{written} ({reference / value if column.is_cost else value / reference:.2f})"
