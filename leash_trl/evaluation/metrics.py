"""Computes metrics of sampled completions of P problems, k each: arrays in, one value per problem out.

The mean of the returned values is the metric; `intervals` has the intervals over problems. Correctness is True or
False, or 1, 0 or NaN: a completion that could not be graded is left out of shares and has no vote.
"""

from collections import Counter
from collections.abc import Sequence
from math import comb
from typing import Literal, NamedTuple

import numpy as np


RIGHT: Literal[True] = True
MAX_BUDGETS = 6

# the vote of a completion: correct answers are one class, wrong ones differ by their text, None is no vote
Vote = Literal[True] | str | None


def avg_at_k(is_correct: np.ndarray) -> np.ndarray:
    """Share of correct completions of each problem, in [0, 1]; its mean is avg@k.

    Args:
        is_correct (`np.ndarray` of shape `(P, k)`):
            Whether each completion is correct.

    Returns:
        `np.ndarray` of shape `(P,)`: One share per problem.

    Example:
        >>> avg_at_k(np.array([[True, True], [True, False]])).tolist()
        [1.0, 0.5]
    """
    return np.nanmean(is_correct, axis=1)


def pass_at_k(is_correct: np.ndarray, k: int) -> np.ndarray:
    r"""Probability that k of a problem's n completions, drawn without replacement, hold a correct one, in [0, 1].

    $$ 1 - \binom{n-c}{k} \Big/ \binom{n}{k} $$

    with c correct completions among n graded ones: unbiased where `1 - (1 - c/n)^k` is not; n below k draws all.

    Source: Eq. (1) of [Evaluating large language models trained on code](https://huggingface.co/papers/2107.03374).

    Args:
        is_correct (`np.ndarray` of shape `(P, n)`):
            Whether each completion is correct.
        k (`int`):
            Completions drawn. From 1 (avg@n) to n (1 for a problem with any correct completion).

    Returns:
        `np.ndarray` of shape `(P,)`: One probability per problem.

    Raises:
        `ValueError`: If `k` is out of range.

    Example:
        >>> pass_at_k(np.array([[True, False, False, False]]), k=2).tolist()  # 1 - 3/6
        [0.5]
    """
    _check_at_most(k, is_correct.shape[1], "k")
    graded, right = (~np.isnan(is_correct)).sum(axis=1), (is_correct == 1).sum(axis=1)
    # integers of any size: a product of floats would lose digits
    return np.array(
        [1 - comb(n - c, min(k, n)) / comb(n, min(k, n)) for n, c in zip(graded.tolist(), right.tolist(), strict=True)]
    )


def _check_at_most(value: int, num_samples: int, name: str) -> None:
    if not 1 <= value <= num_samples:
        raise ValueError(f"{name} is {value}, but must lie between 1 and the {num_samples} completions per problem")


def votes(answers: Sequence[str | None], is_correct: Sequence[bool] | np.ndarray) -> list[Vote]:
    """The vote of each completion of one problem.

    Correct answers are all equivalent to the gold and so one class. Wrong ones differ by their text without
    blanks and dollars; equal values in other words (1/2, 0.5) stay apart, which splits their votes.

    Args:
        answers (`Sequence` of `str` or `None`, of length k):
            Extracted answers; `None` does not vote.
        is_correct (`Sequence[bool]` of length k):
            Whether each is correct.

    Example:
        >>> votes(["1/2", "0.5", "$ 3$", "3", None], [True, True, False, False, False])
        [True, True, '3', '3', None]
    """
    return [
        None if answer is None or np.isnan(right) else RIGHT if right else "".join(answer.replace("$", "").split())
        for answer, right in zip(answers, is_correct, strict=True)
    ]


def majority(ballot: Sequence[Vote]) -> set[Vote]:
    """The classes with the most votes: several in a tie, none if nobody votes.

    Example:
        >>> sorted(majority(["7", "5", "5", "7", "9", None, None, None]))
        ['5', '7']
    """
    counts = Counter(vote for vote in ballot if vote is not None)
    most = max(counts.values(), default=0)
    return {vote for vote, count in counts.items() if count == most}


def majority_at_k(answers: Sequence[Sequence[str | None]], is_correct: np.ndarray) -> np.ndarray:
    """Probability that the majority of each problem's k answers is correct, in [0, 1]; its mean is maj@k.

    A tie is broken at random: the value is the share of the tied classes that are correct, 1/2 in a tie of two. A
    problem without any answer has 0.

    Args:
        answers (`Sequence` of P sequences of k, each `str` or `None`):
            Extracted answers.
        is_correct (`np.ndarray` of shape `(P, k)`):
            Whether each is correct.

    Returns:
        `np.ndarray` of shape `(P,)`: One probability per problem.

    Example:
        >>> majority_at_k([["4", "4", "5"], ["4", "5", None]], np.array([[1, 1, 0], [1, 0, 0]], dtype=bool)).tolist()
        [1.0, 0.5]
    """
    winners = [majority(votes(*row)) for row in zip(answers, is_correct, strict=True)]
    return np.array([(RIGHT in tied) / max(1, len(tied)) for tied in winners])


