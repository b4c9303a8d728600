"""What a benchmark is asked to do, as its processes hand it to each other."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from leash_trl.benchmark.lengths import check_lengths
from leash_trl.microbatching.loss_weights import LOSS_TYPES


DTYPES = ("float64", "float32", "bfloat16")
MODELS = ("gym", "r1-distill-1.5b")
ARMS = ("stock", "ours without skipping", "ours")
ENGINES = ("generate", "shrinking", "continuous", "vllm")


@dataclass(frozen=True)
class BenchSettings:
    """What both benchmarks need to know.

    Args:
        model (`str`):
            A name of `MODELS`, or the path of a `config.json`; weights are random.
        dtype (`str`):
            Type of weights and activations, a name of `DTYPES`.
        lengths (`str`):
            Distribution of completion lengths; see [`~leash_trl.benchmark.lengths.draw_lengths`].
        max_length (`int`):
            Longest completion in tokens.
        seed (`int`):
            Seed of weights, lengths, tokens and rewards, from 0 to 2**32 - 1.
        steps (`int`):
            Optimizer steps, or rounds of generation, that are measured after one that is not.

    Raises:
        `ValueError`: If a value is out of its range.
    """

    model: str
    dtype: str
    lengths: str
    max_length: int
    seed: int
    steps: int

    def __post_init__(self) -> None:
        check_lengths(self.lengths, self.max_length)
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype is {self.dtype!r}, but must be one of {', '.join(DTYPES)}")
        if self.model not in MODELS:
            _check_config_file(self.model)
        if self.steps < 1:
            raise ValueError(f"steps is {self.steps}, but must be at least 1")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed is {self.seed}, but must be from 0 to 4294967295, as numpy's; take 0")

    @classmethod
    def load(cls, path: str) -> Self:
        """The settings that [`save`] wrote."""
        return cls(**json.loads(Path(path).read_text(encoding="utf-8")))

    def save(self, path: Path) -> None:
        """Writes the settings as JSON."""
        path.write_text(json.dumps(self.to_dict()), encoding="utf-8")

    def to_dict(self) -> dict[str, Any]:
        """The settings by their names."""
        return dataclasses.asdict(self)


def _check_config_file(model: str) -> None:
    if not Path(model).is_file():
        raise ValueError(f"model is {model!r}, but must be {', '.join(MODELS)} or the path of a config.json")
    try:
        config = json.loads(Path(model).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"model is {model!r}, which is not JSON: {error}; give a model's config.json") from error
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise ValueError(f"model is {model!r}, which has no model_type, such as 'qwen2'; give a whole config.json")


@dataclass(frozen=True)
class StepSettings(BenchSettings):
    """What `leash bench step` measures.

    Args:
        loss_type (`str`):
            TRL's name of the loss, one of `LOSS_TYPES`.
        per_device_train_batch_size (`int`):
            Completions in a micro-batch.
        gradient_accumulation_steps (`int`):
            Micro-batches in an optimizer step.
        num_generations (`int`):
            Completions per prompt, at least 2.
        dead_share (`float`):
            Share of prompts whose completions all get the same reward, in [0, 1); at least one prompt is left out.
        gradient_checkpointing (`bool`):
            Whether to recompute activations in the backward pass.

    Raises:
        `ValueError`: If a value is out of its range, or the batch does not divide into groups.
    """

    loss_type: str
    per_device_train_batch_size: int
    gradient_accumulation_steps: int
    num_generations: int
    dead_share: float
    gradient_checkpointing: bool

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
    """What `leash bench rollout` measures.

    Args:
        num_completions (`int`):
            Completions in a round.

    Raises:
        `ValueError`: If a value is out of its range.
    """

    num_completions: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_completions < 1:
            raise ValueError(f"num_completions is {self.num_completions}, but must be at least 1")
