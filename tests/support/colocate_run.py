"""A small run in TRL's colocate mode, on vLLM's CPU build, which can kill itself in the middle of a step, and the
`leash` command in the same set-up."""

import functools
import sys

import killable_run
import pytest

from leash_trl.gym import CHECKPOINT


TARGET_LENGTH = 40
MAX_COMPLETION_LENGTH = 128
NUM_STEPS = 6
LAMBDA_INIT = LAMBDA_LR = 0.1


def set_up(patch):
    """Lets engines start without compiling, and makes the CPU build's weights replaceable; must come before the first
    engine."""
    patch.setenv("VLLM_LOGGING_LEVEL", "WARNING")
    patch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB
    patch.setenv("TORCHDYNAMO_DISABLE", "1")  # vLLM's sampler is compiled even with enforce_eager: 25 s
    import trl.generation.vllm_generation as generation
    import vllm._custom_ops

    # On a CPU vLLM packs weights for oneDNN, or bfloat16 ones for AMX, and drops what load_weights would write to.
    patch.setattr(vllm._custom_ops, "_supports_onednn", False)
    # TRL: VLLMGeneration._init_vllm passes neither; "auto" would turn float32 weights into bfloat16
    patch.setattr(generation, "LLM", functools.partial(generation.LLM, dtype="float32", enforce_eager=True))


def make_trainer(output_dir, kill_in_step=None, **overrides):
    """A run of six steps on the gym with a checkpoint at every second one."""
    settings = {
        "target_length": TARGET_LENGTH,
        "max_completion_length": MAX_COMPLETION_LENGTH,
        "max_steps": NUM_STEPS,
        "lambda_init": LAMBDA_INIT,
        "lambda_lr": LAMBDA_LR,
        "gradient_accumulation_steps": 2,
        "generation_kwargs": None,
        "log_completions": True,
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_max_model_length": 256,
        **overrides,
    }
    return killable_run.make_trainer(str(CHECKPOINT), output_dir, kill_in_step, **settings)


if __name__ == "__main__":
    set_up(pytest.MonkeyPatch())
    if sys.argv[1] == "leash":
        from leash_trl.cli.main import main

        sys.exit(main(sys.argv[2:]))
    make_trainer(sys.argv[1], kill_in_step=int(sys.argv[2])).train()
