"""The rules that a configuration chooses for advantages, OPO's baseline and GDPO, in methods and in training."""

import copy
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from conftest import parity_reward
from test_dynamic_sampling import SHORT, mostly_dead_reward
from trl import GRPOTrainer

from leash_trl.length_control.advantages import decoupled_advantages, group_advantages
from leash_trl.length_control.method import LengthControl
from leash_trl.length_control.methods import METHODS


GDPO = {"multi_objective_aggregation": "normalize_then_sum"}
OPO = {"reward_baseline": "length_weighted", "scale_rewards": "none"}


def decoupled(method, weight=1.0):
    method = copy.copy(method)
    method.multi_objective_aggregation, method.length_objective_weight = "normalize_then_sum", weight
    return method


def advantages_of(method, rollouts, epsilon=1e-12):
    return method.advantages(method.shape(rollouts), rollouts, "group", epsilon)


def close(actual, expected, tolerance=1e-9):
    expected = torch.as_tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@dataclass
class PricePerToken(LengthControl):
    """Task reward and length as two reward functions of TRL would have them."""

    name: ClassVar[str] = "price_per_token"
    uses_correctness: ClassVar[bool] = False

    def shape(self, rollouts):
        return self.base_rewards(rollouts) - 0.01 * rollouts.lengths


def length_reward(completion_ids, **kwargs):
    return [-0.01 * len(ids) for ids in completion_ids]


def test_training_has_the_advantages_that_trl_computes_from_two_reward_functions(make_trainer, monkeypatch):
    monkeypatch.setitem(METHODS, "price_per_token", PricePerToken)
    fields = {"lambda_lr": None, "target_length": None, "max_steps": 1, "per_device_train_batch_size": 16, **GDPO}
    ours = make_trainer(length_control="price_per_token", advantage_epsilon=1e-4, **fields)
    ours.train()
    theirs = make_trainer([parity_reward, length_reward], trainer_class=GRPOTrainer, length_control="none", **fields)
    theirs.train()
    expected = list(theirs._logs["advantages"])
    assert ours._logs["advantages"] != expected  # float64 against float32
    assert list(ours._logs["advantages"]) == pytest.approx(expected, abs=2e-5)
    assert sum(map(abs, expected)) > 5
    batch = ours._buffered_inputs[0]["advantages"]
    assert sorted(batch.tolist()) == pytest.approx(sorted(expected), abs=2e-5)


@pytest.mark.parametrize("rule", [GDPO, OPO], ids=["gdpo", "opo"])
def test_after_dynamic_sampling_the_rule_sees_the_batch_that_remains(make_trainer, rule):
    trainer = make_trainer(
        mostly_dead_reward,
        dynamic_sampling_rounds=2,
        length_control="none",
        lambda_lr=None,
        max_steps=3,
        per_device_train_batch_size=16,
        **SHORT,
        **rule,
    )
    seen = []
    replace = trainer._replace_dead_groups

    def spy(output, rounds, *args):
        merged = replace(output, rounds, *args)
        seen.append((len(rounds), trainer._batch, merged["advantages"].double()))
        return merged

    trainer._replace_dead_groups = spy
    trainer.train()
    assert max(num_rounds for num_rounds, *_ in seen) > 1
    for _, batch, trained in seen:
        shaped, lengths = batch.scored.shaped_rewards, batch.scored.rollouts.lengths
        expected = (
            decoupled_advantages([shaped, torch.zeros_like(shaped)], [1, 1], 4, 1e-8)
            if rule == GDPO
            else group_advantages(shaped, 4, "none", 1e-8, weights=lengths)
        )
        assert torch.equal(batch.advantages, expected)
        torch.testing.assert_close(trained, expected, rtol=1e-6, atol=1e-6)
        if rule == GDPO and expected.any():  # one deviation for old and fresh groups
            assert expected.std().item() == pytest.approx(1.0)
