"""DOT: the cut by hand, and against its definition."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leash_trl.length_control.advantages import AdvantageRule
from leash_trl.length_control.dot import DOT


NAN = float("nan")


@pytest.mark.parametrize(
    ("outlier", "kept"),
    [
        # 11 of 100 and one of 1300: mean 200, std sqrt((11 * 100^2 + 1100^2) / 11) = 346.410; 200 + 3 * 346.410
        # = 1239.230, so T = 1239, and 1300 - 1239 = 61 >= 32
        (1300, 1239),
        # d = 600: mean 150, std sqrt((11 * 50^2 + 550^2) / 11) = 173.205; T = floor(669.615) = 669; 700 - 669 = 31
        (700, 700),
        # d = 612: mean 151, std 612 / sqrt(12) = 176.669; T = floor(681.007) = 681; 712 - 681 = 31
        (712, 712),
        # d = 624: mean 152, std 624 / sqrt(12) = 180.133; T = floor(692.400) = 692; 724 - 692 = 32
        (724, 692),
    ],
)
def test_the_cut_by_hand(make_rollouts, outlier, kept):
    lengths = [100] * 11 + [outlier]
    assert DOT().cut_lengths(make_rollouts([1.0] * 12, lengths)).tolist() == [100] * 11 + [kept]


def test_the_robust_cut_by_hand(make_rollouts):
    # median 115, MAD 10: T = floor(115 + 3 * 14.826) = floor(159.478) = 159
    rollouts = make_rollouts([1.0] * 4, [100, 110, 120, 400])
    assert DOT(robust=True).cut_lengths(rollouts).tolist() == [100, 110, 120, 159]
    # 191 - 159 = 32 is enough, 190 - 159 = 31 is not
    for length, kept in ((191, 159), (190, 190)):
        assert DOT(robust=True).cut_lengths(make_rollouts([1.0] * 4, [100, 110, 120, length]))[3] == kept


def test_only_groups_of_right_answers_are_cut(make_rollouts):
    # G = 4, alpha = 1: mean 20, std 20, T = 40 for lengths 10, 10, 10, 50
    lengths, method = [10, 10, 10, 50], DOT(alpha=1.0, min_excess=8)
    rewards = [*(1, 1, 1, 1), *(1, 1, -1, 1), *(1, 0, 1, 1), *(-1, -1, -1, -1)]
    kept = method.cut_lengths(make_rollouts(rewards, lengths * 4, num_generations=4))
    assert kept.tolist() == [10, 10, 10, 40, *lengths * 3]


def test_unscorable_completions_neither_stop_nor_move_nor_suffer_a_cut(make_rollouts):
    method = DOT(alpha=1.0, min_excess=8)
    for unscorable in (1, 60, 999):
        rollouts = make_rollouts([1, 1, NAN, 1, 1], [10, 10, unscorable, 10, 50])
        assert method.cut_lengths(rollouts).tolist() == [10, 10, unscorable, 10, 40]
    lengths = [10, 10, 10, 50]
    assert method.cut_lengths(make_rollouts([NAN] * 4, lengths)).tolist() == lengths


@pytest.mark.parametrize("robust", [False, True])
# many within 1.5 % of each other, too close for a robust spread
@given(lengths=st.lists(st.integers(990, 1010) | st.integers(1, 4000), min_size=3, max_size=16), alpha=st.floats(0, 3))
def test_what_is_cut_is_an_outlier_and_every_outlier_is_cut(make_rollouts, robust, lengths, alpha):
    """Against the definition, number by number."""
    method = DOT(alpha=alpha, robust=robust)
    kept = method.cut_lengths(make_rollouts([1.0] * len(lengths), lengths)).tolist()
    if robust:
        centre = statistics.median(lengths)
        deviation = statistics.median(abs(n - centre) for n in lengths)
        hardly_spreads = deviation == 0 or deviation < 0.015 * centre
        spread = math.inf if hardly_spreads else 1.4826 * deviation
    else:
        centre, spread = statistics.mean(lengths), statistics.stdev(lengths)
    limit = math.inf if spread == math.inf else math.floor(centre + alpha * spread)
    assert kept == [limit if n - limit >= 32 else n for n in lengths]


def test_what_is_right_is_what_the_deciding_function_says(make_rollouts):
    # all positive, but the third answer is wrong
    rollouts = make_rollouts([1.5, 1.5, 0.5, 1.5], [10, 10, 10, 50], correctness=[1, 1, 0, 1])
    score = DOT(alpha=1.0, min_excess=8).score(rollouts, AdvantageRule())
    assert score.cut.tolist() == [10, 10, 10, 50]
    assert score.base.tolist() == [1.5, 1.5, 0.5, 1.5]
