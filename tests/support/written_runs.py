"""Folders of evaluated, trained and compared runs as the commands write them, from a few numbers."""

import json
from pathlib import Path

import pandas as pd
from sampled_run import completion, problem, write_run

from leash_trl.comparison.tables import (
    DIFFERENCE_COLUMNS,
    comparison_markdown,
    comparison_rows,
    read_comparison_rows,
)
from leash_trl.evaluation.runs import load_evaluated_run


GYM_SEEDS = Path(__file__).parents[2] / "recipes" / "gym" / "compare_seeds.csv"
BASE = {"name": "base", "seeds": "", "measure": "accuracy", "score": 0.7, "mean_tokens": 100.0, "p95_tokens": 150.0}
BASE |= {"score_interval_low": 0.65, "score_interval_high": 0.75}


def said(num_tokens, is_correct=True, text="text", answer="1"):
    """A completion; as long as the limit of 64, it is cut off."""
    return completion(answer, num_tokens, is_correct, text)


def write_evaluation(folder, label, benchmarks, **record):
    """A run with, for each benchmark, a list of completions for each problem; the folder."""
    problems = {}
    for name, rows in benchmarks.items():
        problems[name] = [problem(index, *completions, name=f"{name}-") for index, completions in enumerate(rows)]
    return write_run(folder, problems, label, **record)


def evaluated(folder, label="run", **benchmarks):
    """Such a run, loaded."""
    return load_evaluated_run(write_evaluation(folder / label, label, benchmarks))


def write_training(folder, rows, method="leash", step=None, advice=()):
    """A run of leash train that logged these rows, from step 1 on unless they tell theirs; the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{"step": number, **row} for number, row in enumerate(rows, 1)]
    callbacks = {"LengthControl": {"method": method, "length_of": "completion", "target_length": 46, "state": {}}}
    callbacks["Advice"] = [*advice]
    state = {"global_step": step or rows[-1]["step"], "log_history": rows, "stateful_callbacks": callbacks}
    (folder / "trainer_state.json").write_text(json.dumps(state))
    return folder


def seeds_of(name, tokens, accuracy, target=46.0, **settings):
    """Two seeds of a method, as rows of a comparison."""
    return [
        dict.fromkeys(read_comparison_rows(GYM_SEEDS).loc[:, :"generated_tokens"], 0.1)
        | {"name": name, "seeds": str(seed), "measure": "accuracy", "score": accuracy, "mean_tokens": tokens + seed}
        | {"target_length": target, "num_reached": 1, **settings}
        for seed in (0, 1)
    ]


def write_comparison(folder, seeds):
    """A folder with the files of leash compare for these rows."""
    folder.mkdir(parents=True)
    seeds = pd.DataFrame([BASE, *seeds])[[*seeds[0]]]
    seeds.to_csv(folder / "seeds.csv", index=False)
    comparison_rows(seeds).to_csv(folder / "table.csv", index=False)
    differences = pd.DataFrame(columns=[*DIFFERENCE_COLUMNS])
    differences.to_csv(folder / "differences.csv", index=False)
    (folder / "table.md").write_text(f"`leash compare`: 3 problems.\n\n{comparison_markdown(seeds, differences)}\n")
    return folder


def files_in(folder):
    """Content of all files, by their paths in the folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