def shortest_m_winner(ballot: Sequence[Vote], lengths: Sequence[int] | np.ndarray, m: int) -> Vote:
    """The majority of the m shortest completions; of tied classes that of the shortest. `None` if none of them votes.

    Of completions of equal length, the earlier counts as the shorter.

    Args:
        ballot (`Sequence` of length k):
            The vote of each completion.
        lengths (`Sequence[int]` of length k):
            Lengths in tokens.
        m (`int`):
            Completions that vote.

    Example:
        >>> shortest_m_winner(["7", "5", "5", "7", "9"], [900, 1200, 1500, 3000, 100], m=3)  # one vote each
        '9'
    """
    first_to_finish = [ballot[i] for i in np.argsort(lengths, kind="stable")[:m]]
    tied = majority(first_to_finish)
    return next((vote for vote in first_to_finish if vote in tied), None)


class ShortestVote(NamedTuple):
    """The result of short-m@k on each problem.

    Args:
        is_right (`np.ndarray` of shape `(P,)`):
            Whether the vote is correct, 0 or 1.
        waiting_tokens (`np.ndarray` of shape `(P,)`):
            Length of the m-th shortest completion in tokens: how long one waits with all k running side by side.
        total_tokens (`np.ndarray` of shape `(P,)`):
            Tokens computed by all k until then.
    """

    is_right: np.ndarray
    waiting_tokens: np.ndarray
    total_tokens: np.ndarray


def shortest_m_at_k(
    answers: Sequence[Sequence[str | None]], is_correct: np.ndarray, lengths: np.ndarray, m: int
) -> ShortestVote:
    r"""short-m@k: k completions side by side, all stopped when the first m have finished, majority vote among those.

    $$ \text{waiting} = L_{(m)}, \qquad \text{total} = \sum_{i=1}^{k} \min(L_i, L_{(m)}) $$

    Source: [Don't overthink it](https://huggingface.co/papers/2505.17813), from completions that ran to their end. A
    completion that was cut off counts as finished at its last token.

    Args:
        answers (`Sequence` of P sequences of k, each `str` or `None`):
            Extracted answers.
        is_correct (`np.ndarray` of shape `(P, k)`):
            Whether each is correct.
        lengths (`np.ndarray` of shape `(P, k)`):
            Lengths in tokens.
        m (`int`):
            Completions waited for, 1 to k.

    Raises:
        `ValueError`: If `m` is out of range.

    Example:
        >>> vote = shortest_m_at_k([["7", "5", "5"]], np.array([[False, True, True]]), np.array([[9, 12, 15]]), m=2)
        >>> [values.tolist() for values in vote]  # 9 + 12 + 12
        [[0.0], [12.0], [33.0]]
    """
    _check_at_most(m, is_correct.shape[1], "m")
    ballots = [votes(*row) for row in zip(answers, is_correct, strict=True)]
    winners = [shortest_m_winner(ballot, row, m) for ballot, row in zip(ballots, lengths, strict=True)]
    waiting = np.sort(lengths, axis=1)[:, m - 1].astype(float)
    total = np.minimum(lengths, waiting[:, None]).sum(axis=1)
    return ShortestVote(np.array([float(winner is RIGHT) for winner in winners]), waiting, total)


def token_budgets(limit: int) -> tuple[int, ...]:
    """Budgets in tokens to read accuracy at: the limit, and before it the five greatest powers of two below it.

    Args:
        limit (`int`):
            Generation limit in tokens. Must be positive.

    Raises:
        `ValueError`: If the limit is not positive.

    Example:
        >>> token_budgets(32768)
        (1024, 2048, 4096, 8192, 16384, 32768)
        >>> token_budgets(10)
        (1, 2, 4, 8, 10)
    """
    if limit < 1:
        raise ValueError(f"limit is {limit} tokens, but must be positive")
    powers = [2**exponent for exponent in range((limit - 1).bit_length())]
    return (*powers[-(MAX_BUDGETS - 1) :], limit)


def accuracy_within_budgets(is_correct: np.ndarray, lengths: np.ndarray, budgets: Sequence[int]) -> np.ndarray:
    """Share of completions of each problem that are correct and fit each budget, in [0, 1].

    It never falls as the budget grows, and is avg@k if every correct completion fits.

    Args:
        is_correct (`np.ndarray` of shape `(P, k)`):
            Whether each completion is correct.
        lengths (`np.ndarray` of shape `(P, k)`):
            Lengths in tokens; a completion of exactly the budget's length fits it.
        budgets (`Sequence[int]` of length B):
            Budgets in tokens.

    Returns:
        `np.ndarray` of shape `(P, B)`: One share per problem and budget.

    Example:
        >>> accuracy_within_budgets(np.array([[True, True]]), np.array([[10, 20]]), budgets=[9, 10, 20]).tolist()
        [[0.0, 0.5, 1.0]]
    """
    fits = lengths[:, :, None] <= np.asarray(budgets)
    num_graded_P1 = (~np.isnan(is_correct)).sum(axis=1, keepdims=True)
    return (fits & (is_correct == 1)[:, :, None]).sum(axis=1) / num_graded_P1


def mean_tokens_where(lengths: np.ndarray, mask: np.ndarray) -> float | None:
    """Mean length of the chosen completions in tokens, all problems together; `None` if none is chosen.

    Problems with more chosen completions weigh more, so the correct completions' mean leans to the easy problems.

    Args:
        lengths (`np.ndarray` of shape `(P, k)`):
            Lengths in tokens.
        mask (`np.ndarray` of shape `(P, k)`):
            Which are chosen, such as the correct ones.

    Example:
        >>> mean_tokens_where(np.array([[10, 20, 90]]), np.array([[True, True, False]]))
        15.0
    """
    return float(lengths[mask].mean()) if mask.any() else None
