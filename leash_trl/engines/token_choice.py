"""Chooses the next tokens from a model's logits: with torch's generator, with a seed per completion, or greedily."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import torch


# Chooses the next tokens, of shape `(R,)`, for R of N completions, given
# - the logits after temperature, top-p and top-k, of shape `(R, V)`,
# - the indices of these completions among the N, of shape `(R,)`.
TokenChoice: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def drawn_from_global_generator(scores: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Draws tokens with torch's global generator."""
    return torch.multinomial(scores.softmax(dim=-1), num_samples=1)[:, 0]


def likeliest_tokens(scores: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Returns the most likely tokens."""
    return scores.argmax(dim=-1)


def tokens_by_inverse_cdf(probabilities: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Returns the first tokens at which the cumulative probability exceeds the given shares of its total.

    Source: inverse transform sampling. A token with probability 0 is never chosen.

    Args:
        probabilities (`torch.Tensor` of shape `(R, V)`): Probabilities, dimensionless; they need not sum to 1.
        uniforms (`torch.Tensor` of shape `(R,)`): Shares in [0, 1), in float64.

    Returns:
        `torch.Tensor` of shape `(R,)`: Token ids.

    Example:
        >>> halves = torch.tensor([[0.5, 0.0, 0.5]]).expand(3, 3)
        >>> tokens_by_inverse_cdf(halves, torch.tensor([0.0, 0.499, 0.5], dtype=torch.float64)).tolist()
        [0, 0, 2]
    """
    # In float32, a probability of 1e-8 would be lost beside a sum near 1, and a vocabulary has many such tokens.
    cumulated = probabilities.double().cumsum(dim=-1)
    # In float64, a share below 1 times the total stays below the total, even after rounding, so a token always exists.
    shares = uniforms * cumulated[:, -1]
    return torch.searchsorted(cumulated, shares[:, None], right=True)[:, 0]


class SeededDraw:
    """Draws tokens from one stream of random numbers per completion, so that completions do not depend on the rest of
    the batch.

    The token at position t uses the t-th number of NumPy's default generator for the seed. The rest of the batch can
    still change the rounding of the logits, and thereby, in rare cases, a token.

    Args:
        seeds (`Sequence[int]` of length N): One seed per completion.
    """

    def __init__(self, seeds: Sequence[int]) -> None:
        self._streams = [np.random.default_rng(seed) for seed in seeds]

    def __call__(self, scores: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Draws tokens by [`tokens_by_inverse_cdf`]. Each call takes the next number of the stream of every row in
        `rows`."""
        # Each remaining completion takes the next number of its stream, whichever others are still in the batch.
        uniforms = [self._streams[row].random() for row in rows.tolist()]
        return tokens_by_inverse_cdf(
            scores.softmax(dim=-1), torch.tensor(uniforms, dtype=torch.float64, device=scores.device)
        )
