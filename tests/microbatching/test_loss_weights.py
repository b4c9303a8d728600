"""Factors of loss and logged means, by hand."""

from types import SimpleNamespace

import pytest

from leash_trl.microbatching.loss_weights import (
    loss_factor,
    mean_factors,
    reasons_against_regrouping,
    reasons_against_skipping,
)


@pytest.mark.parametrize(
    ("loss_type", "expected"),
    [
        *dict.fromkeys(["dapo", "cispo", "vespo"], 1.0).items(),  # of the whole window
        *dict.fromkeys(["grpo", "dr_grpo", "sapo", "luspo"], 3 / 4).items(),  # means over rows
        ("bnpo", 30 / 50),  # over tokens
    ],
)
def test_a_loss_is_weighted_as_trls_own_split_would(loss_type, expected):
    assert loss_factor(loss_type, 3, 4, num_tokens=30, num_tokens_before=50) == expected
    # TRL divides an empty micro-batch by one token
    assert loss_factor("bnpo", 1, 4, num_tokens=0, num_tokens_before=0) == 1.0


def test_weighted_means_are_means_over_all():
    # 6 tokens of mean 1.0 and 2 of mean 5.0: (6 + 10) / 8 = 2
    factors = mean_factors([6, 2])
    assert sum(factor * mean for factor, mean in zip(factors, [1.0, 5.0], strict=True)) / 2 == 2.0
    assert mean_factors([0, 0]) == [1.0, 1.0]


def reasons(**settings) -> tuple[int, int]:
    """How many reasons speak against regrouping, and how many against skipping."""
    neutral = {"loss_type": "dapo", "beta": 0.0, "entropy_coef": 0.0, "use_adaptive_entropy": False}
    has_router_loss = settings.pop("has_router_loss", False)
    args = SimpleNamespace(**{**neutral, "top_entropy_quantile": 1.0, **settings})
    return tuple(len(of(args, has_router_loss)) for of in (reasons_against_regrouping, reasons_against_skipping))


@pytest.mark.parametrize(
    ("settings", "counts"),
    [
        ({}, (0, 0)),
        ({"entropy_coef": 0.1}, (1, 1)),
        ({"use_adaptive_entropy": True}, (1, 1)),
        ({"top_entropy_quantile": 0.8}, (1, 1)),
        ({"has_router_loss": True}, (1, 1)),
        ({"loss_type": "ppo"}, (1, 1)),
        ({"loss_type": "bnpo"}, (1, 0)),  # the mean over a micro-batch's tokens
        ({"beta": 0.1}, (0, 1)),  # the KL term of each completion
    ],
)
def test_what_keeps_the_split_and_what_keeps_the_rows(settings, counts):
    assert reasons(**settings) == counts
