"""A batch in which nothing can be scored moves nothing, and many in a row end the run with its checkpoint."""

import logging
from pathlib import Path

import pytest
from accelerate.logging import MultiProcessAdapter
from conftest import parity_reward
from stock_run import stock_trainer

from leash_trl.trainer.callbacks import MOST_BLANK
from leash_trl.trainer.checkpoints import CannotStartError


STEPS = MOST_BLANK + 5


@pytest.fixture(params=["LeashGRPO", "GRPO", "RLOO"])
def make(request, make_trainer, tiny_model_path, tmp_path):
    """Factory of each kind of trainer, with its method; only these batches have rewards."""

    def build(scored, max_steps):
        def reward(completion_ids, trainer_state, **kwargs):
            known = parity_reward(completion_ids)
            return known if trainer_state.global_step in scored else [None] * len(known)

        if request.param == "LeashGRPO":
            trainer = make_trainer(reward, target_length=6, max_completion_length=12, max_steps=max_steps)
            return trainer, trainer.length_control
        trainer = stock_trainer(request.param, tiny_model_path, tmp_path, max_steps=max_steps, reward_func=reward)
        return trainer, trainer.reward_funcs[0].method

    return build


def test_lambda_moves_by_scored_batches_only(make, caplog):
    MultiProcessAdapter.warning_once.cache_clear()
    trainer, method = make((0, 3), max_steps=5)
    moved, step = [], method.step
    method.step = lambda: (moved.append(trainer.state.global_step), step())[1]
    with caplog.at_level(logging.WARNING):
        trainer.train()
    assert moved == [1, 4]
    assert len([record for record in caplog.records if "reward_funcs" in record.getMessage()]) == 1


def test_a_run_without_any_reward_ends_in_one_line_and_leaves_its_checkpoint(make):
    trainer, method = make((), max_steps=STEPS)
    before = method.state_dict()
    with pytest.raises(CannotStartError, match="reward_funcs"):
        trainer.train()
    assert method.state_dict() == before
    assert trainer.state.global_step == MOST_BLANK < STEPS
    assert (Path(trainer.args.output_dir) / f"checkpoint-{MOST_BLANK}" / "trainer_state.json").exists()
