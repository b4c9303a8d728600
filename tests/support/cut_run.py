"""A batch of which DOT cuts one completion, with everything about it worked out by hand."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from conftest import quiet

from leash_trl import LeashGRPOConfig, LeashGRPOTrainer
from leash_trl.gym.dataset import gym_problems
from leash_trl.gym.tokenizer import build_tokenizer


# G = 4, alpha = 1. The first group is all right, with mean 20, sample std sqrt((3 * 10^2 + 30^2) / 3) = 20 and T = 40.
# The second has the same lengths and a wrong answer. The third is all right, with mean 13, std 2.58 and T = 15, and
# 16 - 15 is less than 8.
LENGTHS = [*(10, 10, 10, 50), *(10, 10, 10, 50), *(10, 12, 14, 16)]
CUT_ROW, WRONG_ROW = 3, 5
KEPT = [*(10, 10, 10, 40), *LENGTHS[4:]]
REWARDS = [*(1, 1, 1, -1), *(1, -1, 1, 1), *(1, 1, 1, 1)]
# of 1, 1, 1, -1 the mean is 0.5 and the sample std sqrt((3 * 0.5^2 + 1.5^2) / 3) = 1
ADVANTAGES = [*(0.5, 0.5, 0.5, -1.5), *(0.5, -1.5, 0.5, 0.5), *(0.0, 0.0, 0.0, 0.0)]

FIELDS: dict[str, Any] = {
    "length_control": "dot",
    "length_control_kwargs": {"alpha": 1.0, "min_excess": 8},
    "lambda_lr": None,
    "target_length": None,
    "max_completion_length": 64,
    "per_device_train_batch_size": 12,
    "max_steps": 1,
    "generation_kwargs": None,
}


class Grader:
    """+1 for a text with a 5 in it, and an account of all it was shown."""

    __name__ = "grader"

    def __init__(self):
        self.calls = []

    def __call__(self, completions, completion_ids, log_extra, log_metric, **kwargs):
        texts = [completion if isinstance(completion, str) else completion[0]["content"] for completion in completions]
        self.calls.append((texts, [list(ids) for ids in completion_ids]))
        log_extra("seen", [len(ids) for ids in completion_ids])
        log_metric("tokens", sum(map(len, completion_ids)))
        return [1.0 if "5" in text else -1.0 for text in texts]


def make_rollout(tokenizer, *rounds: Sequence[int], wrong_rows: Sequence[int] = (WRONG_ROW,), tail: str = "7"):
    """Completions of these lengths, by round and by row over all processes; the last round comes again.

    Each is sevens, then a 5, which is the answer, and the end. `tail` stands beyond the cut instead of sevens.
    """
    seven, five, other = (tokenizer.encode(text)[0] for text in ("7", "5", tail))
    calls = []

    def rollout(prompts, trainer):
        lengths = rounds[min(len(calls), len(rounds) - 1)]
        calls.append(len(prompts))
        ids = []
        for row in range(len(prompts) * trainer.accelerator.process_index, len(lengths))[: len(prompts)]:
            body = [seven] * (lengths[row] - 2)
            if row == CUT_ROW:
                body[KEPT[row] :] = [other] * len(body[KEPT[row] :])
            ids.append([*body, seven if row in wrong_rows else five, tokenizer.eos_token_id])
        prompt_ids = [tokenizer.encode("1+1=") for _ in prompts]
        return {"prompt_ids": prompt_ids, "completion_ids": ids, "logprobs": None}

    return rollout


def run(model_path: str, folder: Path) -> dict[str, Any]:
    """One step in two processes of eight completions; returns what this process saw.

    First only the first process cuts; both groups of the second are dead, and of its fresh ones it cuts in one.
    """
    quiet_group, outlier = LENGTHS[8:], LENGTHS[:4]
    settings = {**FIELDS, "per_device_train_batch_size": 8, "dynamic_sampling_rounds": 1}
    args, grader = LeashGRPOConfig(**quiet(folder, **settings)), Grader()
    trainer = LeashGRPOTrainer(model_path, grader, args, train_dataset=gym_problems("train", 64))
    trainer.rollout_func = make_rollout(
        build_tokenizer(), [*LENGTHS, *quiet_group], [*quiet_group, *quiet_group, *outlier, *quiet_group]
    )
    made, new_batch = [], trainer._new_batch

    def spy(inputs):
        made.append(new_batch(inputs))
        return made[-1]

    trainer._new_batch = spy
    trainer.train()
    ((round_, _),) = made
    return {
        "graded": [[len(ids) for ids in call[1]] for call in grader.calls],
        "tokens": round_.batch["completion_mask"].sum(dim=1).tolist(),
        "own_advantages": round_.batch["advantages"].tolist(),
        "advantages": round_.score.advantages.tolist(),
        "loss_tokens": int(round_.batch["num_items_in_batch"]),
        "log": {key: value for key, value in trainer.state.log_history[0].items() if "time" not in key},
    }
