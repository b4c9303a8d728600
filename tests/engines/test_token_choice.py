"""Drawing a token with a completion's own random numbers."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from leash_trl.engines.token_choice import SeededDraw, tokens_by_inverse_cdf


@given(
    probabilities=st.lists(st.floats(0, 1, width=32), min_size=1, max_size=30).filter(any),
    uniform=st.floats(0, 1, exclude_max=True),
)
@settings(max_examples=200, deadline=None)
def test_inverse_cdf_is_where_numpy_says_and_never_a_token_without_probability(probabilities, uniform):
    table = torch.tensor([probabilities], dtype=torch.float32)
    token = tokens_by_inverse_cdf(table, torch.tensor([uniform], dtype=torch.float64)).item()
    assert probabilities[token] > 0
    cumulated = np.cumsum(np.array(probabilities, dtype=np.float64))
    share = uniform * cumulated[-1]
    assert token == 0 or cumulated[token - 1] <= share
    assert share <= cumulated[token]


@pytest.mark.parametrize("probability", [0.1, 0.125, 0.3, 1e-30])
def test_the_greatest_draw_takes_the_last_token_that_has_probability(probability):
    table = torch.tensor([[probability] * 10 + [0.0]])
    assert tokens_by_inverse_cdf(table, torch.tensor([np.nextafter(1.0, 0.0)])).item() == 9


def test_a_likely_token_does_not_swallow_unlikely_ones():
    # 2^-26 is below half a unit in the last place of float32 at 1, so sums in float32 would stand still
    table = torch.full((1, 2**10), 2.0**-26)
    table[0, 0] = 1.0
    total = 1 + (2**10 - 1) * 2.0**-26
    # a share of 1 + 1.5 * 2^-26 lies in the middle of the token at 2
    assert tokens_by_inverse_cdf(table, torch.tensor([(1 + 1.5 * 2.0**-26) / total], dtype=torch.float64)).item() == 2


def test_draws_follow_numpys_stream():
    draw = SeededDraw([11, 12])
    scores = torch.zeros(1, 1000)  # a thousand equally likely tokens: the token is the draw, to three digits
    expected = np.random.default_rng(12).random(20)
    for uniform in expected:
        assert abs(draw(scores, torch.tensor([1])).item() - 1000 * uniform) <= 1.001
