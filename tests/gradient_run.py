"""Gradients of TRL's trainer or of ours for the same completions, for one and for several processes.

Used by test_distributed, which starts it with torchrun.
"""

import argparse
import os
from pathlib import Path

import torch
from float64_training import FLOAT64_METHODS, GradientRecorder, make_rollout, reward, stock_arguments
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOTrainer

from leash_trl import LeashGRPOConfig, LeashGRPOTrainer
from leash_trl.gym.dataset import gym_problems


def run(model_path: str, output_dir: str, is_stock: bool, loss_type: str) -> None:
    """Two updates of 4 micro-batches of 4 rows per process; writes what this process saw."""
    for owner, name, method in FLOAT64_METHODS:
        setattr(owner, name, method)
    args = LeashGRPOConfig(
        output_dir=output_dir,
        target_length=12,
        lambda_init=0.0,
        lambda_lr=0.0,
        scale_rewards="none",
        max_completion_length=48,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=4,
        num_generations=4,
        num_iterations=2,
        loss_type=loss_type,
        max_steps=2,
        max_grad_norm=0.0,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        bf16=False,
    )
    recorder = GradientRecorder()
    tokenizer = AutoTokenizer.from_pretrained(model_path, padding_side="left")
    trainer = (GRPOTrainer if is_stock else LeashGRPOTrainer)(
        AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float64),
        reward,
        stock_arguments(args) if is_stock else args,
        processing_class=tokenizer,
        train_dataset=gym_problems("train", 64),
        callbacks=[recorder],
    )
    trainer.rollout_func = make_rollout(tokenizer, num_dead_groups=3)
    trainer.model.register_forward_pre_hook(recorder.count, with_kwargs=True)
    trainer.train()
    seen = {
        "world_size": trainer.accelerator.num_processes,
        "gradients": recorder.gradients,
        "positions": recorder.positions_by_pass,
        "entropy": [row["entropy"] for row in trainer.state.log_history if "entropy" in row],
    }
    Path(output_dir).mkdir(parents=True, exist_ok=True)
    torch.save(seen, Path(output_dir, f"rank{trainer.accelerator.process_index}.pt"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("model_path")
    parser.add_argument("--output_dir")
    parser.add_argument("--loss_type")
    parser.add_argument("--stock", action="store_true")
    options = parser.parse_args()
    run(options.model_path, options.output_dir, options.stock, options.loss_type)
    torch.distributed.barrier()
    os._exit(0)  # see scripted_run
