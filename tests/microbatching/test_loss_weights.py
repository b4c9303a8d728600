"""Factors of loss and logged means where nothing counts, and what keeps TRL's split. Gradients test the rest."""

from types import SimpleNamespace

import pytest

from leash_trl.microbatching.loss_weights import (
    loss_factor,
    reasons_against_regrouping,
    reasons_against_skipping,
    weighted_mean_factors,
)


def test_an_empty_micro_batch_counts_as_one_token_as_in_trl():
    assert loss_factor("bnpo", num_rows=1, num_rows_before=4, num_tokens=0, num_tokens_before=0) == 1.0
    assert loss_factor("bnpo", num_rows=1, num_rows_before=4, num_tokens=0, num_tokens_before=50) == 1 / 50
    assert weighted_mean_factors([0, 0]) == [1.0, 1.0]


@pytest.mark.parametrize(
    ("settings", "has_router_loss"),
    [({"use_adaptive_entropy": True}, False), ({"loss_type": "ppo"}, False), ({}, True)],
)
def test_where_rows_affect_each_other_the_split_and_all_rows_stay(settings, has_router_loss):
    args = SimpleNamespace(
        loss_type="dapo", beta=0.0, entropy_coef=0.0, use_adaptive_entropy=False, top_entropy_quantile=1.0
    )
    vars(args).update(settings)
    assert len(reasons_against_regrouping(args, has_router_loss)) == 1
    assert len(reasons_against_skipping(args, has_router_loss)) == 1
