"""ShorterBetter by hand."""

import pytest
import torch

from leash_trl.length_control.advantages import AdvantageRule
from leash_trl.length_control.shorter_better import ShorterBetter


def close(actual, expected):
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-12)


def test_by_hand_with_correct_answers_the_shortest_of_them_is_the_target(make_rollouts):
    # SOL = 400; distances 0, 600, 300 and 1600 at 0.001: 2, 2 - 0.6, 0 - 0.3, 0 - 1.6
    rollouts = make_rollouts([1, 1, -1, -1], [400, 1000, 100, 2000])
    close(ShorterBetter().shape(rollouts), [2.0, 1.4, -0.3, -1.6])
    close(ShorterBetter().score(rollouts, AdvantageRule()).penalty, [0.0, 0.6, 0.3, 1.6])


def test_by_hand_without_a_correct_answer_their_mean_is_the_target(make_rollouts):
    # SOL = (100 + 200 + 600) / 3 = 300; distances 200, 100, 300 at 0.01
    close(ShorterBetter(beta=0.01).shape(make_rollouts([0, 0, 0], [100, 200, 600])), [-2.0, -1.0, -3.0])


def test_each_prompt_has_a_target_of_its_own(make_rollouts):
    # SOLs 50 and (10 + 30) / 2 = 20; alpha 1, beta 0.1
    rollouts = make_rollouts([1, 1, -1, -1], [50, 60, 10, 30], num_generations=2)
    close(ShorterBetter(1.0, 0.1).shape(rollouts), [1.0, 0.0, -1.0, -1.0])


def test_an_unscorable_completion_sets_no_target(make_rollouts):
    nan = float("nan")
    shaped = ShorterBetter(beta=0.01).shape(make_rollouts([nan, 0, 0], [9000, 100, 300]))
    assert shaped[0].isnan()
    close(shaped[1:], [-1.0, -1.0])  # SOL = 200


@pytest.mark.parametrize("lengths", [[400, 500], [400, 400]])
def test_the_shortest_correct_answer_pays_nothing(make_rollouts, lengths):
    assert ShorterBetter().shape(make_rollouts([1, 1], lengths))[0] == 2.0
