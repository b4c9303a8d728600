"""`leash filter`: keeps the training problems that a model solves sometimes, with pass rates and correct lengths."""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from leash_trl.cli.arguments import parse
from leash_trl.cli.errors import UserError, user_errors
from leash_trl.cli.sampling_arguments import SamplingArguments, sample_all
from leash_trl.evaluation.filter import filtered_rows
from leash_trl.evaluation.runs import read_lines, samples_path, truncation_warning
from leash_trl.files import write_whole


DATASET_FILE = "dataset/train.jsonl"


@dataclass(kw_only=True)
class FilterArguments(SamplingArguments):
    """Keep the training problems that a model solves sometimes. Run the same command again to resume.

    Args:
        dataset_name (`str`): Training problems, as a named source, NAME=PATH for a local copy of one, a file, a folder
            or a Hub id.
        num_samples (`int`): Number of completions per problem, k.
        min_passes (`int`): Smallest number of right completions of a problem to keep.
        max_passes (`int`): Largest number of right completions of a problem to keep (default: k - 1).
        target_quantile (`float`): Adds a column target_length with this quantile of the lengths of a problem's right
            completions. Problems without right completions are left out.
    """

    dataset_name: str
    num_samples: int = 4
    min_passes: int = 1
    max_passes: int | None = None
    target_quantile: float | None = None


def main(argv: list[str]) -> None:
    """Runs `leash filter`."""
    arguments = parse(FilterArguments, argv, "leash filter", takes_recipe=True)
    folder, k = Path(arguments.output_dir), arguments.num_samples
    max_passes = k - 1 if arguments.max_passes is None else arguments.max_passes
    ((name, problems),) = sample_all(arguments, [arguments.dataset_name], "train").items()
    samples = read_lines(samples_path(folder, name))
    with user_errors():
        rows = list(filtered_rows(problems, samples, arguments.min_passes, max_passes, arguments.target_quantile))
    verdicts = [Counter(completion["is_correct"] for completion in problem["completions"]) for problem in samples]
    passes = Counter(verdict[True] for verdict in verdicts)
    counts = ", ".join(f"{passes[number]} with {number}" for number in range(k + 1))
    print(f"{len(samples)} problems by number of right completions out of {k}: {counts}. Kept {len(rows)}.")
    cut = [completion["finish_reason"] == "length" for problem in samples for completion in problem["completions"]]
    if warned := truncation_warning({name: sum(cut) / len(cut)}):
        print(warned)
    if num_ungraded := sum(verdict[None] for verdict in verdicts):
        print(f"{num_ungraded} completions could not be graded; problems for which they matter are left out.")
    if not rows:
        raise UserError("nothing is left to train on; use other problems, another model or other bounds")
    with user_errors():
        lines = (json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)  # str for dates
        write_whole(folder / DATASET_FILE, "".join(lines))
    print(f"Train on it with --dataset_name {folder / DATASET_FILE}; raw generations are in {folder / 'samples'}")
