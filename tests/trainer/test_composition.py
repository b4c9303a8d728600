"""Each kind of method beside toggle, schedules, targets per row and dynamic sampling, as the table in
`length_control/README.md` says."""

import itertools
import math

import pytest
from conftest import generation_batches, log_rows, parity_reward

from leash_trl.length_control.methods import METHODS


# A method for each hook, with hyper-parameters that fit completions of 8 tokens.
KINDS = {
    "compares a group": ("kimi", {}),
    "own advantages, leaves out": ("gfpo", {"num_kept": 3, "drop_unkept": True}),
    "cuts generation": ("dler", {}),
    "cuts completions": ("dot", {"alpha": 0.5, "min_excess": 1}),
    "writes into prompts": ("l1_exact", {"budget_range": [2, 7]}),
    "reads a column": ("leash", {"multiplier_per": "level", "lambda_lr": 0.1}),
    "state of questions": ("hapo", {}),
    "targets of its own": ("laser_d", {"interval": 2, "upper_bound": 7, "refresh_steps": 1}),
}
SIZE = {"max_completion_length": 8, "advantage_epsilon": 0.1, "max_steps": 2, "lambda_lr": None}
TARGET, START, TARGETS = 4, 6, [2, 3, 5, 7]


@pytest.fixture
def train(make_trainer, tokenizer):
    """Trains for two updates of two prompts with four completions each; the rows of the log."""

    def run(kind, reward=parity_reward, dataset=None, **fields):
        name, kwargs = KINDS[kind]
        fields = {"length_control": name, "length_control_kwargs": kwargs, "target_length": TARGET, **fields}
        soon = {"sequence_bias": [[[tokenizer.eos_token_id], 4.0]]}  # most completions end
        trainer = make_trainer(reward, dataset=dataset, generation_kwargs=soon, **SIZE, **fields)
        batches = generation_batches(trainer)
        trainer.train()
        for batch in batches:
            assert batch["completion_mask"].sum() == batch["num_items_in_batch"]
            assert batch["advantages"].isfinite().all()
        rows = log_rows(trainer)
        assert all(math.isfinite(row["loss"]) and math.isfinite(row["grad_norm"]) for row in rows)
        assert max(row["grad_norm"] for row in rows) > 0
        return rows

    return run


@pytest.mark.parametrize("kind", [kind for kind, (name, _) in KINDS.items() if name not in ("dler", "l1_exact")])
def test_toggle_switches_it(kind, train):
    name, kwargs = KINDS[kind]
    rows = train(
        kind, length_control="toggle", length_control_kwargs={"method": name, "method_kwargs": kwargs, "period": 1}
    )
    assert [row["leash/budget_on"] for row in rows] == [1, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_schedule_moves_its_target(kind, train):
    rows = train(kind, target_schedule="linear", target_milestones={0: START, 2: TARGET})
    match METHODS[KINDS[kind][0]].target_use:
        case "none":
            assert "leash/target_length" not in rows[0]
        case "required":
            assert [row["leash/target_length"] for row in rows] == [START, (START + TARGET) / 2]
        case "optional":  # each prompt has a length of its own, which moves in proportion
            assert rows[0]["leash/target_length"] > TARGET


@pytest.mark.parametrize("kind", KINDS)
def test_rows_have_targets_of_their_own(kind, train, problems):
    dataset = problems.add_column("target_length", TARGETS * (len(problems) // len(TARGETS)))
    rows = train(kind, dataset=dataset)
    if METHODS[KINDS[kind][0]].target_use != "none":
        assert {row["leash/target_length"] for row in rows} <= {(a + b) / 2 for a in TARGETS for b in TARGETS}


@pytest.mark.parametrize("kind", KINDS)
def test_dynamic_sampling_refills_it(kind, train):
    """By rounds after a first batch without signal, and then by extra groups."""
    batches = itertools.count()

    def dead_at_first(completion_ids, **kwargs):
        return parity_reward(completion_ids) if next(batches) else [None] * len(completion_ids)

    rows = train(kind, dead_at_first, dynamic_sampling_rounds=1, dynamic_sampling_oversample=1.0)
    for key in ("wasted_share", "sampling_rounds", "extra_groups"):
        assert max(row[f"leash/{key}"] for row in rows) > 0
