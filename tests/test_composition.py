"""Every method beside toggle, schedules, targets per row and dynamic sampling: it trains, or refuses for the reason
that `toggle` gives."""

import copy
import itertools
import math
import re
from dataclasses import replace

import pytest
import torch
from conftest import keep_imports_out_of_collections, parity_reward
from transformers import AutoModelForCausalLM

from leash_trl import LeashGRPOConfig, LeashGRPOTrainer
from leash_trl.gym import CHECKPOINT
from leash_trl.length_control.methods import METHODS
from leash_trl.length_control.rollouts import Rollouts
from leash_trl.length_control.toggle import refusal


# Hyper-parameters that fit completions of 8 tokens, where the defaults do not.
KWARGS = {
    "l1_exact": {"budget_range": [2, 7]},
    "l1_max": {"budget_range": [2, 7]},
    "dapo_overlong": {"cache_length": None},
    "dot": {"alpha": 0.5, "min_excess": 1},
    "lead": {"lower_bound": 2},
    "nemo_rl": {"group_total_length_penalty_coeff": 0.1},
}
TARGET, START, TARGETS = 4, 6, [2, 3, 5, 7]


def with_toggle(name: str) -> dict:
    return {
        "length_control": "toggle",
        "length_control_kwargs": {"method": name, "method_kwargs": KWARGS.get(name), "period": 1},
    }


# option of the table, or dynamic sampling, and a variant of it -> fields of the configuration
OPTIONS = {
    ("toggle", ""): with_toggle,
    ("target schedule", "linear"): {"target_schedule": "linear", "target_milestones": {0: START, 2: TARGET}},
    ("target schedule", "staged"): {"target_schedule": "staged", "target_milestones": {0: START, 1: TARGET}},
    ("targets per row", ""): {},
    ("dynamic sampling", "rounds"): {"dynamic_sampling_rounds": 1},
    ("dynamic sampling", "oversample"): {"dynamic_sampling_oversample": 1.0},
}


def parity_after_one_batch():
    """Parity, but for a first batch without signal, which dynamic sampling has to replace."""
    batches = itertools.count()

    def reward(completion_ids, **kwargs):
        return parity_reward(completion_ids) if next(batches) else [1.0] * len(completion_ids)

    return reward


@pytest.fixture(scope="module")
def gym_model():
    """One model for all runs, and its weights at the start."""
    torch.set_num_threads(1)
    keep_imports_out_of_collections()
    model = AutoModelForCausalLM.from_pretrained(CHECKPOINT)
    return model, copy.deepcopy(model.state_dict())


@pytest.fixture
def train(gym_model, tokenizer, problems, tmp_path):
    """Trains for two steps of two prompts with two completions each; the rows of the log."""
    model, start = gym_model

    def run(reward=parity_reward, **fields):
        model.load_state_dict(start)
        dataset = problems
        if fields.pop("has_targets", False):
            dataset = problems.add_column("target_length", TARGETS * (len(problems) // len(TARGETS)))
        args = LeashGRPOConfig(
            **{
                "output_dir": str(tmp_path),
                "target_length": TARGET,
                "max_completion_length": 8,
                "per_device_train_batch_size": 4,
                "num_generations": 2,
                "advantage_epsilon": 0.1,
                "max_steps": 2,
                "logging_steps": 1,
                "save_strategy": "no",
                "report_to": "none",
                "disable_tqdm": True,
                "use_cpu": True,
                "bf16": False,
                **fields,
            }
        )
        trainer = LeashGRPOTrainer(model, reward, args, train_dataset=dataset, processing_class=tokenizer)
        trainer.train()
        rows = [row for row in trainer.state.log_history if "loss" in row]
        assert len(rows) == 2
        assert all(math.isfinite(row["loss"]) and math.isfinite(row["grad_norm"]) for row in rows)
        return rows

    return run


@pytest.mark.parametrize("option", OPTIONS, ids=" ".join)
@pytest.mark.parametrize("name", METHODS)
def test_a_method_trains_beside_an_option_or_refuses_for_the_reason_in_the_table(name, option, train):
    fields = OPTIONS[option]
    fields = (
        fields(name)
        if callable(fields)
        else {"length_control": name, "length_control_kwargs": KWARGS.get(name), **fields}
    )
    if option[0] == "toggle" and (reason := refusal(METHODS[name]())) is not None:
        with pytest.raises(ValueError, match=re.escape(reason)):
            train(**fields)
        return
    reward = parity_after_one_batch() if option[0] == "dynamic sampling" else parity_reward
    rows = train(reward, **fields, has_targets=option[0] == "targets per row")
    targets = [row["leash/target_length"] for row in rows]
    if option[0] == "toggle":
        assert [row["leash/budget_on"] for row in rows] == [1, 0]
    elif option[0] == "targets per row":
        assert all(target in [(a + b) / 2 for a in TARGETS for b in TARGETS] for target in targets)
    elif option[0] == "dynamic sampling":
        assert max(row["leash/wasted_share"] for row in rows) > 0
        count = "leash/sampling_rounds" if option[1] == "rounds" else "leash/extra_groups"
        assert max(row[count] for row in rows) > 0
    elif METHODS[name].target_use == "optional":  # each prompt has a length of its own, which moves in proportion
        assert targets[0] > TARGET
    else:
        assert targets == [START, (START + TARGET) / 2 if option[1] == "linear" else TARGET]


@pytest.mark.parametrize("name", [name for name in METHODS if METHODS[name].target_use == "none"])
def test_log_only_means_that_the_target_changes_nothing_else(name):
    lengths = torch.tensor([3, 9, 40, 90, 5, 60])
    batch = Rollouts(
        task_rewards=torch.tensor([1.0, 1.0, 1.0, -1.0, 1.0, -1.0], dtype=torch.float64),
        lengths=lengths,
        target_lengths=torch.full((6,), 6.0, dtype=torch.float64),
        is_truncated=lengths == 90,
        questions=torch.tensor([0, 0, 0, 1, 1, 1]),
        num_generations=3,
        max_completion_length=90,
    )
    other = replace(batch, target_lengths=7 * batch.target_lengths)
    first, second = METHODS[name](**(KWARGS.get(name) or {})), METHODS[name](**(KWARGS.get(name) or {}))
    for _ in range(2):
        for method, seen in ((first, batch), (second, other)):
            method.observe(seen)
            method.step()
        assert first.state_dict() == second.state_dict()
        assert torch.equal(first.shape(batch), second.shape(other))
        assert torch.equal(
            first.advantages(first.shape(batch), batch, "group", 1e-8),
            second.advantages(second.shape(other), other, "group", 1e-8),
        )
