"""Accuracy and tokens of sampled completions, with intervals over problems."""

from dataclasses import dataclass

import numpy as np

from leash_trl.evaluation.intervals import mean_share


@dataclass(frozen=True)
class GradedSamples:
    """What one model said to P problems, k completions each.

    Args:
        is_correct (`np.ndarray` of shape `(P, k)`):
            Whether each completion was right.
        lengths (`np.ndarray` of shape `(P, k)`):
            Lengths in tokens.
        is_truncated (`np.ndarray` of shape `(P, k)`):
            Whether each completion was cut off.
    """

    is_correct: np.ndarray
    lengths: np.ndarray
    is_truncated: np.ndarray


@dataclass(frozen=True)
class Summary:
    """What one model did on one set of problems.

    Args:
        accuracy (`float`):
            avg@k: share of right completions, averaged over problems, in [0, 1].
        accuracy_interval (`tuple[float, float]`):
            95 % interval of the accuracy over problems, not over completions.
        mean_tokens (`float`), p95_tokens (`float`):
            Completion length in tokens.
        satisfaction_rate (`float`, *optional*):
            Share of completions at or under the target length, if there is one.
        truncated_rate (`float`):
            Share of completions that ended without EOS.
    """

    accuracy: float
    accuracy_interval: tuple[float, float]
    mean_tokens: float
    p95_tokens: float
    satisfaction_rate: float | None
    truncated_rate: float


def summarize(samples: GradedSamples, target_length: float | None = None) -> Summary:
    """Summary of one model's completions.

    Args:
        samples (`GradedSamples`):
            P problems with k completions each.
        target_length (`float`, *optional*):
            Target in tokens, for the satisfaction rate.
    """
    lengths = samples.lengths
    accuracy = mean_share(samples.is_correct.mean(axis=1))
    return Summary(
        accuracy=accuracy.value,
        accuracy_interval=(accuracy.low, accuracy.high),
        mean_tokens=float(lengths.mean()),
        p95_tokens=float(np.quantile(lengths, 0.95)),
        satisfaction_rate=float((lengths <= target_length).mean()) if target_length is not None else None,
        truncated_rate=float(samples.is_truncated.mean()),
    )
