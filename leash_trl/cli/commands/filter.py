"""`leash filter`: keeps the training problems that a model solves sometimes, with pass rates and correct lengths, or
with their shortest correct completions."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leash_trl.cli.arguments import parse
from leash_trl.cli.errors import UserError, errors_to_user_errors
from leash_trl.cli.sampling_arguments import PreparedRun, SamplingArguments, prepare_run, sample_all
from leash_trl.completions.prompts import template_arguments
from leash_trl.evaluation.filter import filtered_rows
from leash_trl.evaluation.runs import read_lines, samples_frame, samples_path, truncation_warning
from leash_trl.evaluation.shortest_correct import prompt_completion_row, shortest_correct_text
from leash_trl.files import write_atomically
from leash_trl.model_paths import model_path


DATASET_FILE = "dataset/train.jsonl"
SHORTEST_CORRECT_FILE = "shortest_correct/train.jsonl"


@dataclass(kw_only=True)
class FilterArguments(SamplingArguments):
    """Keep the training problems that a model solves sometimes. Run the same command again to resume.

    Args:
        dataset_name (`str`): Training problems, as a named source, NAME=PATH for a local copy of one, a file, a folder
            or a Hub id.
        num_samples (`int`): Number of completions per problem, k.
        min_passes (`int`): Smallest number of correct completions of a problem to keep.
        max_passes (`int`): Largest number of correct completions of a problem to keep (default: k - 1; k with
            shortest_correct).
        target_quantile (`float`): Adds a column target_length with this quantile, from 0 to 1, of the lengths of a
            problem's correct completions; problems without any are left out.
        shortest_correct (`bool`): Writes a file for trl sft instead, whose column completion has each problem's
            shortest correct completion that ended by itself; problems without one, or whose completion the chat
            template would change, are left out.
    """

    dataset_name: str
    num_samples: int = 4
    min_passes: int = 1
    max_passes: int | None = None
    target_quantile: float | None = None
    shortest_correct: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shortest_correct and self.target_quantile is not None:
            raise ValueError(
                f"target_quantile is {self.target_quantile}, but trl sft reads no target_length; remove it or "
                "shortest_correct"
            )

    @property
    def most_passes(self) -> int:
        """Largest number of correct completions of a problem to keep."""
        if self.max_passes is not None:
            return self.max_passes
        # GRPO learns nothing from a problem that is always solved; fine-tuning on its shortest completion does.
        return self.num_samples if self.shortest_correct else self.num_samples - 1


def main(argv: list[str]) -> None:
    """Samples and grades the problems, and writes those to keep into a file for `leash train`.

    Raises:
        `UserError`: If no problem is left.
    """
    arguments = parse(FilterArguments, argv, "leash filter", takes_recipe=True)
    folder = Path(arguments.output_dir)
    with errors_to_user_errors():
        prepared = prepare_run(arguments, [arguments.dataset_name], "train")
    sample_all(arguments, prepared)
    name = next(iter(prepared.problems))  # the only data set
    # the problems in the same order, each with its graded `completions`
    samples = read_lines(samples_path(folder, name))
    with errors_to_user_errors():
        kept = rows_to_keep(arguments, prepared, samples)
    print("\n".join(summary_lines(name, samples, num_samples=arguments.num_samples, num_kept=len(kept))))
    if not kept:
        raise UserError("nothing is left to train on; use other problems, another model or other bounds")
    file = folder / (SHORTEST_CORRECT_FILE if arguments.shortest_correct else DATASET_FILE)
    lines = [json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in kept]  # str for dates
    write_atomically(file, "".join(lines))
    print(f"Train on it with {next_command(arguments, file, kept)}; raw generations are in {folder / 'samples'}")


def rows_to_keep(
    arguments: FilterArguments, prepared: PreparedRun, samples: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Returns the rows of the file to write."""
    (problems,) = prepared.problems.values()
    rows = list(
        filtered_rows(
            problems,
            samples,
            min_passes=arguments.min_passes,
            max_passes=arguments.most_passes,
            target_quantile=arguments.target_quantile,
        )
    )
    return rows_with_shortest_correct(rows, samples, prepared) if arguments.shortest_correct else rows


