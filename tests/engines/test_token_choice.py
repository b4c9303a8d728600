"""Drawing a token with a completion's own random numbers."""

import numpy as np
import pytest
import torch

from leash_trl.engines.token_choice import SeededDraw, tokens_by_inverse_cdf


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
