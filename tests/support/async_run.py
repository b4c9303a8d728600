"""TRL's asynchronous GRPO with LEASH, its own rollout worker, a vLLM server and LoRA: five updates, or what is left.

python tests/support/async_run.py URL FOLDER [--resume CHECKPOINT]

It needs three stand-ins, none of which length control sees: a name of a card, attention that is no GPU kernel, and how
replies in the gym's chat template are parsed.
"""

import argparse
import itertools
import json
from pathlib import Path

import torch
from conftest import log_rows, parity_reward
from stock_run import lambda_after
from transformers import AttentionInterface, AutoTokenizer, TrainerCallback

from leash_trl import LengthControlCallback, LengthControlledReward
from leash_trl.gym import CHECKPOINT
from leash_trl.gym.dataset import gym_problems
from leash_trl.length_control.leash import Leash


TARGET = 40
LAMBDA_INIT = 0.1
LAMBDA_LR = 0.1
NUM_GENERATIONS = 4
NUM_UPDATES = 5
SAVED_AT = 3


class States(TrainerCallback):
    """Keeps what would be saved after each update."""

    def __init__(self):
        self.entries = []

    def on_step_end(self, args, state, control, **kwargs):
        self.entries.append(json.loads(json.dumps(state.stateful_callbacks["LengthControl"])))


class Recorded(LengthControlledReward):
    """Writes down each group where it is scored, in the worker's process, and how many each update takes."""

    def __init__(self, log, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.log = log
        self.counts = []

    def __call__(self, prompts, completions, completion_ids, **columns):
        rewards = super().__call__(prompts, completions, completion_ids, **columns)
        group = {
            "version": self.version,
            "lengths": [len(ids) for ids in completion_ids],
            "task": parity_reward(completion_ids),
            "rewards": rewards,
        }
        with open(self.log, "a", encoding="utf-8") as file:
            file.write(json.dumps(group) + "\n")
        return rewards

    def pop_scored_rollouts(self):
        scored = super().pop_scored_rollouts()
        self.counts.append(len(scored))
        return scored


def attention_on_cpu(
    module, query, key, value, mask, *, tree_kv_index, tree_cu_seqlens_q, tree_cu_seqlens_k, scaling=None, **kwargs
):
    """What TRL's kernel computes: each segment of queries sees its own keys, causally."""
    out = torch.empty_like(query)  # (batch, heads, tokens, size of a head)
    query_ends = itertools.pairwise(tree_cu_seqlens_q.tolist())
    key_ends = itertools.pairwise(tree_cu_seqlens_k.tolist())
    for (start, end), (key_start, key_end) in zip(query_ends, key_ends, strict=True):
        rows = tree_kv_index[key_start:key_end]
        # the queries of a segment are its last tokens; each sees itself and what is before it
        num_queries = end - start
        is_seen = torch.ones(num_queries, len(rows), dtype=torch.bool).tril(len(rows) - num_queries)
        out[:, :, start:end] = torch.nn.functional.scaled_dot_product_attention(
            query[:, :, start:end], key[:, :, rows], value[:, :, rows], is_seen, scale=scaling, enable_gqa=True
        )
    return out.transpose(1, 2), None


def by_hand(folder, lam=LAMBDA_INIT):
    """What a run saw, the groups that its worker scored, and lambda before the first and after each update by them."""
    seen = json.loads((folder / "seen.json").read_text(encoding="utf-8"))
    groups = [json.loads(line) for line in (folder / "groups.jsonl").read_text(encoding="utf-8").splitlines()]
    lambdas = [lam]
    num_scored = 0
    for count in seen["counts"]:
        new_groups = groups[num_scored : num_scored + count]
        num_scored += count
        lam = lambdas[-1]
        if new_groups:
            lengths = itertools.chain.from_iterable(group["lengths"] for group in new_groups)
            lam = lambda_after(lam, lengths, TARGET, LAMBDA_LR)
        lambdas.append(lam)
    return seen, groups, lambdas


def main(url, folder, resume):
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
    method = Leash(lambda_init=LAMBDA_INIT, lambda_lr=LAMBDA_LR)
    saved = States()
    reward = Recorded(folder / "groups.jsonl", parity_reward, method, target_length=TARGET)
    args = AsyncGRPOConfig(
        output_dir=str(folder),
        vllm_server_base_url=url,
        learning_rate=1e-3,
        num_generations=NUM_GENERATIONS,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        gradient_checkpointing=False,
        max_completion_length=64,
        token_budget=0,
        max_steps=NUM_UPDATES,
        save_steps=SAVED_AT,
        use_cpu=True,
        bf16=False,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = AsyncGRPOTrainer(
        model=str(CHECKPOINT),
        processing_class=tokenizer,
        reward_funcs=reward,
        args=args,
        train_dataset=gym_problems("train", 64),
        callbacks=[LengthControlCallback(reward), saved],
        peft_config=LoraConfig(r=8, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"], task_type="CAUSAL_LM"),
    )
    AttentionInterface.register("tree_fa3", attention_on_cpu)
    trainer.train(resume_from_checkpoint=resume)
    seen = {
        "entries": saved.entries,
        "counts": reward.counts[-len(saved.entries) :],
        "rows": log_rows(trainer),
        "syncs_adapter": trainer._lora_sync,
    }
    (folder / "seen.json").write_text(json.dumps(seen), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--resume")
    main(**vars(parser.parse_args()))
