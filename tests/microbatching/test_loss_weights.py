"""Factors of loss and logged means, by hand."""

import pytest

from leash_trl.microbatching.loss_weights import (
    loss_factor,
    mean_factors,
    reasons_against_regrouping,
    reasons_against_skipping,
)


@pytest.mark.parametrize("loss_type", ["dapo", "cispo", "vespo"])
def test_losses_of_the_whole_window_need_no_factor(loss_type):
    assert loss_factor(loss_type, num_rows=3, num_rows_before=4) == 1.0


@pytest.mark.parametrize("loss_type", ["grpo", "dr_grpo", "sapo", "luspo"])
def test_means_over_rows_are_weighted_by_rows(loss_type):
    # TRL divides by 3 rows where its own split would divide by 4
    assert loss_factor(loss_type, num_rows=3, num_rows_before=4) == 3 / 4


def test_means_over_tokens_are_weighted_by_tokens():
    assert loss_factor("bnpo", 3, 4, num_tokens=30, num_tokens_before=40) == 30 / 40
    # TRL divides an empty micro-batch by one token
    assert loss_factor("bnpo", 1, 4, num_tokens=0, num_tokens_before=0) == 1.0


def test_weighted_means_are_means_over_all():
    # 6 tokens of mean 1.0 and 2 of mean 5.0: (6 + 10) / 8 = 2
    factors = mean_factors([6, 2])
    assert sum(factor * mean for factor, mean in zip(factors, [1.0, 5.0], strict=True)) / 2 == 2.0
    assert mean_factors([0, 0]) == [1.0, 1.0]


SETTINGS = {
    "has_entropy_bonus": False,
    "top_entropy_quantile": 1.0,
    "has_router_loss": False,
}


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("has_entropy_bonus", True, "entropy bonus"),
        ("top_entropy_quantile", 0.8, "quantile"),
        ("has_router_loss", True, "router loss"),
    ],
)
@pytest.mark.parametrize("loss_type", ["dapo", "bnpo"])
def test_what_is_computed_for_each_micro_batch_keeps_split_and_rows(field, value, reason, loss_type):
    settings = {**SETTINGS, field: value}
    assert any(reason in each for each in reasons_against_regrouping(loss_type, **settings))
    assert any(reason in each for each in reasons_against_skipping(loss_type, 0.0, **settings))


def test_split_and_rows_depend_on_different_things():
    assert reasons_against_regrouping("dapo", **SETTINGS) == reasons_against_skipping("dapo", 0.0, **SETTINGS) == []
    assert len(reasons_against_regrouping("bnpo", **SETTINGS)) == 1
    assert reasons_against_skipping("bnpo", 0.0, **SETTINGS) == []
    assert len(reasons_against_skipping("dapo", 0.1, **SETTINGS)) == 1
    assert (
        len(reasons_against_regrouping("ppo", **SETTINGS))
        == len(reasons_against_skipping("ppo", 0.0, **SETTINGS))
        == 1
    )
