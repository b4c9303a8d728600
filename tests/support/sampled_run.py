"""Run folders as `leash eval` writes them, from a few numbers."""

import json
from pathlib import Path

from leash_trl.evaluation.samples import RUN_FILE, SAMPLES_FOLDER, ProblemSamples, SampledCompletion


def completion(answer: str | None, num_tokens: int, is_correct: bool | None, limit: int = 64) -> SampledCompletion:
    """A completion that is cut off where it is as long as the limit, and took ten tokens of trials."""
    finish_reason = "length" if num_tokens == limit else "eos"
    return SampledCompletion(0, "text", num_tokens, num_tokens + 10, finish_reason, answer, is_correct)


def problem(index: int, *completions: SampledCompletion, name: str = "p") -> ProblemSamples:
    return ProblemSamples(index, f"{name}{index}", "1", completions)


def write_run(
    folder: Path,
    benchmarks: dict[str, list[ProblemSamples]],
    label: str = "base",
    limit: int = 64,
    expected: dict[str, int] | None = None,
    step: int | None = None,
) -> Path:
    """Writes a run; `expected` says how many problems a benchmark has, where some are missing."""
    sizes = {name: len(problems) for name, problems in benchmarks.items()} | (expected or {})
    num_samples = {len(row.completions) for problems in benchmarks.values() for row in problems} or {1}
    (folder / SAMPLES_FOLDER).mkdir(parents=True)
    for name, problems in benchmarks.items():
        lines = "".join(row.to_json() + "\n" for row in problems)
        (folder / SAMPLES_FOLDER / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    run = {
        "label": label,
        "model": "models/tiny",
        "engine": "transformers",
        "decoding": {"name": "plain"},
        "sampling": {"temperature": 0.6, "top_p": 0.95, "top_k": 0, "max_new_tokens": limit},
        "num_samples": max(num_samples),
        "seed": 0,
        "batch_size": 8,
        "benchmarks": {name: {"num_problems": size, "fingerprint": "f"} for name, size in sizes.items()},
        "versions": {"torch": "2.6"},
        "step": step,
    }
    (folder / RUN_FILE).write_text(json.dumps(run), encoding="utf-8")
    return folder
