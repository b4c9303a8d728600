"""DOT: the cut by hand, when it cannot happen, and one batch traced through the trainer."""

import math
import re
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from leash_trl.length_control.advantages import AdvantageRule, mean_and_std, robust_scores
from leash_trl.length_control.dot import DOT, largest_score


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


@given(st.lists(st.integers(1, 30_000), min_size=2, max_size=40))
def test_no_z_score_exceeds_the_bound(values):
    means, stds = mean_and_std(torch.tensor([values]))
    scores = ((torch.tensor(values) - means) / stds).nan_to_num(0.0)
    assert scores.max() <= largest_score(len(values), False) * (1 + 1e-9)
    if len(values) == 2:
        assert robust_scores(torch.tensor([values])).max() <= largest_score(2, True) + 1e-12


def test_the_bound_is_reached_by_a_lone_outlier():
    for n in (2, 4, 10, 11, 32):
        values = [1.0] * (n - 1) + [500.0]
        score = (500.0 - statistics.mean(values)) / statistics.stdev(values)
        assert largest_score(n, False) == pytest.approx(score)
        population = (500.0 - statistics.mean(values)) / statistics.pstdev(values)
        assert math.sqrt(n - 1) == pytest.approx(population)
    assert largest_score(10, False) < 3.0 < largest_score(11, False)


@pytest.mark.parametrize("num_generations", [2, 8, 10])
def test_a_cut_that_can_never_happen_is_refused(num_generations):
    with pytest.raises(
        ValueError, match=rf"alpha is 3.0, .* num_generations={num_generations} .* to 11 or more, or robust, or lower"
    ):
        DOT().check(None, 8192, num_generations)


@given(st.floats(0, 50))
def test_the_group_that_the_message_names_is_the_smallest_that_is_cut(alpha):
    with pytest.raises(ValueError, match="num_generations to") as refused:
        DOT(alpha=alpha).check(None, math.inf, 1)
    least = int(re.search(r"num_generations to (\d+)", str(refused.value))[1])
    DOT(alpha=alpha).check(None, math.inf, least)
    assert least == 2 or alpha >= largest_score(least - 1, False) - 1e-9


def test_a_cut_that_can_happen_is_allowed():
    DOT().check(None, 8192, 11)
    DOT().check(None, math.inf, 11)
    DOT(alpha=1.0).check(None, 8192, 4)
    DOT(robust=True).check(None, 8192, 3)
    with pytest.raises(ValueError, match=r"alpha is 3.0, .* 0\.674 .* num_generations to 3 or more, or lower alpha"):
        DOT(robust=True).check(None, 8192, 2)


def test_an_excess_that_the_limit_does_not_leave_room_for_is_refused(make_rollouts):
    # one of d + 1 tokens, eleven of 1: above the cut lie d * (1 - 1/12 - 3 / sqrt(12)) = 0.050641 d, and the cut is
    # rounded down: 31 < 0.050641 d needs d >= 613
    with pytest.raises(
        ValueError, match=r"min_excess is 32, .* max_completion_length=613 .* lower min_excess or alpha"
    ):
        DOT().check(None, 613, 12)
    DOT().check(None, 614, 12)
    for limit, is_cut in ((613, False), (614, True)):
        kept = DOT().cut_lengths(make_rollouts([1.0] * 12, [1] * 11 + [limit]))
        assert bool(kept[-1] < limit) is is_cut
    with pytest.raises(ValueError, match="min_excess is 32"):
        DOT(robust=True).check(None, 32, 12)


def test_rewards_are_the_task_rewards(make_rollouts):
    rollouts = make_rollouts([1.0, 0.25, NAN, -1.0], [10, 20, 30, 40])
    assert torch.equal(DOT().shape(rollouts).nan_to_num(7.0), rollouts.task_rewards.nan_to_num(7.0))
    assert DOT().score(rollouts, AdvantageRule()).penalty.nansum() == 0
