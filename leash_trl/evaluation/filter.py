"""Keeps the problems that a model solves sometimes, with the lengths of correct answers and, if wanted, a target."""

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

import numpy as np
from datasets import Dataset


def filtered_rows(
    problems: Dataset,
    samples: Sequence[dict[str, Any]],
    min_passes: int,
    max_passes: int,
    target_quantile: float | None = None,
) -> Iterator[dict[str, Any]]:
    """Yields the problems whose number of correct completions is within bounds.

    The paper keeps problems that are neither always nor never solved: 0 < passes < k, with k = 4. A problem with
    ungraded completions is kept only if it would be kept whatever their grades.

    Source: "Models and Datasets" of [LEASH](https://huggingface.co/papers/2512.21540).

    Args:
        problems (`Dataset`), samples (`Sequence[dict]`): Problems, and k graded completions of each, as
            [`~leash_trl.evaluation.runs.read_lines`] returns them.
        min_passes (`int`), max_passes (`int`): Bounds of the number of correct completions, both inclusive.
        target_quantile (`float`): Adds a column `target_length`: this quantile, in [0, 1], of the lengths of the
            problem's correct completions; between two lengths, the longer one is taken. 0 is the shortest correct
            completion, 0.5 the median. Problems without a correct completion are left out.

    Yields:
        `dict`: The problem's columns; `pass_rate` in [0, 1] and `num_samples` of the graded completions; `mean_length`
        of all completions and `correct_lengths`, in tokens.
    """
    # `row` has the columns of the data set, and `sampled_problem` the completions of the same problem.
    for row, sampled_problem in zip(problems, samples, strict=True):
        completions = sampled_problem["completions"]
        correct_lengths = [completion["num_tokens"] for completion in completions if completion["is_correct"]]
        grades = [completion["is_correct"] for completion in completions]
        if not is_kept(grades, min_passes, max_passes):
            continue
        num_graded = len(grades) - grades.count(None)
        if target_quantile is not None:
            if not correct_lengths:
                continue
            # A target is the length of a correct completion, never a value between two lengths.
            row["target_length"] = int(np.quantile(correct_lengths, target_quantile, method="higher"))
        yield {
            **row,
            "pass_rate": len(correct_lengths) / num_graded,
            "num_samples": num_graded,
            "mean_length": fmean(completion["num_tokens"] for completion in completions),
            "correct_lengths": correct_lengths,
        }


def is_kept(grades: Sequence[bool | None], min_passes: int, max_passes: int) -> bool:
    """Returns whether the number of correct completions is within bounds, whether the ungraded ones (`None`) are
    correct or not. A problem without any graded completion is not kept."""
    num_ungraded = grades.count(None)
    fewest_passes = grades.count(True)
    most_passes = fewest_passes + num_ungraded
    return num_ungraded < len(grades) and min_passes <= fewest_passes and most_passes <= max_passes