def summary_lines(name: str, samples: list[dict[str, Any]], num_samples: int, num_kept: int) -> list[str]:
    """Returns lines that say how many problems have how many correct completions, how many problems are kept, and
    whether completions were truncated or could not be graded."""
    # A row for each completion. `is_correct` is 1, 0 or, for one that could not be graded, NaN, which sums ignore.
    completions = samples_frame({name: samples})
    num_right = completions.groupby("index")["is_correct"].sum()  # of each problem, whose number is `index`
    # how many problems have 0, 1, ..., `num_samples` correct completions
    num_problems = num_right.value_counts().reindex(range(num_samples + 1), fill_value=0)
    counts = ", ".join(f"{count} with {right}" for right, count in num_problems.items())
    lines = [
        f"{len(samples)} problems by number of right completions out of {num_samples}: {counts}. Kept {num_kept}."
    ]
    warning = truncation_warning({name: (completions["finish_reason"] == "length").mean()})
    if warning:
        lines.append(warning)
    num_ungraded = completions["is_correct"].isna().sum()
    if num_ungraded:
        lines.append(f"{num_ungraded} completions could not be graded; problems for which they matter are left out.")
    return lines


def next_command(arguments: FilterArguments, file: Path, kept: Sequence[Mapping[str, Any]]) -> str:
    """Returns the command that trains on the file, which has these rows."""
    if not arguments.shortest_correct:
        return shlex.join(["leash", "train", "--dataset_name", str(file)])
    command = ["trl", "sft", "--model_name_or_path", str(model_path(arguments.model_name_or_path))]
    if arguments.revision is not None:
        command += ["--model_revision", arguments.revision]
    # TRL cuts longer rows at 1024 tokens by default, and with them the ends of their completions.
    longest = max(row["num_tokens"] for row in kept)
    return shlex.join([*command, "--dataset_name", str(file.parent), "--max_length", str(longest)])


def rows_with_shortest_correct(
    rows: list[dict[str, Any]], samples: list[dict[str, Any]], prepared: PreparedRun
) -> list[dict[str, Any]]:
    """Returns the rows whose problems have a correct completion that ended by itself, without special tokens before
    its end, in TRL's prompt-completion format with the shortest such completion. Prints how many of all sampled
    problems have none, and how many completions the chat template would change, which are left out."""
    plan = prepared.plan
    # By the id of the problem; `None` for a problem without such a completion.
    texts = {problem["id"]: shortest_correct_text(problem["completions"]) for problem in samples}
    solved_rows = [row for row in rows if texts[row["id"]] is not None]
    complete = []
    for row, options in zip(solved_rows, options_of_rows(solved_rows, plan.chat_template_kwargs), strict=True):
        text = texts[row["id"]]
        trained = prompt_completion_row(row["prompt"], str(text), prepared.tokenizer, plan.thinking_end, options)
        if trained is not None:
            # Other columns of the problems, such as `tools` or `text`, would be read by TRL.
            complete.append({"id": row["id"], **trained})
    num_unsolved = sum(text is None for text in texts.values())
    print(
        f"{num_unsolved} problems have no right completion that ended and has no special tokens before its end, and "
        "are left out."
    )
    num_changed = len(solved_rows) - len(complete)
    if num_changed:
        print(
            f"{num_changed} problems are left out, since chat_template would change their completion, say remove its "
            "thinking; set a template that writes all of an assistant message and a token that ends it."
        )
    return complete


def options_of_rows(rows: Sequence[Mapping[str, Any]], of_run: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the arguments of the chat template for each row: the same names in all rows, with `None` for those that
    a row does not have, as `datasets` would read them from the file and TRL would pass them on."""
    options_by_row = [{**of_run, **template_arguments(row)} for row in rows]
    names = dict.fromkeys(name for options in options_by_row for name in options)
    return [{name: options.get(name) for name in names} for options in options_by_row]
