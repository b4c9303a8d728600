"""A run whose completions are fixed by prompt and place in the batch, the same for one and for two processes.

Used by test_distributed, which starts it with torchrun.
"""

import json
import sys
import zlib
from pathlib import Path

import torch

from leash_trl import LeashGRPOConfig, LeashGRPOTrainer
from leash_trl.gym.dataset import gym_problems
from leash_trl.gym.tokenizer import build_tokenizer


def odd_length_reward(completion_ids, **kwargs) -> list[float]:
    """+1 for an odd number of tokens, -1 for an even one."""
    return [1.0 if len(ids) % 2 else -1.0 for ids in completion_ids]


def run(model_path: str, output_dir: str, per_device_batch_size: int) -> dict:
    """Trains four steps of twelve completions in all and returns what this process saw."""
    tokenizer = build_tokenizer()
    token = tokenizer.encode("7")[0]

    def rollout(prompts, trainer):
        first = trainer.accelerator.process_index * len(prompts)
        questions = [f"{first + i} {prompt[0]['content']}" for i, prompt in enumerate(prompts)]
        lengths = [1 + zlib.crc32(question.encode()) % 30 for question in questions]
        return {
            "prompt_ids": [tokenizer.encode(prompt[0]["content"]) for prompt in prompts],
            "completion_ids": [[token] * length + [tokenizer.eos_token_id] for length in lengths],
            "logprobs": [[-1.0] * (length + 1) for length in lengths],
        }

    args = LeashGRPOConfig(
        output_dir=output_dir,
        target_length=12,
        max_completion_length=40,
        lambda_lr=0.1,
        per_device_train_batch_size=per_device_batch_size,
        num_generations=4,  # two processes of six share the second group
        max_steps=4,
        logging_steps=1,
        save_steps=2,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        bf16=False,
    )
    trainer = LeashGRPOTrainer(model_path, odd_length_reward, args, train_dataset=gym_problems("train", 64))
    trainer.rollout_func = rollout
    seen = []
    calculate = trainer._calculate_rewards

    def spy(*arguments):
        rewards = calculate(*arguments)
        metrics = trainer._metrics["train"]
        seen.append({key: values[-1] for key, values in metrics.items() if key.startswith("leash/")})
        return rewards

    trainer._calculate_rewards = spy
    trainer.train()
    return {
        "world_size": trainer.accelerator.num_processes,
        "rank": trainer.accelerator.process_index,
        "batches": seen,
        "lambda": trainer.length_control.lam,
        "advantages": trainer._advantages.tolist(),
        "trained_on": sorted(trainer._buffered_inputs[0]["advantages"].tolist()),
        "table_advantages": list(trainer._logs["advantages"]),
        "table_lengths": list(trainer._logs["extra"]["length"]),
    }


if __name__ == "__main__":
    model_path, output_dir, per_device_batch_size = sys.argv[1:]
    result = run(model_path, output_dir, int(per_device_batch_size))
    if result["world_size"] > 1:
        # the first process to leave would otherwise pull the connection from under the other
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
    Path(output_dir, f"rank{result['rank']}.json").write_text(json.dumps(result))
