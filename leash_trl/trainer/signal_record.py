"""Predictive oversampling: which groups are likely to have signal, how many extra ones a batch needs, which stay.

Ours. DAPO and verl (`gen_batch_size`, `max_num_gen_batches`) repeat whole rounds of a fixed size until enough groups
have signal. Here the number follows from a record, and one call generates batch and extra groups.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch

from leash_trl.trainer.dynamic_sampling import share_of


MEMORY = 4  # outcomes kept of each question
PRIOR_WEIGHT = 1.0  # outcomes that the running share counts as
MARGIN = 1.0  # standard deviations by which the expected number of live groups should exceed what is needed


class SignalRecord:
    r"""
    What is known about the groups to come: whether each question's last groups had signal, and the running share.

    With $s$ of the last $n \le 4$ groups of a question alive and a running share $m$, its next one is alive with

    $$ \hat q = \frac{s + k m}{n + k}, \qquad k = 1, $$

    the mean of a Beta posterior around the running share. It counts signal and not the solve rate: under a length
    penalty a group of correct answers is alive, so only signal means the same for all methods.
    """

    def __init__(self) -> None:
        self._outcomes: dict[int, str] = {}  # "1" for a group with signal and "0" for one without, the newest last
        self._num_alive = 0.0
        self._num_groups = 0.0

    @property
    def running_share(self) -> float:
        """Share of groups with signal; each step counts half as much as the next one. 1 before the first."""
        return self._num_alive / self._num_groups if self._num_groups else 1.0

    def add(self, questions: Sequence[int], has_signal: Sequence[bool]) -> None:
        """Adds all groups of one step.

        Args:
            questions (`Sequence[int]`):
                Question of each group.
            has_signal (`Sequence[bool]`):
                Whether each group has signal.
        """
        for question, is_alive in zip(questions, has_signal, strict=True):
            self._outcomes[question] = (self._outcomes.get(question, "") + "01"[is_alive])[-MEMORY:]
        self._num_alive = self._num_alive / 2 + sum(map(bool, has_signal))
        self._num_groups = self._num_groups / 2 + len(has_signal)

    def probability(self, question: int) -> float:
        """Estimated probability that the question's next group has signal."""
        outcomes = self._outcomes.get(question, "")
        prior = PRIOR_WEIGHT * self.running_share
        return (outcomes.count("1") + prior) / (len(outcomes) + PRIOR_WEIGHT)

    def passes_over(self, question: int) -> bool:
        """Whether a replacement should be another question: this one's probability is below half the running share.

        Each time, the oldest outcome is forgotten, so that no question is passed over more than three times in a row.
        """
        if self.probability(question) >= self.running_share / 2:
            return False
        self._outcomes[question] = self._outcomes[question][1:]
        return True

    def state_dict(self) -> dict[str, Any]:
        """The state as JSON; one short text for each question seen."""
        outcomes = {str(question): text for question, text in self._outcomes.items()}
        return {"num_alive": self._num_alive, "num_groups": self._num_groups, "outcomes": outcomes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores what [`state_dict`] returned; an empty state is that of a new record."""
        self._num_alive, self._num_groups = float(state.get("num_alive", 0)), float(state.get("num_groups", 0))
        self._outcomes = {int(question): text for question, text in state.get("outcomes", {}).items()}


def most_extra_groups(oversample: float, num_groups: int, num_processes: int) -> int:
    """Most extra groups that a process may draw: `oversample` times its share of the batch, rounded up.

    Args:
        oversample (`float`):
            `dynamic_sampling_oversample`.
        num_groups (`int`):
            P, groups of all processes.
        num_processes (`int`):
            Number of processes.

    Example:
        >>> most_extra_groups(0.5, num_groups=6, num_processes=2)
        2
    """
    return math.ceil(oversample * (num_groups // num_processes))


def extra_groups(probabilities: Sequence[float], fresh_probability: float, num_processes: int, most: int) -> int:
    r"""Number of groups that every process should draw on top of its share of the batch: as many as the process with
    the worst prospects needs.

    The fewest $E$ with $\mu + \frac12 - \sigma \ge P$, for the normal approximation of the number of live groups:

    $$ \mu = \sum_i q_i + E m, \qquad \sigma^2 = \sum_i q_i (1 - q_i) + E m (1 - m) $$

    so that they suffice in about five of six batches.

    Args:
        probabilities (`Sequence[float]`):
            $q_i$, probability of signal of each group of the batch, the groups of a process side by side.
        fresh_probability (`float`):
            $m$, the same for an extra group.
        num_processes (`int`):
            Number of processes.
        most (`int`):
            Most extra groups of a process.

    Example:
        >>> extra_groups([1.0, 1.0, 0.5, 0.5], fresh_probability=0.5, num_processes=1, most=8)
        4
    """
    share = len(probabilities) // num_processes
    parts = [probabilities[start : start + share] for start in range(0, len(probabilities), share)]
    return max(_extra_of_process(part, fresh_probability, most) for part in parts)


def _extra_of_process(probabilities: Sequence[float], fresh_probability: float, most: int) -> int:
    mean = sum(probabilities) + 0.5
    variance = sum(q * (1 - q) for q in probabilities)
    fresh_variance = fresh_probability * (1 - fresh_probability)
    for extra in range(most):
        lowest = mean + extra * fresh_probability - MARGIN * math.sqrt(variance + extra * fresh_variance)
        if lowest >= len(probabilities):
            return extra
    return most


def kept_groups(has_signal: torch.Tensor, num_extra: int, num_processes: int) -> list[int]:
    """Groups to keep of a batch with extra groups: each process keeps its batch, with live extra groups, the first
    ones first, in place of dead groups.

    Args:
        has_signal (`torch.Tensor` of shape `(P + E,)`):
            Whether each group has signal; the groups of a process side by side, its extra ones last.
        num_extra (`int`):
            Extra groups of each process.
        num_processes (`int`):
            Number of processes.

    Returns:
        `list[int]`: P groups.

    Example:
        >>> kept_groups(torch.tensor([True, False, False, True, True, True]), num_extra=1, num_processes=2)
        [0, 1, 3, 4]
        >>> kept_groups(torch.tensor([False, True, False, False, True, True]), num_extra=3, num_processes=1)
        [4, 1, 5]
    """
    whole = len(has_signal) // num_processes
    kept = []
    for start in range(0, len(has_signal), whole):
        first_extra = start + whole - num_extra
        alive = iter([group for group in range(first_extra, start + whole) if has_signal[group]])
        kept += [group if has_signal[group] else next(alive, group) for group in range(start, first_extra)]
    return kept


def own_groups(kept: list[int], num_generated: int, process: int, num_processes: int) -> list[int]:
    """The groups that a process keeps, counted through those that it generated.

    Args:
        kept (`list[int]`):
            From [`kept_groups`].
        num_generated (`int`):
            P + E, groups that all processes generated.
        process (`int`), num_processes (`int`):
            Index of the process, and number of processes.

    Example:
        >>> own_groups([0, 2, 3, 4], num_generated=6, process=1, num_processes=2)
        [0, 1]
    """
    whole = num_generated // num_processes
    return [group % whole for group in share_of(kept, process, num_processes)]
