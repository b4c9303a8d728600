"""The settings of a benchmark: the options of `leash bench`, which its processes exchange as JSON."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leash_trl.benchmark.lengths import NAMED, check_lengths
from leash_trl.microbatching.loss_weights import LOSS_TYPES


DTYPES = ("float64", "float32", "bfloat16")
MODELS = ("gym", "r1-distill-1.5b")
ARMS = ("stock", "ours without skipping", "ours")
ENGINES = ("generate", "shrinking", "continuous")


def _option(default: Any, help: str) -> Any:
    return dataclasses.field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class BenchSettings:
    """The settings of both benchmarks.

    Raises:
        `ValueError`: If a value is out of its range.
    """

    model_name_or_path: str = _option("gym", f"{', '.join(MODELS)}, or a config.json; weights are random")
    dtype: str = _option("float32", f"of weights and activations: {', '.join(DTYPES)}")
    lengths: str = _option("paper-start", f"{', '.join(NAMED)}, or a CSV with a column length")
    max_length: int = _option(512, "longest completion in tokens; the paper's lengths are scaled to it")
    steps: int = _option(5, "steps or rounds to measure, after one more")
    seed: int = _option(0, "of weights, lengths, tokens and rewards")

    def __post_init__(self) -> None:
        check_lengths(self.lengths, self.max_length)
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype is {self.dtype!r}, but must be one of {', '.join(DTYPES)}")
        if self.model_name_or_path not in MODELS and not Path(self.model_name_or_path).is_file():
            raise ValueError(
                f"model_name_or_path is {self.model_name_or_path!r}, but must be {', '.join(MODELS)} or the path of a "
                "config.json"
            )
        if self.steps < 1:
            raise ValueError(f"steps is {self.steps}, but must be at least 1")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed is {self.seed}, but must be from 0 to 4294967295, as numpy's; take 0")


@dataclass(frozen=True)
class StepSettings(BenchSettings):
    """The settings of `leash bench step`.

    Raises:
        `ValueError`: If a value is out of its range, or the batch does not divide into groups.
    """

    loss_type: str = _option("dapo", "TRL's name of the loss")
    per_device_train_batch_size: int = _option(8, "completions in a micro-batch")
    gradient_accumulation_steps: int = _option(32, "micro-batches in an optimizer step")
    num_generations: int = _option(8, "completions per prompt")
    dead_share: float = _option(0.0, "share of groups with equal rewards, rounded to complete groups")
    gradient_checkpointing: bool = _option(False, "recompute activations in the backward pass")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loss_type not in LOSS_TYPES:
            raise ValueError(f"loss_type is {self.loss_type!r}, but must be one of {', '.join(sorted(LOSS_TYPES))}")
        if self.max_length < 2:
            raise ValueError(
                f"max_length is {self.max_length}, but must be at least 2 tokens: a completion and its end; raise it"
            )
        for name in ("per_device_train_batch_size", "gradient_accumulation_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be at least 1")
        if self.num_generations < 2 or self.batch_size % self.num_generations:
            raise ValueError(
                f"num_generations is {self.num_generations}, but must be at least 2 and divide "
                f"per_device_train_batch_size * gradient_accumulation_steps = {self.batch_size}"
            )
        if not 0 <= self.dead_share < 1 or self.num_dead_groups == self.num_groups:
            raise ValueError(
                f"dead_share is {self.dead_share}, but must be at least 0 and leave one of {self.num_groups} groups "
                "with a signal, or there is no gradient to compare; lower it"
            )

    @property
    def batch_size(self) -> int:
        """Completions in an optimizer step."""
        return self.per_device_train_batch_size * self.gradient_accumulation_steps

    @property
    def num_groups(self) -> int:
        """Prompts in an optimizer step."""
        return self.batch_size // self.num_generations

    @property
    def num_dead_groups(self) -> int:
        """Prompts in an optimizer step whose completions all get the same reward."""
        return round(self.dead_share * self.num_groups)


@dataclass(frozen=True)
class RolloutSettings(BenchSettings):
    """The settings of `leash bench rollout`.

    Raises:
        `ValueError`: If a value is out of its range.
    """

    num_completions: int = _option(64, "completions in a round")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_completions < 1:
            raise ValueError(f"num_completions is {self.num_completions}, but must be at least 1")
