"""Kimi k1.5's length reward: reference vectors, by hand, warm-up and state."""

import pytest
import torch

from leash_trl.length_control.kimi import Kimi, length_reward


@pytest.mark.parametrize("name", ["kimi_basic", "kimi_equal", "kimi_all_wrong"])
def test_golden(golden, name):
    vector = golden(name)
    correct = torch.tensor([vector["inputs"]["correct"]]).bool()
    rewards = length_reward(correct, torch.tensor([vector["inputs"]["length"]]))
    assert rewards.flatten().tolist() == pytest.approx(vector["expected"], abs=1e-12)


def test_golden_port_of_laser_without_its_formatting(golden):
    # the port's last answer is badly formatted, which lengths do not show; its 1e-6 in the denominator is below rel
    vector = golden("kimi_laser_port")
    scores, lengths = vector["inputs"]["score"][:-1], vector["inputs"]["length"][:-1]
    rewards = length_reward(torch.tensor([[score == 1 for score in scores]]), torch.tensor([lengths]))
    shaped = torch.tensor(scores) + vector["params"]["coef"] * rewards.flatten()
    assert shaped.tolist() == pytest.approx(vector["expected"][:-1], rel=1e-6)


def test_shaped_rewards_by_hand(make_rollouts):
    # the groups have ranges of their own: 100 to 300 and 50 to 150
    rollouts = make_rollouts([1, 1, -1, 1, -1, -1], [100, 300, 250, 50, 75, 150], num_generations=3)
    expected = [1 + 0.4 * 0.5, 1 - 0.4 * 0.5, -0.4 * 0.25, 1 + 0.4 * 0.5, 0.0, -0.4 * 0.5]
    assert Kimi().shape(rollouts).tolist() == pytest.approx(expected)


def test_an_unscorable_completion_is_not_in_the_range(make_rollouts):
    rollouts = make_rollouts([1, 1, float("nan"), float("nan")], [100, 300, 50, 900])
    assert Kimi().shape(rollouts)[:2].tolist() == pytest.approx([1 + 0.4 * 0.5, 1 - 0.4 * 0.5])


def test_during_the_warm_up_length_has_no_part(make_rollouts):
    method, rollouts = Kimi(warmup_steps=2), make_rollouts([1, 1], [100, 300])
    for is_warm in (False, False, True):
        assert (method.shape(rollouts).tolist() != [1.0, 1.0]) == is_warm
        method.step()
