"""Draws completion lengths for a benchmark: the paper's at both ends of training, uniform, or a file's."""

import csv
import random
from pathlib import Path
from typing import NamedTuple


PAPER_LIMIT = 32768  # tokens; the paper's max_completion_length


class LogNormal(NamedTuple):
    r"""Lengths $L = s + X$ in tokens, with $\log X$ normal.

    Source: fitted to `constraint/avg_length` and `constraint/satisfaction_rate` (target 4,096) of the run that the
    authors of [LEASH](https://huggingface.co/papers/2512.21540) published with their figures (YanhaoLi-Cc/LEASH at
    bb5aa658). Mean $s + e^{\mu + \sigma^2 / 2}$ and share $\Phi((\log(4096 - s) - \mu) / \sigma)$ are the logged ones.

    Args:
        shift (`float`):
            $s$, in tokens.
        mu (`float`), sigma (`float`):
            Mean and standard deviation of $\log X$.
    """

    shift: float
    mu: float
    sigma: float


# First step, 512 completions before any update: the log fixes mean and lower half only, and the shift is such that the
# longest of 512 reaches the limit half of the time. And the mean of the last 50 steps, which needs no shift.
PAPER = {
    "paper-start": LogNormal(1846.3821936022375, 8.665216938060484, 0.5581233112515733),
    "paper-end": LogNormal(0.0, 7.505226132702646, 0.4386939152640985),
}
NAMED = (*PAPER, "uniform")


def draw_lengths(name: str, count: int, max_length: int, seed: int) -> list[int]:
    """`count` completion lengths in tokens, from 1 to `max_length`, the same for the same arguments.

    The paper's are clipped at `max_length` and scaled by `max_length / 32768`.

    Args:
        name (`str`):
            `"paper-start"`, `"paper-end"`, `"uniform"` (from 1 to `max_length`), or the path of a CSV file with a
            column `length`, whose rows are drawn with replacement and not scaled.
        count (`int`):
            Number of lengths.
        max_length (`int`):
            Longest length in tokens, at least 1.
        seed (`int`):
            Seed of the draw.

    Raises:
        `ValueError`: If `name` is neither a distribution nor a file of lengths between 1 and `max_length`.

    Example:
        >>> draw_lengths("uniform", 3, 10, seed=0) == draw_lengths("uniform", 3, 10, seed=0)
        True
    """
    check_lengths(name, max_length)
    rng = random.Random(seed)
    if name == "uniform":
        return [rng.randint(1, max_length) for _ in range(count)]
    if name not in PAPER:
        return rng.choices(_lengths_in(name), k=count)
    shift, mu, sigma = PAPER[name]
    scale = max_length / PAPER_LIMIT
    return [min(max_length, max(1, round(scale * (shift + rng.lognormvariate(mu, sigma))))) for _ in range(count)]


def check_lengths(name: str, max_length: int) -> None:
    """Raises `ValueError` unless [`draw_lengths`] can draw from `name`."""
    if max_length < 1:
        raise ValueError(f"max_length is {max_length}, but must be at least 1 token")
    if name in NAMED:
        return
    if not Path(name).is_file():
        raise ValueError(f"lengths is {name!r}, but must be {', '.join(NAMED)} or the path of a CSV file")
    lengths = _lengths_in(name)
    if not lengths or min(lengths) < 1 or max(lengths) > max_length:
        found = f"{min(lengths)} to {max(lengths)} tokens" if lengths else "no row"
        raise ValueError(f"lengths is {name!r} with {found}, but max_length is {max_length}; they must lie within it")


def _lengths_in(path: str) -> list[int]:
    with open(path, newline="", encoding="utf-8") as file:
        try:
            return [int(row["length"]) for row in csv.DictReader(file)]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"lengths is {path!r}, which needs a column 'length' of whole numbers: {error}"
            ) from error
