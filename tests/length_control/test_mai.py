"""MAI's length penalty: NeMo-RL's test vectors and by hand."""

import pytest
import torch

from leash_trl.length_control.mai import MAI
from leash_trl.length_control.nemo_rl import NemoRL
from leash_trl.length_control.prime_rl import PrimeRL


NAN = float("nan")


def close(actual, expected):
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), equal_nan=True)


# `TestPassRateLengthPenalty` of NeMo-RL's tests/unit/utils/test_length_penalty.py, all with a weight of 0.2
NEMO_RL = {
    # solve rate 1, longest 20: 0.2 * 10 / 20 and 0.2 * 20 / 20
    "all right": ([1, 1], [10, 20], [0.9, 0.8]),
    # solve rate 0.5: 0.2 * 0.5 * 20 / 20
    "one right": ([1, 0], [20, 10], [0.9, 0.0]),
    "all wrong": ([0, 0], [10, 20], [0.0, 0.0]),
    # the wrong one is longer, but the longest right one pays 0.2 * 0.5 all the same
    "long wrong": ([1, 0], [20, 40], [0.9, 0.0]),
}


@pytest.mark.parametrize("name", NEMO_RL)
@pytest.mark.parametrize("method", [MAI(), NemoRL(pass_rate_length_penalty_weight=0.2)], ids=["mai", "nemo_rl"])
def test_golden_vectors_of_nemo_rl(make_rollouts, method, name):
    rewards, lengths, expected = NEMO_RL[name]
    close(method.shape(make_rollouts(rewards, lengths)), expected)


def test_by_hand_two_groups(make_rollouts):
    # solve rates 2/3 and 1, longest right 400 and 50, weight 0.3:
    # 1 - 0.3 * 2/3 * 100/400 = 0.95, 1 - 0.3 * 2/3 = 0.8; 1 - 0.3 * 10/50 = 0.94, 1 - 0.3 = 0.7 twice
    rollouts = make_rollouts([1, 1, 0, 1, 1, 1], [100, 400, 900, 10, 50, 50], num_generations=3)
    close(MAI(0.3).shape(rollouts), [0.95, 0.8, 0.0, 0.94, 0.7, 0.7])


def test_an_unscorable_completion_counts_neither_in_the_solve_rate_nor_for_the_longest(make_rollouts):
    # solve rate 1/2, longest 20: 1 - 0.2 * 0.5 = 0.9, as in the group of two
    close(MAI().shape(make_rollouts([1, NAN, 0], [20, 9000, 40])), [0.9, NAN, 0.0])


def test_where_all_answers_are_right_it_is_prime_rl_before_advantages(make_rollouts):
    rollouts = make_rollouts([1, 1, 1], [10, 70, 400])
    close(MAI(0.25).shape(rollouts), PrimeRL().shape(rollouts).tolist())


def test_other_than_with_prime_rl_wrong_answers_pay_nothing(make_rollouts):
    rollouts = make_rollouts([1, 0], [100, 200])
    # prime-rl: 1 - 0.25 * 0.5 * 100/200 and 0 - 0.25 * 0.5; here 1 - 0.25 * 0.5 * 100/100 and 0
    close(PrimeRL().shape(rollouts), [0.9375, -0.125])
    close(MAI(0.25).shape(rollouts), [0.875, 0.0])


def test_a_prompt_that_is_seldom_solved_pays_in_proportion(make_rollouts):
    paid = [1 - MAI(0.5).shape(make_rollouts([1] * n + [0] * (8 - n), [100] * 8))[0].item() for n in (1, 4, 8)]
    assert paid == pytest.approx([0.5 / 8, 0.5 / 2, 0.5])
