"""HAPO: reference vectors and by hand.

The vectors come from a secondary description; `utils.py` of the authors' release (HCY123902/HAPO at ed545909) has the
same reward.
"""

import json
import math

import torch

from leash_trl.length_control.hapo import HAPO


def close(actual, expected):
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=1e-12)


def test_by_hand_two_groups(make_rollouts):
    # history 100 for question 7 only: cos(pi / 4), then cos(3 pi / 4) = -0.707 for a wrong answer
    method = HAPO()
    method.observe(make_rollouts([1], [100], questions=[7]))
    rollouts = make_rollouts([1, -1, 1, -1], [50, 150, 50, 150], num_generations=2, questions=[7, 7, 8, 8])
    close(method.shape(rollouts), [1 + math.sqrt(0.5), -math.sqrt(0.5), 1.0, 0.0])


def test_any_right_answer_beats_any_wrong_one(make_rollouts):
    method = HAPO()
    method.observe(make_rollouts([1], [100]))
    right, _, wrong, _ = method.shape(make_rollouts([1, 1, 0, 0], [100_000, 1, 1, 100_000])).tolist()
    assert right > wrong


def test_history_survives_json(make_rollouts):
    method, restored = HAPO(), HAPO()
    method.observe(make_rollouts([1, 1], [70, 50], num_generations=1, questions=[2**62, 3]))
    restored.load_state_dict(json.loads(json.dumps(method.state_dict())))
    assert restored.shortest == {2**62: 70, 3: 50}
    assert restored.statistics() == {"questions_with_history": 2.0}
