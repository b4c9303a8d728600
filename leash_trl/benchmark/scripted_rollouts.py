"""Makes fixed completions and rewards, so that both trainers of a benchmark train on the same ones."""

import random
from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from leash_trl.benchmark.lengths import draw_lengths
from leash_trl.benchmark.settings import StepSettings


REWARD = "scripted_reward"  # the column that carries rewards from the rollout to the reward function


def scripted_reward(completions: list, **kwargs: Any) -> list[float]:
    """The rewards that the rollout chose."""
    return kwargs[REWARD]


def coin_rewards(num_groups: int, num_dead: int, num_generations: int, rng: random.Random) -> list[float]:
    """+1 or -1 for every completion, group by group.

    `num_dead` groups, drawn at random, get one reward for all of their completions. In the others every completion
    has its own coin, and the first is turned over where all fall alike.

    Returns:
        `list[float]`: `num_groups * num_generations` rewards.
    """
    dead = set(rng.sample(range(num_groups), num_dead))
    rewards: list[float] = []
    for group in range(num_groups):
        coins = [rng.choice((-1.0, 1.0)) for _ in range(num_generations)]
        if group in dead:
            coins = coins[:1] * num_generations
        elif len(set(coins)) == 1:
            coins[0] = -coins[0]
        rewards += coins
    return rewards


class ScriptedRollouts:
    """TRL's `rollout_func` without a model: every batch follows from the seed and its number.

    Args:
        settings (`StepSettings`):
            Lengths, rewards and seed.
        tokenizer (`PreTrainedTokenizerBase`):
            What prompts are encoded with. Completions are its ordinary tokens at random, then its end token.

    Attributes:
        lengths (`list[list[int]]`):
            Lengths of the completions of every batch so far, in tokens, the end token included.
    """

    def __init__(self, settings: StepSettings, tokenizer: PreTrainedTokenizerBase) -> None:
        self._settings = settings
        self._tokenizer = tokenizer
        self._ordinary = sorted(set(range(len(tokenizer))) - set(tokenizer.all_special_ids))
        self.lengths: list[list[int]] = []

    def __call__(self, prompts: Sequence[list[dict[str, str]]], trainer: Any) -> dict[str, Any]:
        """Completions for one generation batch, in TRL's form."""
        settings = self._settings
        seed = settings.seed * 1_000_003 + len(self.lengths)
        rng = random.Random(seed)
        lengths = draw_lengths(settings.lengths, len(prompts), settings.max_length, seed)
        self.lengths.append(lengths)
        return {
            "prompt_ids": [self._tokenizer.encode(prompt[0]["content"]) for prompt in prompts],
            "completion_ids": [
                [*rng.choices(self._ordinary, k=length - 1), self._tokenizer.eos_token_id] for length in lengths
            ],
            "logprobs": None,
            REWARD: coin_rewards(settings.num_groups, settings.num_dead_groups, settings.num_generations, rng),
        }
