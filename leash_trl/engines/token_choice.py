"""Chooses the next token from a model's logits: with torch's generator, with a seed per completion, or greedily."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import torch


BLOCK_SIZE = 256  # draws made at once; a completion of 32768 tokens would need a quarter of a megabyte


# Chooses tokens, `(R,)`, for R rows of a batch of N completions, from
# - the logits after temperature, top-p and top-k, `(R, V)`,
# - which of the N completions the rows are, `(R,)`,
# - the place of the token in its completion, from 0.
TokenChoice: TypeAlias = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]


def global_draw(scores: torch.Tensor, rows: torch.Tensor, position: int) -> torch.Tensor:
    """Tokens drawn with torch's global generator."""
    return torch.multinomial(scores.softmax(dim=-1), num_samples=1)[:, 0]


def likeliest(scores: torch.Tensor, rows: torch.Tensor, position: int) -> torch.Tensor:
    """The likeliest tokens."""
    return scores.argmax(dim=-1)


def inverse_cdf(probabilities: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Tokens at which the cumulated probability first exceeds a share of the total.

    Source: inverse transform sampling. A token without probability is never chosen.

    Args:
        probabilities (`torch.Tensor` of shape `(R, V)`): Probabilities, dimensionless; they need not sum to 1.
        uniforms (`torch.Tensor` of shape `(R,)`): Shares in [0, 1), in float64.

    Returns:
        `torch.Tensor` of shape `(R,)`: Token ids.

    Example:
        >>> halves = torch.tensor([[0.5, 0.0, 0.5]]).expand(3, 3)
        >>> inverse_cdf(halves, torch.tensor([0.0, 0.499, 0.5], dtype=torch.float64)).tolist()
        [0, 0, 2]
    """
    # in float32 a token of probability 1e-8 would vanish beside a sum near 1, and a vocabulary has many of those
    cumulated = probabilities.double().cumsum(dim=-1)
    # a float64 below 1 times the total stays below the total even after rounding, so such a token always exists
    shares = uniforms * cumulated[:, -1]
    return torch.searchsorted(cumulated, shares[:, None], right=True)[:, 0]


class SeededDraw:
    """Draws from one stream of random numbers per completion, so that none depends on its neighbours.

    The token at position t takes the t-th number of NumPy's default generator for its seed. Neighbours can still
    change the rounding of the logits, and so, rarely, a token whose draw lies on the border between two.

    Args:
        seeds (`Sequence[int]` of length N): One seed per completion.
    """

    def __init__(self, seeds: Sequence[int]) -> None:
        self._streams = [np.random.default_rng(seed) for seed in seeds]
        self._block = torch.empty(len(seeds), 0, dtype=torch.float64)

    def __call__(self, scores: torch.Tensor, rows: torch.Tensor, position: int) -> torch.Tensor:
        """Tokens drawn by [`inverse_cdf`]; positions must come in order."""
        if position % BLOCK_SIZE == 0:
            block = np.stack([stream.random(BLOCK_SIZE) for stream in self._streams])
            self._block = torch.from_numpy(block).to(scores.device)
        return inverse_cdf(scores.softmax(dim=-1), self._block[rows, position % BLOCK_SIZE])
