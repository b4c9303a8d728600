"""Sorts prompts into LASER-D's three difficulties and chooses a target for each."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Literal

import torch

from leash_trl.length_control.rollouts import Rollouts


DIFFICULTIES = ("hard", "medium", "easy")


def difficulty(solve_rates: torch.Tensor, when: Literal["shaping", "monitoring"]) -> torch.Tensor:
    """Difficulty of each prompt as an index into `DIFFICULTIES`; a rate on a border is easier when shaping.

    Source: the [release](https://github.com/hkust-nlp/Laser); its reward and its monitor treat the borders like this.

    Example:
        >>> borders = torch.tensor([1 / 3, 2 / 3], dtype=torch.float64)
        >>> difficulty(borders, "shaping").tolist(), difficulty(borders, "monitoring").tolist()
        ([1, 2], [0, 1])
    """
    rates = solve_rates.double()
    passes = torch.ge if when == "shaping" else torch.gt
    return passes(rates, 1 / 3).long() + passes(rates, 2 / 3).long()


def lengths_by_difficulty(rollouts: Rollouts) -> list[list[int]]:
    """Lengths of all completions, correct and wrong, for each of `DIFFICULTIES`; unscorable prompts are left out."""
    levels = difficulty(rollouts.solve_rates, "monitoring").masked_fill(torch.isnan(rollouts.solve_rates), -1)
    return [rollouts.lengths[levels == level].tolist() for level in range(len(DIFFICULTIES))]


def candidate_targets(lower_bound: int, upper_bound: int, interval: int) -> list[int]:
    """Targets to choose from, in tokens: a grid from the lower bound on. Source: the release.

    Example:
        >>> candidate_targets(2048, 5120, 1024), candidate_targets(500, 3000, 1024)
        ([2048, 3072, 4096, 5120], [500, 1024, 2048])
    """
    if lower_bound > upper_bound:
        raise ValueError(
            f"upper_bound is {upper_bound}, but must not be below target_length={lower_bound}, where the targets of "
            "LASER-D begin; raise it"
        )
    first = interval if lower_bound < interval else lower_bound + interval
    return [lower_bound, *range(first, upper_bound + 1, interval)]


def smallest_target(lengths: Sequence[int], candidates: Iterable[int], num_right: int, expected: int) -> int | None:
    r"""Smallest target under which enough correct answers are expected, in tokens.

    $$ \min \{ l : P_{l,d} \cdot |C_d| \ge \text{expected} \} $$

    Source: sections 2 to 4 of [LASER](https://huggingface.co/papers/2505.15612). The release rounds the product
    down; `expected` is a whole number, so this changes nothing.

    Args:
        lengths (`Sequence[int]`):
            Lengths of all responses of this difficulty in tokens; $P_{l,d}$ is the share of them up to $l$.
        candidates (`Iterable[int]`):
            Targets to choose from in tokens, ascending.
        num_right (`int`):
            $|C_d|$, correct answers among K of a prompt of this difficulty.
        expected (`int`):
            Correct answers that must be expected under the target.

    Returns:
        `int`, *optional*: `None` if no candidate is enough or there are no lengths.

    Example:
        >>> smallest_target([100, 200, 300, 400], [128, 256, 512], num_right=2, expected=1)
        256
    """
    ordered = sorted(lengths)
    enough = (c for c in candidates if ordered and bisect_right(ordered, c) * num_right >= expected * len(ordered))
    return next(enough, None)


def right_answers(num_generations: int, rounding: Literal["paper", "release"]) -> list[int]:
    """$|C_d|$ for each of `DIFFICULTIES`: the solve rate of its lower border times K, rounded, and at least 1.

    Source: the paper's 6, 3 and 1 for K = 8 (rounded up); 5, 2 and 1 in the release (rounded down).

    Example:
        >>> right_answers(8, "paper"), right_answers(8, "release")
        ([1, 3, 6], [1, 2, 5])
    """
    up = 2 if rounding == "paper" else 0
    return [max(1, (thirds * num_generations + up) // 3) for thirds in range(len(DIFFICULTIES))]
