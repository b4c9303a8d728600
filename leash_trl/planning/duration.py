"""Says how many updates, completions and tokens a run has, and how long it takes if a rate is known."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class RunSize:
    """Size of a training run.

    Args:
        name (`str`): Name of the run in the first line.
        num_updates (`float`): Policy updates.
        num_completions (`float`): Completions that are generated, without further rounds of dynamic sampling; each may
            be used in several updates.
        max_sampling_rounds (`int`): Maximum number of such rounds, each of which may generate as many completions
            again.
        num_gpus (`int`): Number of GPUs that train.
    """

    name: str
    num_updates: float
    num_completions: float
    max_sampling_rounds: int = 0
    num_gpus: int = 1


@dataclass(frozen=True)
class MeasuredUpdate:
    """Time and tokens of a policy update, as means over a run.

    Args:
        num_updates (`int`): Updates that were measured.
        seconds_per_update (`float`): Time of generation, rewards and gradients, without the optimizer's step,
            evaluation and checkpoints.
        tokens_per_update (`float`): Tokens that were generated; `None` if they were not logged.
    """

    num_updates: int
    seconds_per_update: float
    tokens_per_update: float | None


def measured_update(log_history: Sequence[Mapping[str, Any]]) -> MeasuredUpdate:
    """Returns the means of a log: time from TRL's `step_time`, tokens from `leash/generated_tokens`.

    Raises:
        `ValueError`: If the log has no `step_time`.
    """
    seconds = 0.0
    last_step = 0
    num_tokens = None
    for entry in log_history:
        # An entry without a step time, such as that of an evaluation, measures no update.
        if "step_time" not in entry:
            continue
        # TRL logs the mean over the updates since the last entry, such as 10 updates with `logging_steps=10`.
        seconds += entry["step_time"] * (entry["step"] - last_step)
        last_step = entry["step"]
        # This number counts from the start of the run. It is `None` if another trainer wrote the log.
        num_tokens = entry.get("leash/generated_tokens")
    if last_step == 0:
        raise ValueError("its log has no step_time of a policy update; name another folder")
    tokens_per_update = None if num_tokens is None else num_tokens / last_step
    return MeasuredUpdate(last_step, seconds_per_update=seconds / last_step, tokens_per_update=tokens_per_update)


def run_size_lines(
    size: RunSize,
    longest: int,
    target_length: float | None = None,
    step_seconds: float | None = None,
    tokens_per_second: float | None = None,
    measured: MeasuredUpdate | None = None,
) -> list[str]:
    """Returns lines with the size of a run, and how long it takes at each known rate.

    Args:
        size (`RunSize`): Size of the run.
        longest (`int`), target_length (`float`): Generation limit of a completion and mean target, in tokens.
        step_seconds (`float`), tokens_per_second (`float`), measured (`MeasuredUpdate`): Speed of all GPUs together;
            `None` if not known.
    """
    lines = [f"{size.name}: {size.num_updates:,.0f} policy updates, {size.num_completions:,.0f} completions"]
    if target_length is not None:
        words = f"at the target, {size.num_completions:,.0f} completions of {target_length:,g} on average"
        lines.append(_token_line(size, words, size.num_completions * target_length, tokens_per_second))
    max_completions = size.num_completions * (1 + size.max_sampling_rounds)
    words = f"at most, {max_completions:,.0f} completions of {longest:,g}"
    lines.append(_token_line(size, words, max_completions * longest, tokens_per_second))
    # Each line ends with (given) if the user set its speed, or with (measured) if the speed is that of a run.
    if step_seconds is not None:
        duration = _duration_text(size.num_updates * step_seconds, size.num_gpus)
        lines.append(f"time: {duration} at {step_seconds:g} seconds per update (given)")
    if measured is not None:
        lines.append(_measured_line(size, measured))
    if step_seconds is None and tokens_per_second is None and measured is None:
        lines.append("time: not known; set tokens_per_second or step_seconds, or set run to the folder of a short run")
    return lines


def _token_line(size: RunSize, words: str, num_tokens: float, tokens_per_second: float | None) -> str:
    """Returns the line of a number of tokens, which `words` explain, with the time that they take if the speed is
    known."""
    line = f"tokens {words}: {_millions(num_tokens)}"
    if tokens_per_second is None:
        return line
    duration = _duration_text(num_tokens / tokens_per_second, size.num_gpus)
    return f"{line}, {duration} at {tokens_per_second:,.0f} tokens per second (given)"


def _measured_line(size: RunSize, measured: MeasuredUpdate) -> str:
    """Returns the line of the time and the tokens of a run whose updates are like the measured ones."""
    duration = _duration_text(size.num_updates * measured.seconds_per_update, size.num_gpus)
    line = f"time: {duration} at {measured.seconds_per_update:.2f} seconds per update without the optimizer's step"
    if measured.tokens_per_update is not None:
        num_tokens = size.num_updates * measured.tokens_per_update
        line += f"; tokens: {_millions(num_tokens)} at {measured.tokens_per_update:,.0f} per update"
    return f"{line} (measured in {measured.num_updates:,} updates)"


def _millions(num_tokens: float) -> str:
    return f"{num_tokens / 1e6:,.1f} M"


def _duration_text(seconds: float, num_gpus: int) -> str:
    """Returns a time in hours, or in minutes below an hour, and in GPU hours if there are several GPUs."""
    hours = seconds / 3600
    duration = f"{seconds / 60:.1f} minutes" if hours < 1 else f"{hours:,.1f} hours"
    return duration if num_gpus == 1 else f"{duration} ({hours * num_gpus:,.0f} GPU hours)"
