"""A small run in TRL's colocate mode, on vLLM's CPU build unless told otherwise, which can kill itself in the middle
of a step, and the `leash` command in the same set-up. Used by test_vllm_colocate and gpu_run."""

import functools
import os
import signal
import sys

import pytest
from conftest import parity_reward

from leash_trl import LeashGRPOConfig, LeashGRPOTrainer
from leash_trl.gym import CHECKPOINT
from leash_trl.gym.dataset import gym_problems


TARGET_LENGTH = 40
LAMBDA_INIT = 0.1
LAMBDA_LR = 0.1
MAX_COMPLETION_LENGTH = 128
NUM_STEPS = 6


def set_up(patch: pytest.MonkeyPatch, on_cpu: bool = True) -> None:
    """Lets engines start without compiling, on a CPU wholly, and makes the CPU build's weights replaceable; must come
    before the first engine."""
    patch.setenv("VLLM_LOGGING_LEVEL", "WARNING")
    if on_cpu:
        patch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB
        patch.setenv("TORCHDYNAMO_DISABLE", "1")  # vLLM's sampler is compiled even with enforce_eager: 25 s
    import trl.generation.vllm_generation as generation

    if not on_cpu:
        patch.setattr(generation, "LLM", functools.partial(generation.LLM, enforce_eager=True))
        return
    import vllm._custom_ops

    # On a CPU vLLM packs weights for oneDNN, or bfloat16 ones for AMX, and drops what load_weights would write to.
    patch.setattr(vllm._custom_ops, "_supports_onednn", False)
    # TRL: VLLMGeneration._init_vllm passes neither; "auto" would turn float32 weights into bfloat16
    patch.setattr(generation, "LLM", functools.partial(generation.LLM, dtype="float32", enforce_eager=True))


def make_trainer(output_dir: str, kill_in_step: int | None = None, **overrides) -> LeashGRPOTrainer:
    """A run of six steps on the gym with a checkpoint at every second one."""

    class KillableTrainer(LeashGRPOTrainer):
        def compute_loss(self, *args, **kwargs):
            loss = super().compute_loss(*args, **kwargs)
            if self.state.global_step + 1 == kill_in_step:
                os.kill(os.getpid(), signal.SIGKILL)
            return loss

    settings = {
        "output_dir": output_dir,
        "target_length": TARGET_LENGTH,
        "max_completion_length": MAX_COMPLETION_LENGTH,
        "lambda_init": LAMBDA_INIT,
        "lambda_lr": LAMBDA_LR,
        "learning_rate": 1e-3,
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 2,
        "num_generations": 4,
        "max_steps": NUM_STEPS,
        "save_steps": 2,
        "logging_steps": 1,
        "log_completions": True,
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "bf16": False,
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_max_model_length": 256,
    }
    return KillableTrainer(
        str(CHECKPOINT),
        parity_reward,
        LeashGRPOConfig(**{**settings, **overrides}),
        train_dataset=gym_problems("train", 64),
        eval_dataset=gym_problems("test", 4),
    )


if __name__ == "__main__":
    set_up(pytest.MonkeyPatch())
    if sys.argv[1] == "leash":
        from leash_trl.cli.main import main

        sys.exit(main(sys.argv[2:]))
    make_trainer(sys.argv[1], kill_in_step=int(sys.argv[2])).train()
