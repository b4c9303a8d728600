"""Gradients of TRL's trainer or of ours for the same completions, for one and for several processes.

Used by two_process_run, in float64 on CPUs, and by gpu_run.
"""

from types import SimpleNamespace

import torch
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


def gathered_ratios(trainer: LeashGRPOTrainer) -> torch.Tensor:
    """One row of importance ratios of each process, of 2 columns and of 3."""
    ratios = torch.full((1, 2 + trainer.accelerator.process_index), 0.5, device=trainer.accelerator.device)
    (batch,) = trainer._picked({"importance_sampling_ratio": ratios}, [[0, 1]], ([1, 1], [2, 3]))
    return batch["importance_sampling_ratio"].cpu()


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
    fields = {
        "output_dir": output_dir,
        "target_length": 12,
        "lambda_init": 0.0,
        "lambda_lr": 0.0,
        "scale_rewards": "none",
        "max_completion_length": 48,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 4,
        "num_generations": 4,
        "num_iterations": 2,
        "max_steps": 2,
        "max_grad_norm": 0.0,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "bf16": False,
    }
    args = LeashGRPOConfig(**{**fields, **settings})
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
        "ratios": gathered_ratios(trainer) if not is_stock and trainer._num_sharing == 2 else None,
        "shares": {
            key: value
            for key, value in trainer.state.log_history[0].items()
            if key.endswith(("ing_share", "ped_share"))
        },
    }


def run_all(model_path: str, output_dir: str) -> dict:
    """All cases with TRL's trainer and with ours; everything is in float64 from here on."""
    for owner, name, method in FLOAT64_METHODS:
        setattr(owner, name, method)
    return {
        (case, name): run(model_path, output_dir, name == "stock", settings)
        for case, settings in CASES.items()
        for name in ("stock", "ours")
    }
