"""TRL's asynchronous GRPO with LEASH, its own rollout worker, a vLLM server and LoRA: five updates, or what is left.

python tests/support/async_run.py URL FOLDER [--resume CHECKPOINT]

It needs three stand-ins, none of which length control sees: a name of a card, attention that is no GPU kernel, and how
replies in the gym's chat template are parsed.
"""

import argparse
import json
from pathlib import Path

import torch
from conftest import parity_reward
from stock_run import States
from transformers import AttentionInterface, AutoTokenizer

from leash_trl import LengthControlCallback, LengthControlledReward
from leash_trl.gym import CHECKPOINT
from leash_trl.gym.dataset import gym_problems
from leash_trl.length_control.leash import Leash


TARGET, LAMBDA_INIT, LAMBDA_LR = 40, 0.1, 0.1
NUM_GENERATIONS, GROUPS_AN_UPDATE, NUM_UPDATES, SAVED_AT = 4, 4, 5, 3


class Recorded(LengthControlledReward):
    """Writes down each group where it is scored, in the worker's process, and how many each update takes."""

    def __init__(self, log: Path, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.log, self.counts = log, []

    def __call__(self, prompts, completions, completion_ids, **columns):
        rewards = super().__call__(prompts, completions, completion_ids, **columns)
        lengths, task = [len(ids) for ids in completion_ids], parity_reward(completion_ids)
        with open(self.log, "a", encoding="utf-8") as file:
            group = {"version": self.version, "lengths": lengths, "task": task, "rewards": rewards}
            file.write(json.dumps(group) + "\n")
        return rewards

    def pop_scored(self):
        scored = super().pop_scored()
        self.counts.append(len(scored))
        return scored


def attention_on_cpu(
    module, query, key, value, mask, *, tree_kv_index, tree_cu_seqlens_q, tree_cu_seqlens_k, scaling=None, **kwargs
):
    """What TRL's kernel computes: each segment of queries sees its own keys, causally."""
    out = torch.empty_like(query)
    ends_q, ends_k = tree_cu_seqlens_q.tolist(), tree_cu_seqlens_k.tolist()
    for q, q_end, k, k_end in zip(ends_q, ends_q[1:], ends_k, ends_k[1:], strict=False):
        rows = tree_kv_index[k:k_end]
        is_seen = torch.ones(q_end - q, k_end - k, dtype=torch.bool).tril(k_end - k - (q_end - q))
        keys, values = (x[:, :, rows].repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
        out[:, :, q:q_end] = torch.nn.functional.scaled_dot_product_attention(
            query[:, :, q:q_end], keys, values, attn_mask=is_seen, scale=scaling
        )
    return out.transpose(1, 2), None


def by_hand(folder: Path, lam: float = LAMBDA_INIT) -> tuple[dict, list[dict], list[float]]:
    """What a run saw, the groups that its worker scored, and lambda before the first and after each update by them."""
    seen = json.loads((folder / "seen.json").read_text(encoding="utf-8"))
    groups = [json.loads(line) for line in (folder / "groups.jsonl").read_text(encoding="utf-8").splitlines()]
    lambdas, taken = [lam], 0
    for count in seen["counts"]:
        taken += count
        newest = groups[max(0, taken - max(count, GROUPS_AN_UPDATE)) : taken]
        excess = [length / TARGET - 1 for group in newest for length in group["lengths"]]
        lambdas.append(min(1.0, max(0.0, lambdas[-1] + LAMBDA_LR * sum(excess) / len(excess))))
    return seen, groups, lambdas


def main(url: str, folder: Path, resume: str | None) -> None:
    """Trains, and writes what was seen to `seen.json`."""
    from peft import LoraConfig
    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

    torch.set_num_threads(1)
    torch.cuda.get_device_name = lambda device=None: "cpu"
    tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT)
    tokenizer.response_template = {
        "defaults": {"role": "assistant"},
        "start_anchor": "<|assistant|><think>",
        "fields": {"content": {"close_pattern": r"<\|end\|>|$", "content": "text"}},
    }
    folder.mkdir(parents=True, exist_ok=True)
    method, saved = Leash(lambda_init=LAMBDA_INIT, lambda_lr=LAMBDA_LR), States()
    reward = Recorded(folder / "groups.jsonl", parity_reward, method, target_length=TARGET)
    sizes = {"num_generations": NUM_GENERATIONS, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 2}
    sizes |= {"max_completion_length": 64, "token_budget": 0, "max_steps": NUM_UPDATES, "save_steps": SAVED_AT}
    where = {"output_dir": str(folder), "vllm_server_base_url": url, "use_cpu": True, "bf16": False}
    quiet = {"report_to": "none", "disable_tqdm": True}
    trainer = AsyncGRPOTrainer(
        model=str(CHECKPOINT),
        processing_class=tokenizer,
        reward_funcs=reward,
        args=AsyncGRPOConfig(learning_rate=1e-3, gradient_checkpointing=False, **sizes, **where, **quiet),
        train_dataset=gym_problems("train", 64),
        callbacks=[LengthControlCallback(reward), saved],
        peft_config=LoraConfig(r=8, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"], task_type="CAUSAL_LM"),
    )
    AttentionInterface.register("tree_fa3", attention_on_cpu)
    trainer.train(resume_from_checkpoint=resume)
    rows = [row for row in trainer.state.log_history if "loss" in row]
    seen = {"entries": saved.entries, "counts": reward.counts[-len(saved.entries) :], "rows": rows}
    seen["syncs_adapter"] = trainer._lora_sync
    (folder / "seen.json").write_text(json.dumps(seen), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--resume")
    main(**vars(parser.parse_args()))
