"""Run folders as `leash eval` writes them, from a few numbers."""

import json

from leash_trl.evaluation.runs import RUN_FILE, load_evaluated_run, samples_path


def completion(answer, num_tokens, is_correct, text="text", num_thinking_tokens=0):
    """A completion that is cut off where it is as long as the limit of 64."""
    return {
        "seed": 0,
        "text": text,
        "num_tokens": num_tokens,
        "num_thinking_tokens": num_thinking_tokens,
        "finish_reason": "length" if num_tokens == 64 else "eos",
        "answer": answer,
        "is_correct": is_correct,
        "grader_failure": None,
    }


def problem(index, *completions, name="p", **fields):
    line = {"index": index, "id": f"{name}{index}", "question": f"Question {index}?", "solution": "1", "columns": {}}
    return {**line, **fields, "completions": [*completions]}


def write_run(
    folder,
    benchmarks,
    label="base",
    expected=None,
    **record,
):
    """Writes a run; `expected` says how many problems a benchmark has, where some are missing."""
    num_problems = expected or {}
    recorded = {}
    num_samples = 0
    for name, problems in benchmarks.items():
        path = samples_path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in problems), encoding="utf-8")
        size = num_problems.get(name, len(problems))
        recorded[name] = {"num_problems": size, "fingerprint": "f", "reference": name}
        num_samples = max([num_samples, *(len(row["completions"]) for row in problems)])
    run = {
        "label": label,
        "model": "models/tiny",
        "engine": "transformers",
        "decoding": {"name": "plain"},
        "length_of": "completion",
        "target_length": None,
        "sampling": {"temperature": 0.6, "top_p": 0.95, "top_k": 0, "max_new_tokens": 64},
        "num_samples": num_samples,
        "seed": 0,
        "batch_size": 8,
        "benchmarks": recorded,
        "versions": {"torch": "2.6"},
        "step": None,
        **record,
    }
    (folder / RUN_FILE).write_text(json.dumps(run, default=str), encoding="utf-8")
    return folder


def evaluated_run(folder, benchmarks, label="base"):
    """Writes a run of step 7 and loads it."""
    return load_evaluated_run(write_run(folder, benchmarks, label, step=7))
