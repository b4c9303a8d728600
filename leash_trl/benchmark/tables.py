"""What a benchmark found, as a dictionary for JSON and as a page of Markdown."""

from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from leash_trl.benchmark.settings import BenchSettings


PACKAGES = ("leash-trl", "torch", "trl", "transformers", "accelerate", "vllm")
GIB = 2**30
Results = dict[str, dict[str, Any]]  # by arm or engine; one that did not finish has the key "failed" or "missing"


def package_versions() -> dict[str, str]:
    """Versions of what speed depends on, as far as installed."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def finished(results: Results) -> Results:
    """The results that hold measurements."""
    return {name: result for name, result in results.items() if "device" in result}


def with_utilisation(results: Results) -> Results:
    """The arms of a step benchmark with model FLOP utilisation: against the best matrix rate that any of them saw."""
    done = finished(results)
    best = max((result["matrix_flops_per_second"] for result in done.values()), default=0.0)
    used = {name: {"model_flop_utilisation": result["model_flops_per_second"] / best} for name, result in done.items()}
    return {name: {**result, **used.get(name, {})} for name, result in results.items()}


def make_report(command: str, settings: BenchSettings, results: Results, **more: Any) -> dict[str, Any]:
    """Everything about one benchmark: command, date (UTC), device, versions, settings and results."""
    devices = {result["device"]: None for result in finished(results).values()}
    return {
        "command": command,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": ", ".join(devices),
        "versions": package_versions(),
        "settings": settings.to_dict(),
        **more,
        "results": results,
    }


def _head(report: dict[str, Any]) -> list[str]:
    versions = ", ".join(f"{package} {number}" for package, number in report["versions"].items())
    lines = [f"`{report['command']}`", "", f"{report['date']} · {report['device'] or 'no result'} · {versions}", ""]
    for result in list(finished(report["results"]).values())[:1]:
        lines += [f"Completion lengths: mean {result['mean_length']:.0f}, longest {result['longest']} tokens.", ""]
    return lines


def _problems(results: Results) -> list[str]:
    return [f"{name} failed: {result['failed']}" for name, result in results.items() if "failed" in result]


STEP_ROWS: tuple[tuple[str, str, Callable[[float], str], bool], ...] = (
    ("forward and backward, s per step", "forward_backward_seconds", "{:.4g}".format, True),
    ("scoring, s per step", "scoring_seconds", "{:.4g}".format, True),
    ("completion tokens per s of forward and backward", "completion_tokens_per_second", "{:.0f}".format, False),
    ("padding share", "padding_share", "{:.1%}".format, False),
    ("peak memory, GiB", "peak_memory_bytes", lambda size: f"{size / GIB:.3g}", True),
    ("model FLOP utilisation", "model_flop_utilisation", "{:.1%}".format, False),
)


def step_markdown(report: dict[str, Any]) -> str:
    """A page on stock and ours; ratios above 1 are in our favour. No table if no arm finished.

    Args:
        report (`dict[str, Any]`):
            From [`make_report`], with the results of [`with_utilisation`], `gradient_difference`, `num_groups` and
            `num_dead_groups`.
    """
    done = finished(report["results"])
    lines = _head(report)
    if report["settings"]["dead_share"]:
        lines += [f"{report['num_dead_groups']} of {report['num_groups']} groups dead in every step.", ""]
    if done:
        lines += [*_step_table(done), ""]
    if difference := report["gradient_difference"]:
        lines.append(
            f"Gradients of the first step, ours - stock: relative l2 {difference['relative_l2']:.2g}, largest "
            f"{difference['relative_max']:.2g} of the largest."
        )
    for result in list(done.values())[:1]:
        lines.append(f"Medians of {report['settings']['steps']} steps. Peak memory: {result['peak_memory_kind']}.")
    return "\n".join([*lines, *_problems(report["results"])]) + "\n"


def _step_table(done: Results) -> list[str]:
    lines = [f"| | {' | '.join(done)} | stock / ours |", "|---" * (len(done) + 2) + "|"]
    for label, key, written, has_ratio in STEP_ROWS:
        values = [result[key] for result in done.values()]
        ratio = ""
        if has_ratio and {"stock", "ours"} <= done.keys() and done["ours"][key] > 0:
            ratio = f"{done['stock'][key] / done['ours'][key]:.2f}"
        lines.append(f"| {label} | {' | '.join(map(written, values))} | {ratio} |")
    return lines


def rollout_markdown(report: dict[str, Any]) -> str:
    """A page with a row per engine; the ratio is to transformers' `generate`. No table if no engine finished.

    Args:
        report (`dict[str, Any]`):
            From [`make_report`].
    """
    results = report["results"]
    done = finished(results)
    lines = _head(report)
    if done:
        lines += [*_rollout_table(results), ""]
    else:
        lines += [f"{name}: {result['missing']}" for name, result in results.items() if "missing" in result]
    for result in list(done.values())[:1]:
        lines.append(f"Medians of {report['settings']['steps']} rounds. Peak memory: {result['peak_memory_kind']}.")
    return "\n".join([*lines, *_problems(results)]) + "\n"


def _rollout_table(results: Results) -> list[str]:
    done = finished(results)
    lines = ["| engine | completion tokens per s | ratio to generate | peak memory, GiB |", "|---" * 4 + "|"]
    for name, result in results.items():
        if name not in done:
            lines.append(f"| {name} | {result.get('missing', 'failed')} | | |")
            continue
        rate = result["completion_tokens_per_second"]
        ratio = f"{rate / done['generate']['completion_tokens_per_second']:.2f}" if "generate" in done else ""
        lines.append(f"| {name} | {rate:.0f} | {ratio} | {result['peak_memory_bytes'] / GIB:.3g} |")
    return lines
