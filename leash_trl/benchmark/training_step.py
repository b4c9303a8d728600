"""Measures one arm of `leash bench step`, in its own process: python -m leash_trl.benchmark.training_step."""

import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from trl import GRPOConfig, GRPOTrainer

from leash_trl.benchmark.device import PeakMemory, benchmark_device, device_name, matrix_rate
from leash_trl.benchmark.model import random_model, training_flops
from leash_trl.benchmark.scripted_rollouts import ScriptedRollouts, scripted_reward
from leash_trl.benchmark.settings import StepSettings
from leash_trl.benchmark.step_meter import StepMeter
from leash_trl.files import write_whole
from leash_trl.gym.dataset import gym_problems
from leash_trl.gym.tokenizer import build_tokenizer
from leash_trl.trainer.leash_grpo_config import LeashGRPOConfig
from leash_trl.trainer.leash_grpo_trainer import LeashGRPOTrainer


# lambda stays 0 and epsilon is TRL's, so that all arms train on the same advantages
OWN_FIELDS = {"target_length": 1, "lambda_init": 0.0, "lambda_lr": 0.0, "advantage_epsilon": 1e-4}
ARMS: dict[str, tuple[type, type, dict[str, Any]]] = {
    "stock": (GRPOTrainer, GRPOConfig, {}),
    "ours without skipping": (LeashGRPOTrainer, LeashGRPOConfig, {**OWN_FIELDS, "skip_zero_signal": False}),
    "ours": (LeashGRPOTrainer, LeashGRPOConfig, OWN_FIELDS),
}


def _fields(settings: StepSettings, output_dir: str, on_cpu: bool) -> dict[str, Any]:
    """DAPO's settings, the paper's, with a learning rate of 0: every step sees the same weights."""
    return {
        "output_dir": output_dir,
        "per_device_train_batch_size": settings.per_device_train_batch_size,
        "gradient_accumulation_steps": settings.gradient_accumulation_steps,
        "num_generations": settings.num_generations,
        "gradient_checkpointing": settings.gradient_checkpointing,
        "max_completion_length": settings.max_length,
        "loss_type": settings.loss_type,
        "epsilon_high": 0.28,
        "weight_decay": 0.1,
        "lr_scheduler_type": "constant",
        "learning_rate": 0.0,
        "max_grad_norm": 0.0,  # clipping would come before the gradients are kept
        "max_steps": settings.steps + 1,
        "seed": settings.seed,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": on_cpu,
        "bf16": False,  # the weights have the dtype that is asked for; no autocast
    }


def measure(settings: StepSettings, arm: str, gradients_path: Path) -> dict[str, Any]:
    """The cost of training one arm, as medians over the steps after the first.

    Args:
        settings (`StepSettings`):
            What to train on.
        arm (`str`):
            A name of `ARMS`.
        gradients_path (`Path`):
            Where the gradients of the first step go.

    Returns:
        `dict[str, Any]`: Seconds, tokens per second, padding share, FLOP/s of model and matrices, peak memory in
        GiB, and the lengths drawn.
    """
    device = benchmark_device()
    trainer_class, config_class, own_fields = ARMS[arm]
    tokenizer = build_tokenizer()
    model = random_model(settings.model_name_or_path, settings.dtype, settings.max_length, settings.seed, device)
    rollouts = ScriptedRollouts(settings, tokenizer)
    meter = StepMeter(device, training_flops(model.config), gradients_path)
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_class(
            model,
            scripted_reward,
            config_class(**_fields(settings, folder, device.type == "cpu"), **own_fields),
            train_dataset=gym_problems("train", max(64, settings.num_groups)),
            processing_class=tokenizer,
            rollout_func=rollouts,
        )
        meter.attach(trainer)
        memory = PeakMemory(device)
        trainer.train()
        peak = memory.read_gib()
    summary = summarise(meter.steps[1:], rollouts.lengths[1:])
    return {
        **summary,
        "peak_memory_gib": peak,
        "peak_memory_kind": memory.kind,
        "matrix_flops_per_second": matrix_rate(device, settings.dtype),
        "device": device_name(device),
        "steps": meter.steps,
    }


def summarise(steps: list[dict[str, float]], lengths: list[list[int]]) -> dict[str, float]:
    """Medians over measured steps, each with the lengths of its completions in tokens."""

    def median(values: list[float]) -> float:
        return float(statistics.median(values))

    seconds = [step["forward_backward_seconds"] for step in steps]
    return {
        "forward_backward_seconds": median(seconds),
        "scoring_seconds": median([step["scoring_seconds"] for step in steps]),
        "completion_tokens_per_second": median(
            [sum(batch) / time for batch, time in zip(lengths, seconds, strict=True)]
        ),
        "padding_share": median([1 - step["attended"] / step["positions"] for step in steps]),
        "model_flops_per_second": median([step["flops"] / time for step, time in zip(steps, seconds, strict=True)]),
        "mean_length": statistics.fmean(length for batch in lengths for length in batch),
        "longest": max(map(max, lengths)),
    }


if __name__ == "__main__":
    given, name, folder = sys.argv[1:]
    result = measure(StepSettings(**json.loads(given)), name, Path(folder, f"{name}.pt"))
    write_whole(Path(folder, f"{name}.json"), json.dumps(result))
