"""The reward of reasoning-gym's tasks, where the task itself fails."""

import json

import pytest

from leash_trl.reasoning_gym_tasks import procedural_dataset
from leash_trl.rewards import reasoning_gym_reward


def test_an_answer_on_which_the_task_raises_is_wrong_and_the_next_one_is_scored():
    settings = json.dumps({"task": "prime_factorization", "size": 1})
    dataset = procedural_dataset(settings)
    with pytest.raises(ValueError, match="two"):
        dataset.score_answer("two", dataset[0])
    completions = ["<answer>two</answer>", f"<answer>{dataset[0]['answer']}</answer>"]
    assert reasoning_gym_reward(completions, [f"0 {settings}"] * 2) == [-1.0, 1.0]
