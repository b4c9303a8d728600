"""Each kind of method beside a schedule, targets per row and dynamic sampling, as the table in
`length_control/README.md` says."""

import math
from collections import defaultdict
from statistics import fmean

import pytest
from conftest import generation_batches, log_rows, parity_reward

from leash_trl.length_control.methods import METHODS


# with hyper-parameters that fit completions of 8 tokens
METHODS_BY_HOOK = {
    "compares a group": ("kimi", {}),
    "own advantages": ("gfpo", {"num_kept": 3}),
    "cuts generation": ("dler", {}),
    "writes into prompts": ("l1_exact", {"budget_range": [2, 7]}),
    "reads a column": ("leash", {"multiplier_per": "level", "lambda_lr": 0.1}),
    "state of questions": ("hapo", {}),
    "targets of its own": ("laser_d", {"interval": 2, "upper_bound": 7, "refresh_steps": 1}),
    "comes and goes": ("toggle", {"period": 1}),
}


@pytest.mark.parametrize("hook", METHODS_BY_HOOK)
def test_it_goes_with_schedules_targets_of_rows_and_dynamic_sampling(hook, make_trainer, tokenizer, problems):
    """Two updates of two prompts: a first batch without signal, which a round refills."""
    name, kwargs = METHODS_BY_HOOK[hook]
    targets_of_rows = defaultdict(list)  # by update

    def dead_at_first(completion_ids, trainer_state, target_length, **columns):
        is_first = not targets_of_rows
        targets_of_rows[trainer_state.global_step] += target_length
        return [None] * len(completion_ids) if is_first else parity_reward(completion_ids)

    trainer = make_trainer(
        dead_at_first,
        dataset=problems.add_column("target_length", [2, 3, 4, 4] * 16),
        generation_kwargs={"sequence_bias": [[[tokenizer.eos_token_id], 4.0]]},  # most completions end
        max_completion_length=8,
        max_steps=2,
        length_control=name,
        length_control_kwargs=kwargs,
        lambda_lr=None,
        target_length=4,
        target_schedule="linear",
        target_milestones={0: 6, 2: 4},
        dynamic_sampling_rounds=1,
        advantage_epsilon=0.1,
    )
    batches = generation_batches(trainer)
    trainer.train()
    for batch in batches:
        assert batch["completion_mask"].sum() == batch["num_items_in_batch"]
        assert batch["advantages"].isfinite().all()
    rows = log_rows(trainer)
    assert all(math.isfinite(row["loss"]) and math.isfinite(row["grad_norm"]) for row in rows)
    assert max(row["grad_norm"] for row in rows) > 0
    for key in ("wasted_share", "sampling_rounds"):
        assert max(row[f"leash/{key}"] for row in rows) > 0
    if METHODS[name].target_use != "none":
        targets = [6 / 4 * fmean(targets_of_rows[0]), 5 / 4 * fmean(targets_of_rows[1])]
        assert [row["leash/target_length"] for row in rows] == pytest.approx(targets)
        assert not any("leash/common_target" in row for row in rows)
    if name == "toggle":
        assert [row["leash/budget_on"] for row in rows] == [1, 0]
