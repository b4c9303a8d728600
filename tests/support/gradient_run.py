"""Gradients of TRL's trainer or of ours for the same completions, for one and for several processes.

In float64 on CPUs, and as gpu_run has it.
"""

from types import SimpleNamespace

import torch
from conftest import quiet
from float64_training import FLOAT64_METHODS, GradientRecorder, make_rollout, reward, stock_arguments
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOTrainer

from leash_trl import LeashGRPOConfig, LeashGRPOTrainer
from leash_trl.gym.dataset import gym_problems
from leash_trl.microbatching.batch_fields import FIELDS


CASES = {
    "dapo": {"loss_type": "dapo"},
    "grpo": {"loss_type": "grpo"},
    "bnpo": {"loss_type": "bnpo"},
    "rows stay": {"loss_type": "dapo", "length_grouped_microbatches": False},
    "importance ratios": {
        "loss_type": "vespo",
        "vllm_importance_sampling_correction": True,
        "vllm_importance_sampling_mode": "token_truncate",
    },
}


def leaves_batches_with_images_on_one_process(trainer: LeashGRPOTrainer) -> bool:
    """Whether both processes keep TRL's batches when TRL has dropped the images of one."""
    batches = [{name: batch[name] for name in FIELDS & batch.keys()} for batch in trainer._buffered_inputs]
    if trainer.accelerator.process_index == 1:
        batches[0]["pixel_values"] = torch.zeros(1)
    return trainer._rearranged(batches) is batches


def run(
    model_path: str,
    output_dir: str,
    is_stock: bool,
    settings: dict,
    dtype: torch.dtype = torch.float64,
    **model_fields,
) -> dict:
    """Two updates of 4 micro-batches of 4 rows per process; returns what this process saw.

    `settings` are changes to the configuration, `model_fields` are for `from_pretrained`.
    """
    fields = {"lambda_init": 0.0, "lambda_lr": 0.0, "scale_rewards": "none", "max_completion_length": 48}
    fields |= {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4, "num_iterations": 2}
    fields |= {"max_steps": 2, "max_grad_norm": 0.0, "learning_rate": 1e-6}
    args = LeashGRPOConfig(**quiet(output_dir, **{**fields, **settings}))
    recorder = GradientRecorder()
    tokenizer = AutoTokenizer.from_pretrained(model_path, padding_side="left")
    trainer = (GRPOTrainer if is_stock else LeashGRPOTrainer)(
        AutoModelForCausalLM.from_pretrained(model_path, dtype=dtype, **model_fields),
        reward,
        stock_arguments(args) if is_stock else args,
        processing_class=tokenizer,
        train_dataset=gym_problems("train", 64),
        callbacks=[recorder],
    )
    trainer.rollout_func = make_rollout(tokenizer, num_dead_groups=1)
    if args.vllm_importance_sampling_correction:  # the rollouts bring log-probabilities as vLLM would
        trainer.use_vllm, trainer._last_loaded_step = True, -1
        trainer.vllm_generation = SimpleNamespace(sync_weights=lambda: None)
    trainer.model.register_forward_pre_hook(recorder.count, with_kwargs=True)
    trainer.train()
    return {
        "world_size": trainer.accelerator.num_processes,
        "gradients": recorder.gradients,
        "positions": recorder.positions_by_pass,
        "leaves_images": not is_stock and leaves_batches_with_images_on_one_process(trainer),
        "shares": {name: value for name, value in trainer.state.log_history[0].items() if "microbatch/" in name},
    }


def run_all(model_path: str, output_dir: str) -> dict[str, list[dict]]:
    """By case, TRL's trainer and ours; everything is in float64 from here on."""
    for owner, name, method in FLOAT64_METHODS:
        setattr(owner, name, method)
    return {
        case: [run(model_path, output_dir, is_stock, settings) for is_stock in (True, False)]
        for case, settings in CASES.items()
    }
