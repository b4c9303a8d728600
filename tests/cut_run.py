"""A batch of which DOT cuts one completion, with everything about it worked out by hand.

Used by test_dot, and by test_distributed through two_process_run.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
    "num_generations": 4,
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


QUIET, OUTLIER = LENGTHS[8:], LENGTHS[:4]
# by scenario: rounds, as groups of all processes, and settings
SCENARIOS: dict[str, tuple[list[list[int]], dict[str, Any]]] = {
    # the first process cuts its row 3, the second nothing; they share the group in the middle
    "one process cuts": ([LENGTHS], {"per_device_train_batch_size": 6}),
    # first only the first process cuts; both groups of the second are dead, and of its fresh ones it cuts in one
    "one at a time": (
        [[*LENGTHS, *QUIET], [*QUIET, *QUIET, *OUTLIER, *QUIET]],
        {"per_device_train_batch_size": 8, "dynamic_sampling_rounds": 1},
    ),
}


def run(name: str, model_path: str, folder: Path) -> dict[str, Any]:
    """Trains one step of a scenario and returns what this process saw."""
    rounds, settings = SCENARIOS[name]
    args = LeashGRPOConfig(
        output_dir=str(folder / name),
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        bf16=False,
        logging_steps=1,
        **{**FIELDS, **settings},
    )
    grader = Grader()
    trainer = LeashGRPOTrainer(model_path, grader, args, train_dataset=gym_problems("train", 64))
    trainer.rollout_func = make_rollout(build_tokenizer(), *rounds)
    outputs = []
    score = trainer._generate_and_score_completions

    def spy(inputs):
        outputs.append(score(inputs))
        return outputs[-1]

    trainer._generate_and_score_completions = spy
    trainer.train()
    output = outputs[0]
    return {
        "graded": [[len(ids) for ids in call[1]] for call in grader.calls],
        "tokens": output["completion_mask"].sum(dim=1).tolist(),
        "own_advantages": output["advantages"].tolist(),
        "advantages": trainer._batch.advantages.tolist(),
        "task_rewards": trainer._batch.scored.rollouts.task_rewards.tolist(),
        "loss_tokens": int(output["num_items_in_batch"]),
        "log": {key: value for key, value in trainer.state.log_history[0].items() if "time" not in key},
        "table": {name: list(values) for name, values in trainer._logs["extra"].items()},
        "table_rewards": list(trainer._logs["rewards"]["grader"]),
    }
