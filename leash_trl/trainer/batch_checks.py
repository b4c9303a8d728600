"""Checks of the rewards of a batch: whether they say which answers are correct, and whether they suit the method."""

import warnings

from transformers import TrainingArguments

from leash_trl.length_control.correctness import CorrectnessRule
from leash_trl.length_control.method import LengthControl
from leash_trl.length_control.rollouts import Rollouts
from leash_trl.length_control.targets import check_thinking_ends


def check_correctness(correctness: CorrectnessRule, method: LengthControl, args: TrainingArguments) -> None:
    """Raises `TrainingError` if the method needs to know which answers are correct, but the rewards do not say so. If
    the method does not need to know, the main process warns once instead."""
    correctness.check_known_for(method)
    warn_if_any(args, correctness.reason_unknown_once())


def check_first_batch(
    rollouts: Rollouts, method: LengthControl, args: TrainingArguments, thinking_end: str | None
) -> None:
    """Warns if the rewards of the first batch of all processes do not suit the method. Raises `TrainingError` if no
    completion has `thinking_end`, unless this is `None`, because the thinking is not controlled or no completion may
    think."""
    if thinking_end is not None:
        check_thinking_ends(rollouts, thinking_end)
    warn_if_any(args, method.reward_warning(rollouts))


def warn_if_any(args: TrainingArguments, warning: str | None) -> None:
    """Warns on the main process, unless `warning` is `None`."""
    if warning is not None and args.process_index == 0:
        warnings.warn(warning, UserWarning, stacklevel=4)
