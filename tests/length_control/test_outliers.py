"""Mean and standard deviation, and robust z-scores of median and MAD, by hand."""

import math

import pytest
import torch

from leash_trl.length_control.advantages import mean_and_std, robust_scores


NAN = float("nan")


def test_mean_and_sample_standard_deviation_by_hand():
    # 100, 110, 150: mean 120, squares 400 + 100 + 900, over n - 1: 700; 50, 90: mean 70, 2 * 400 / 1
    means, stds = mean_and_std(torch.tensor([[100.0, 110.0, NAN, 150.0], [NAN, 50.0, 90.0, NAN]]))
    assert means.tolist() == [[120.0], [70.0]]
    assert stds.flatten().tolist() == pytest.approx([math.sqrt(700), math.sqrt(800)], rel=1e-12)
    # a single value, and none
    means, stds = mean_and_std(torch.tensor([[7.0, NAN], [NAN, NAN]]))
    assert means.tolist() == [[7.0], [0.0]]
    assert stds.tolist() == [[0.0], [0.0]]


def test_weighted_mean_and_standard_deviation_by_hand():
    # 4 of weight 2, 10 of 1, 1 of 0: mean 18 / 3 = 6; squares 2 * 4 + 16 = 24, over 3 for the population, over 2
    values, weights = torch.tensor([4.0, 10.0, 1.0, NAN]), torch.tensor([2, 1, 0, 5])
    for correction, variance in ((0, 8), (1, 12)):
        mean, std = mean_and_std(values, weights, correction)
        assert mean.item() == 6
        assert std.item() == pytest.approx(math.sqrt(variance), rel=1e-12)


def scores(*values: float) -> list[float]:
    return robust_scores(torch.tensor([values])).squeeze(0).tolist()


def test_scores_by_hand():
    # median 120; distances 20, 10, 0, 10, 280: MAD 10; spread 1.4826 * 10 = 14.826
    assert scores(100, 110, 120, 130, 400) == pytest.approx([z / 14.826 for z in (-20, -10, 0, 10, 280)], rel=1e-12)


def test_even_groups_take_the_mean_of_the_middle_two():
    # median (110 + 120) / 2 = 115; distances 15, 5, 5, 285: MAD (5 + 15) / 2 = 10
    assert scores(100, 110, 120, 400) == pytest.approx([z / 14.826 for z in (-15, -5, 5, 285)], rel=1e-12)


@pytest.mark.parametrize(
    ("deviation", "score"),
    [
        (15, 1000 / (1.4826 * 15)),  # MAD is exactly 1.5 % of the median of 1000
        (14, 0.0),  # below
        (0, 0.0),
    ],
)
def test_groups_that_hardly_spread_have_no_outliers(deviation, score):
    group = [1000 - deviation, 1000 - deviation, 1000, 1000 + deviation, 2000]
    assert scores(*group)[-1] == pytest.approx(score)


def test_nan_stays_nan_and_does_not_move_the_others():
    found = scores(100, NAN, 110, 120, 400)
    assert math.isnan(found[1])
    assert [found[0], *found[2:]] == scores(100, 110, 120, 400)
    assert all(map(math.isnan, scores(NAN, NAN, NAN)))
