"""Tokens of a step, and how its time divides between generation and training at measured rates."""

from dataclasses import dataclass

from leash_trl.planning.settings import Settings


@dataclass(frozen=True)
class StepSize:
    """What one generation batch amounts to, over all GPUs.

    Args:
        completions (`int`):
            Completions of a generation batch.
        completions_per_update (`int`):
            Completions of one policy update.
        updates (`float`):
            Policy updates on each generation batch.
        mean_tokens (`int`):
            Completion tokens of a generation batch at the mean length.
        max_tokens (`int`):
            Completion tokens of a generation batch whose completions are all of the greatest length.
    """

    completions: int
    completions_per_update: int
    updates: float
    mean_tokens: int
    max_tokens: int


def step_size(settings: Settings) -> StepSize:
    """Completions, updates and tokens of one generation batch."""
    rows = settings.num_gpus * settings.per_device_train_batch_size
    completions = rows * settings.steps_per_generation
    return StepSize(
        completions=completions,
        completions_per_update=rows * settings.gradient_accumulation_steps,
        updates=settings.num_iterations * settings.steps_per_generation / settings.gradient_accumulation_steps,
        mean_tokens=completions * settings.mean_completion_length,
        max_tokens=completions * settings.max_completion_length,
    )


@dataclass(frozen=True)
class StepTime:
    """Seconds of one generation batch.

    Args:
        rollout (`float`):
            Seconds of generation.
        train (`float`):
            Seconds of all policy updates on it.
    """

    rollout: float
    train: float

    @property
    def rollout_share(self) -> float:
        """Share of the time that generation takes, in [0, 1]."""
        return self.rollout / (self.rollout + self.train)


def step_time(settings: Settings, rollout_rate: float, train_rate: float, rollout_gpus: int) -> StepTime:
    """
    Seconds of one generation batch at measured rates, one phase after the other, as TRL runs them.

    Rates must come from batches like those of the run: a batch of which one completion is far longer than the others
    generates at a lower rate, and padding lowers the training rate.

    Args:
        settings (`Settings`):
            The run.
        rollout_rate (`float`):
            Completion tokens generated per second on one GPU. Must be positive.
        train_rate (`float`):
            Completion tokens trained per second on one GPU. Must be positive.
        rollout_gpus (`int`):
            GPUs that generate: those that train, or the server's. Must be positive.

    Returns:
        `StepTime`: Seconds of both phases.

    Raises:
        `ValueError`: If a rate or the number of GPUs is not positive.
    """
    given = {"rollout_rate": rollout_rate, "train_rate": train_rate, "rollout_gpus": rollout_gpus}
    for name, value in given.items():
        if value <= 0:
            raise ValueError(f"{name} is {value}, but must be positive")
    tokens = step_size(settings).mean_tokens
    return StepTime(
        rollout=tokens / (rollout_rate * rollout_gpus),
        train=settings.num_iterations * tokens / (train_rate * settings.num_gpus),
    )
