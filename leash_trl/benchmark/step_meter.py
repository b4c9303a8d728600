"""Measures each optimizer step of a trainer: seconds by part, and the tokens that go through the model."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from leash_trl.benchmark.device import now
from leash_trl.benchmark.gradients import save_gradients


class StepMeter(TrainerCallback):
    """A callback that measures every optimizer step, and keeps the gradients of the first.

    Args:
        device (`torch.device`):
            Where the model is.
        flops (`Callable[[Sequence[int]], float]`):
            FLOPs of training on rows of these lengths, as [`~leash_trl.benchmark.model.training_flops`] gives it.
        gradients_path (`Path`):
            Where the gradients of the first step go.

    Attributes:
        steps (`list[dict[str, float]]`):
            Per optimizer step: `forward_backward_seconds`; `scoring_seconds`; `positions` and `attended` tokens of all
            inputs of the model; and model `flops` of the inputs with gradient.
    """

    def __init__(self, device: torch.device, flops: Callable[[Sequence[int]], float], gradients_path: Path) -> None:
        self._device = device
        self._flops = flops
        self._gradients_path = gradients_path
        self._seconds: dict[str, float] = defaultdict(float)
        self._inputs: list[tuple[bool, int, torch.Tensor]] = []
        self.steps: list[dict[str, float]] = []

    def attach(self, trainer: Any) -> None:
        """Puts clocks around the parts of a trainer's step and a counter before its model."""
        # TRL: GRPOTrainer.training_step calls _prepare_inputs, which calls rollout_func when it generates
        trainer.training_step = self._timed("training", trainer.training_step)
        trainer._prepare_inputs = self._timed("preparing", trainer._prepare_inputs)
        trainer.rollout_func = self._timed("rollout", trainer.rollout_func)
        trainer.model.register_forward_pre_hook(self._count, with_kwargs=True)
        trainer.add_callback(self)

    def _timed(self, part: str, function: Callable) -> Callable:
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = now(self._device)
            result = function(*args, **kwargs)
            self._seconds[part] += now(self._device) - start
            return result

        return timed

    def _count(self, model: torch.nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        # kept on the device: reading the sums here would make the model wait
        mask = kwargs["attention_mask"]
        self._inputs.append((torch.is_grad_enabled(), mask.numel(), mask.sum(dim=1)))

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Keeps the gradients of the first step."""
        if not self.steps:
            save_gradients(kwargs["model"], self._gradients_path)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stores the measurements of one optimizer step."""
        rows = [(has_gradient, lengths.tolist()) for has_gradient, _, lengths in self._inputs]
        trained = [length for has_gradient, lengths in rows if has_gradient for length in lengths]
        self.steps.append(
            {
                "forward_backward_seconds": self._seconds["training"] - self._seconds["preparing"],
                "scoring_seconds": self._seconds["preparing"] - self._seconds["rollout"],
                "positions": sum(positions for _, positions, _ in self._inputs),
                "attended": sum(sum(lengths) for _, lengths in rows),
                "flops": self._flops(trained),
            }
        )
        self._seconds.clear()
        self._inputs.clear()
