"""Keeps the problems that a model sometimes solves, with their correct lengths and, on request, a target for each."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from datasets import Dataset


def check_bounds(num_samples: int, min_passes: int, max_passes: int, target_quantile: float | None = None) -> None:
    """Checks that a filter keeps something, before anything is sampled.

    Raises:
        `ValueError`: If no number of correct completions lies within the bounds, the quantile is out of [0, 1], or it
            would be taken of no lengths.
    """
    if not 0 <= min_passes <= max_passes <= num_samples:
        raise ValueError(
            f"min_passes={min_passes} and max_passes={max_passes} keep nothing of {num_samples} samples; they must "
            "rise within 0 to num_samples"
        )
    if target_quantile is not None and not (0 <= target_quantile <= 1 <= min_passes):
        raise ValueError(
            f"target_quantile is {target_quantile} with min_passes={min_passes}; it must lie in [0, 1], and "
            "min_passes must be 1 or more, for a correct length of every problem"
        )


def filtered_rows(
    problems: Dataset,
    samples: Sequence[dict[str, Any]],
    min_passes: int,
    max_passes: int,
    target_quantile: float | None = None,
) -> Iterator[dict[str, Any]]:
    """Rows of the problems whose number of correct completions lies within bounds.

    The paper keeps problems that are neither always nor never solved: 0 < passes < k, with k = 4. Ungraded completions
    count as neither: a problem is kept only if it would be kept whatever their grades.

    Source: "Models and Datasets" of [LEASH](https://huggingface.co/papers/2512.21540).

    Args:
        problems (`Dataset`), samples (`Sequence[dict]`): In one order; samples as
            [`~leash_trl.evaluation.frame.read_lines`] returns them.
        min_passes (`int`), max_passes (`int`): Bounds of the number of correct completions, both included; see
            [`check_bounds`].
        target_quantile (`float`): Adds a column `target_length`: this quantile of the problem's correct lengths, in
            [0, 1]; between two lengths the longer.

    Yields:
        `dict`: The problem's columns, and `pass_rate` in [0, 1] and `num_samples` of graded completions,
        `mean_length` of all and `correct_lengths` in tokens.

    Raises:
        `ValueError`: If the samples are not those of the problems.
    """
    for row, problem in zip(problems, samples, strict=True):
        if row["id"] != problem["id"]:
            raise ValueError(f"problem {row['id']} has the samples of {problem['id']}")
        completions = problem["completions"]
        lengths = [completion["num_tokens"] for completion in completions if completion["is_correct"]]
        num_graded = sum(completion["is_correct"] is not None for completion in completions)
        most = len(lengths) + len(completions) - num_graded
        if num_graded == 0 or len(lengths) < min_passes or most > max_passes:
            continue
        if target_quantile is not None:
            row["target_length"] = int(np.quantile(lengths, target_quantile, method="higher"))
        yield {
            **row,
            "pass_rate": len(lengths) / num_graded,
            "num_samples": num_graded,
            "mean_length": sum(completion["num_tokens"] for completion in completions) / len(completions),
            "correct_lengths": lengths,
        }
