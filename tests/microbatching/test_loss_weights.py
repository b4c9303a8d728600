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
    ("settings", "has_router_loss", "num_against_regrouping", "num_against_skipping"),
    [
        ({}, False, 0, 0),
        ({}, True, 1, 1),
        ({"use_adaptive_entropy": True}, False, 1, 1),
        ({"loss_type": "ppo"}, False, 1, 1),
        ({"loss_type": "bnpo"}, False, 1, 0),  # the mean over a micro-batch's tokens
        ({"beta": 0.1}, False, 0, 1),  # the KL term of each completion
    ],
)
def test_what_keeps_the_split_and_what_keeps_the_rows(
    settings, has_router_loss, num_against_regrouping, num_against_skipping
):
    args = SimpleNamespace(
        loss_type="dapo", beta=0.0, entropy_coef=0.0, use_adaptive_entropy=False, top_entropy_quantile=1.0
    )
    vars(args).update(settings)
    assert len(reasons_against_regrouping(args, has_router_loss)) == num_against_regrouping
    assert len(reasons_against_skipping(args, has_router_loss)) == num_against_skipping
