"""Facts about every method, and batches of rollouts on which their laws are tested."""

import math
from dataclasses import dataclass, field
from itertools import permutations
from random import Random
from typing import Any, Literal

from toy_rollouts import toy_rollouts

from leash_trl.length_control.methods import METHODS


LIMIT = 200


@dataclass(frozen=True)
class Facts:
    """What is particular to a method, with hyper-parameters that fit lengths of 1 to 200 and targets of 50 and 80."""

    settings: dict[str, Any] = field(default_factory=dict)
    # rewards of a right and of a wrong answer before length; `None` where the task rewards are taken as they are
    base: tuple[float, float] | None = (1, 0)
    # lowest and highest shaped reward
    bounds: tuple[float, float] = (0, 1)
    # what its own length does to the shaped reward of a wrong answer; where it may gain, longer is not always worse
    wrong: Literal["unmoved", "pays", "may gain"] = "unmoved"
    # False where a right answer can be too short
    right_never_gains: bool = True
    # the length of an unscorable completion is in the statistics of the others
    sees_unscorable: bool = False
    # of completions that are equally good, the first ones are preferred
    breaks_ties_by_order: bool = False


# Of methods that take the task rewards of +1 and -1 as they are.
TASK_REWARDS = {"base": None, "bounds": (-1, 1)}
# For targets by difficulty to be met within LIMIT.
LASER_D = {"interval": 20, "upper_bound": 160, "refresh_steps": 1}

# A name may come again with a colon and its variant.
FACTS = {
    "leash": Facts({"lambda_init": 0.3, "lambda_lr": 0.05}, **TASK_REWARDS),
    "leash:floor": Facts({"lambda_init": 0.3, "min_accuracy": 0.5}, **TASK_REWARDS),
    "leash_c": Facts(**TASK_REWARDS),
    # lambda is at most 1, the overshoot 200 / 50 - 1
    "leash_predictive": Facts(base=None, bounds=(-2, 1)),
    # at most lambda_max = 0.1 times 200 / 50 - 1
    "laconic": Facts({"lambda_init": 0.05}, bounds=(-0.3, 1), wrong="pays"),
    # two-sided: too short is as wrong as too long
    "l1_exact": Facts(
        {"alpha": 0.005, "budget_range": (10, 100)}, bounds=(-0.75, 1), wrong="may gain", right_never_gains=False
    ),
    "l1_max": Facts({"alpha": 0.005, "budget_range": (10, 100)}),
    # what it does to lengths, it does by cutting generation
    "thinkprune": Facts(),
    "laser": Facts(base=(1, -0.5), bounds=(-1, 1.5)),
    # the longest response of the batch stands in for targets that no candidate meets
    "laser_d": Facts(LASER_D, base=(1, -0.5), bounds=(-1, 1.5), sees_unscorable=True),
    # a bonus for long wrong answers
    "laser_de": Facts(LASER_D, base=(1, -0.5), bounds=(-1, 1.5), wrong="may gain", sees_unscorable=True),
    "kimi": Facts(bounds=(-0.2, 1.2), wrong="pays"),
    "dapo_overlong": Facts({"cache_length": None}, base=(1, -1), bounds=(-2, 1), wrong="pays"),
    "efficient": Facts(),
    "a_dlp": Facts(bounds=(-0.3, 1), wrong="pays"),
    "acoer": Facts(bounds=(0, 1.02)),
    "alp": Facts({"beta": 0.001}, bounds=(-0.2, 1), wrong="pays"),
    # wrong answers feel it in the advantage, by being dropped
    "gfpo": Facts(**TASK_REWARDS, breaks_ties_by_order=True),
    "dler": Facts(),
    "dler:easy": Facts({"easy_limit": 30}),
    # the longer a wrong answer, the more it earns
    "cosine": Facts(base=(2, -10), bounds=(-10, 2), wrong="may gain"),
    # z is at most 3 / sqrt(4) in a group of four
    "grpo_lead": Facts(base=(1, -1), bounds=(-1, math.exp(0.05 * 1.5))),
    "prime_rl": Facts(bounds=(-0.25, 1), wrong="pays"),
    "mai": Facts(),
    "nemo_rl": Facts({"profile_band": {"a": 30, "b": 150, "f": 0.2}}),
    "gr3": Facts(),
    "grlc": Facts(bounds=(-0.5, 1.5), wrong="pays"),
    "hapo": Facts(bounds=(-1, 2), wrong="pays"),
    # at most 0.005 a token times 199; a wrong answer shorter than the shortest right one gains by being longer
    "shorter_better": Facts({"beta": 0.005}, base=(2, 0), bounds=(-1, 2), wrong="may gain"),
    # at most the error rate times max e / (max e - mean e), which is at most 1 / the error rate
    "smart_thinker": Facts(),
    # two-sided, around the mean length of right answers
    "lead": Facts({"lower_bound": 40}, bounds=(-0.7, 1), wrong="may gain", right_never_gains=False),
    "drpo": Facts(),
    "toggle": Facts(),
    "toggle:off": Facts({"period": 2}),
    "toggle:tight": Facts({"accuracy_threshold": 0.0, "percentile": 10.0}),
    "none": Facts(**TASK_REWARDS),
}


def method_named(name):
    """The method of a line of `FACTS`, in its first state."""
    return METHODS[name.split(":")[0]](**FACTS[name].settings)


def batch_of(rewards, lengths, targets, num_generations):
    truncated = [length == LIMIT for length in lengths]
    return toy_rollouts(rewards, lengths, targets, num_generations, truncated, limit=LIMIT)


def warm(method):
    """The method after two policy updates on batches whose questions come again."""
    rewards = [1, -1, 1, -1, 1, 1, -1, 1]
    targets = [50.0, 50.0, 50.0, 50.0, 80.0, 80.0, 80.0, 80.0]
    lengths_of_batches = [
        [60, 20, 90, 180, 70, 30, 120, 160],
        [50, 200, 80, 90, 150, 60, 40, 100],
    ]
    for lengths in lengths_of_batches:
        method.observe(batch_of(rewards, lengths, targets, num_generations=4))
        method.step()
    return method


def random_batch(random):
    """Groups of 2 to 4, of one answer or of several, with lengths that often meet, or lie on a target or the limit."""
    num_generations = random.randint(2, 4)
    num_prompts = random.randint(1, 3)
    num_completions = num_prompts * num_generations
    mixed = [1.0, -1.0, 1.0, -1.0, math.nan]
    possible_rewards = random.choice(([1.0], [1.0, -1.0], mixed, mixed))
    all_lengths = range(1, LIMIT + 1)
    possible_lengths = random.choice((all_lengths, all_lengths, (1, 49, 50, 51, 80, LIMIT), (30, 31)))
    targets = []
    for _ in range(num_prompts):
        target = random.choice((50.0, 80.0))
        targets += [target] * num_generations
    rewards = random.choices(possible_rewards, k=num_completions)
    lengths = random.choices(possible_lengths, k=num_completions)
    return batch_of(rewards, lengths, targets, num_generations)


BATCHES = [random_batch(Random(seed)) for seed in range(16)]
WARM = {name: warm(method_named(name)) for name in FACTS}


def pairs(batch, is_chosen):
    """Row numbers of all pairs of a shorter and a longer chosen completion of the same prompt."""
    lengths = batch.lengths.tolist()
    chosen_rows = is_chosen.nonzero().flatten().tolist()
    for first, second in permutations(chosen_rows, 2):
        is_same_prompt = first // batch.num_generations == second // batch.num_generations
        if is_same_prompt and lengths[first] < lengths[second]:
            yield first, second
