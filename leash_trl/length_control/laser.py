"""LASER, a constant bonus within the target, and LASER-D and LASER-DE, with a target for each difficulty."""

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
import torch

from leash_trl.length_control import LengthControl, Paper, Rollouts, hyperparameter, state_field


# rewards, without a bonus, of a wrong answer that ends and of a truncated wrong answer
WRONG_SCORE = -0.5
MALFORMED_SCORE = -1.0
DIFFICULTIES = ("hard", "medium", "easy")


class Laser(LengthControl):
    r"""LASER: 1 for a correct answer, plus a bonus if it is within the target; the length of wrong ones has no effect.

    $$ r(y) = C(y) + \alpha \cdot \mathbb{I}(R) \cdot \mathbb{I}(L(y) \le L_T) $$

    Use: to shorten answers where this is easy. Long correct answers only lose the bonus, so the mean length may stay
    above the target.

    Source: sections 2 to 4 of [LASER](https://huggingface.co/papers/2505.15612), and the
    [release](https://github.com/hkust-nlp/Laser) with its `format_reward`: $C$ is 1 for a correct answer, -0.5 for a
    wrong one, and -1 for a truncated wrong one. The released targets are 2048, 4096 and 8192.

    Differs: the release gives -1 to answers without a box or without the end of the thinking. The text is not
    available here, so truncated wrong answers get -1 instead.

    Args:
        alpha (`float`): Bonus $\alpha$ in reward units.
    """

    name = "laser"
    paper = Paper("Learn to Reason Efficiently with Adaptive Length-based Reward Shaping", "2505.15612")
    target_use = "required"

    alpha: float = hyperparameter(0.5, ge=0)

    def base_rewards(self, rollouts: Rollouts) -> torch.Tensor:
        wrong_scores_N = torch.where(rollouts.is_truncated, MALFORMED_SCORE, WRONG_SCORE).double()
        scores_N = torch.where(rollouts.is_correct, 1.0, wrong_scores_N)  # C(y)
        return scores_N.masked_fill(~rollouts.is_scorable, torch.nan)

    def shaped_rewards(self, rollouts: Rollouts) -> torch.Tensor:
        is_within_N = rollouts.lengths <= self.limits(rollouts)  # L(y) <= L_T
        has_bonus_N = rollouts.is_correct & is_within_N
        return self.base_rewards(rollouts) + self.alpha * has_bonus_N.double()

    def limits(self, rollouts: Rollouts) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: Maximum length in tokens at which each completion earns the bonus."""
        return rollouts.target_lengths


def difficulty_levels(solve_rates: torch.Tensor, when: Literal["shaping", "monitoring"]) -> torch.Tensor:
    """Returns the difficulty of each prompt as an index into `DIFFICULTIES`. A solve rate of exactly 1/3 or 2/3
    belongs to the easier class for shaping, and to the harder class for monitoring.

    Source: reward and monitor of the [release](https://github.com/hkust-nlp/Laser).
    """
    borders = torch.tensor([1 / 3, 2 / 3], dtype=torch.float64)
    return torch.bucketize(solve_rates.double().contiguous(), borders, right=when == "shaping")


def lengths_by_difficulty(rollouts: Rollouts) -> list[list[float]]:
    """Returns the lengths of all completions, correct and wrong, for each of `DIFFICULTIES`, without unscorable
    prompts."""
    is_unscorable_N = torch.isnan(rollouts.solve_rates)
    levels_N = difficulty_levels(rollouts.solve_rates, when="monitoring")
    levels_N = levels_N.masked_fill(is_unscorable_N, -1)  # no difficulty
    return [rollouts.lengths[levels_N == level].tolist() for level in range(len(DIFFICULTIES))]


def candidate_targets(lower_bound: float, upper_bound: int, interval: int) -> list[float]:
    """Returns the candidates for targets in tokens, a grid that starts at the lower bound. Source: the release."""
    # a lower bound below the interval is followed by the interval itself, so that 100 gives 100, 1024, 2048, ...
    second = interval if lower_bound < interval else lower_bound + interval
    return [lower_bound, *np.arange(second, upper_bound + 1, interval).tolist()]


def smallest_target(
    lengths: Sequence[float], candidates: Iterable[float], correct_per_prompt: int, needed_within_target: int
) -> float | None:
    r"""Returns the smallest target in tokens within which enough correct answers are expected; `None` if there is
    none.

    $$ \min \{ l : P_{l,d} \cdot |C_d| \ge \text{expected} \} $$

    Source: sections 2 to 4 of [LASER](https://huggingface.co/papers/2505.15612).

    Args:
        lengths (`Sequence[float]`): Lengths in tokens of all answers of this difficulty; $P_{l,d}$ is the share of
            lengths up to $l$.
        candidates (`Iterable[float]`): Candidate targets in tokens, ascending.
        correct_per_prompt (`int`): $|C_d|$, number of correct answers among the K answers to a prompt of this
            difficulty.
        needed_within_target (`int`): Number of correct answers to expect within the target.

    Example:
        >>> smallest_target([100, 200, 300, 400], [128, 256, 512], correct_per_prompt=2, needed_within_target=1)
        256
    """
    if not lengths:
        return None
    ordered = sorted(lengths)
    for candidate in candidates:
        num_within = bisect_right(ordered, candidate)  # number of answers that are not longer
        # The share of answers within the candidate, num_within / len(ordered), times the number of correct answers to
        # a prompt must reach `needed_within_target`. Both sides are multiplied by len(ordered), so that no division is
        # rounded.
        if num_within * correct_per_prompt >= needed_within_target * len(ordered):
            return candidate
    return None


def num_correct_by_difficulty(num_generations: int) -> list[int]:
    """Returns $|C_d|$ for each of `DIFFICULTIES`: its lowest solve rate (0, 1/3 or 2/3) times K, rounded up, and at
    least 1.

    Source: for K = 8, the paper has 6, 3 and 1 for easy, medium and hard prompts; the release, which rounds down, has
    5, 2 and 1.
    """
    one_third = math.ceil(num_generations / 3)
    two_thirds = math.ceil(2 * num_generations / 3)
    return [1, one_third, two_thirds]


class LaserD(Laser):
    r"""LASER-D: LASER with a target that depends on the solve rate of the prompt.

    $$ L_d = \min \{ l : P_{l,d} \cdot |C_d| \ge \text{expected} \} $$

    If no candidate $l$ satisfies this, which is usual for hard prompts, the target is the length of the longest answer
    in the batch.

    Use: if the data has easy and hard prompts that need different targets.

    Source: sections 2 to 4 of [LASER](https://huggingface.co/papers/2505.15612), see [`smallest_target`].

    Differs: to choose targets, the paper samples 8 answers to each of 500 training prompts before training and every
    20 steps. This version chooses targets from the training batches since the last choice; until the first choice,
    each batch determines its own. The lower bound of the candidates is the smallest target among the prompts.

    Args:
        refresh_steps (`int`): Number of policy updates between two choices of targets.
        interval (`int`), upper_bound (`int`): Distance between candidate targets, and the largest of them, in tokens.
        expected_correct (`int`): Number of correct answers to expect within a target.
    """

    name = "laser_d"
    depends_on = "batch"

    refresh_steps: int = hyperparameter(20, ge=1)
    interval: int = hyperparameter(1024, ge=1)
    upper_bound: int = hyperparameter(16384, ge=1)
    expected_correct: int = hyperparameter(1, ge=1)
    # target in tokens for each of `DIFFICULTIES`, or `None` for the longest answer of the batch; empty before the
    # first choice
    targets: list[float | None] = state_field(list)
    steps_since_refresh: int = state_field(int)
    # lengths for each of `DIFFICULTIES`, smallest target and group size of the batches since the last choice
    window: list[list[float]] = state_field(lambda: [[] for _ in DIFFICULTIES])
    lower_bound: float | None = state_field(lambda: None)
    num_generations: int = state_field(int)

    def check(self, target_length: int | None, max_completion_length: float) -> None:
        """Raises `ValueError` if no candidate is between the target and `upper_bound`."""
        if target_length is not None and target_length > self.upper_bound:
            raise ValueError(
                f"upper_bound is {self.upper_bound}, but must not be below target_length={target_length}; raise it"
            )

    def targets_by_difficulty(
        self, lengths: Sequence[Sequence[float]], lowest: float, num_generations: int
    ) -> list[float | None]:
        """Returns a target in tokens for each of `DIFFICULTIES`; `None` stands for the longest answer of a batch."""
        candidates = candidate_targets(lowest, self.upper_bound, self.interval)
        targets = []
        for lengths_of_level, num_correct in zip(lengths, num_correct_by_difficulty(num_generations), strict=True):
            targets.append(smallest_target(lengths_of_level, candidates, num_correct, self.expected_correct))
        return targets

    def limits(self, rollouts: Rollouts) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: Target of each completion in tokens, by the solve rate of its prompt."""
        # A target in tokens for each of `DIFFICULTIES`, or `None` for the longest answer of the batch. Before the
        # first choice, there are none, and the batch determines its own.
        targets = self.targets
        if not targets:
            lengths = lengths_by_difficulty(rollouts)
            targets = self.targets_by_difficulty(lengths, _smallest_prompt_target(rollouts), rollouts.num_generations)
        longest = rollouts.lengths.max().item()
        target_by_level = torch.tensor(
            [longest if target is None else target for target in targets], dtype=torch.float64
        )
        # Difficulty of the prompt of each completion, as an index into `DIFFICULTIES`; `when` says to which class a
        # solve rate on a border belongs. A prompt without a solve rate has no reward, so its target has no effect.
        levels_N = difficulty_levels(rollouts.solve_rates.nan_to_num(), when="shaping")
        return target_by_level[levels_N]

    def observe(self, rollouts: Rollouts) -> None:
        smallest = _smallest_prompt_target(rollouts)
        self.lower_bound = min(self.lower_bound or smallest, smallest)
        self.num_generations = rollouts.num_generations
        for window_lengths, batch_lengths in zip(self.window, lengths_by_difficulty(rollouts), strict=True):
            window_lengths.extend(batch_lengths)

    def step(self) -> None:
        self.steps_since_refresh += 1
        is_due = self.steps_since_refresh >= self.refresh_steps
        # `window` holds the lengths of the answers since the last choice, in a list for each of `DIFFICULTIES`, and
        # `lower_bound` the smallest target among their prompts. If there are none yet, the choice stays due.
        if is_due and self.lower_bound and any(self.window):
            self.targets = self.targets_by_difficulty(self.window, self.lower_bound, self.num_generations)
            self.steps_since_refresh = 0
            self.window = [[] for _ in DIFFICULTIES]
            self.lower_bound = None

    def statistics(self) -> dict[str, float]:
        targets = zip(DIFFICULTIES, self.targets, strict=False)  # there are no targets before the first choice
        return {f"target_{name}": float(target) for name, target in targets if target is not None}


class LaserDE(LaserD):
    r"""LASER-DE: LASER-D with a bonus for wrong answers longer than their target, to encourage exploration.

    $$ r_{DE}(y) = r_D(y) + \alpha \cdot (1 - \mathbb{I}(R)) \cdot \mathbb{I}(L(y) > L_A) $$

    Truncated wrong answers get no bonus.

    Use: like LASER-D, if the model should keep thinking long about prompts that it does not solve.

    Source: LASER-DE in [LASER](https://huggingface.co/papers/2505.15612). The check for repetitive text in the release
    never takes effect and is left out.
    """

    name = "laser_de"

    def shaped_rewards(self, rollouts: Rollouts) -> torch.Tensor:
        is_beyond_N = rollouts.lengths > self.limits(rollouts)  # L(y) > L_A
        is_wrong_N = self.base_rewards(rollouts) == WRONG_SCORE  # wrong, scorable and not truncated
        has_bonus_N = is_wrong_N & is_beyond_N
        return super().shaped_rewards(rollouts) + self.alpha * has_bonus_N.double()


def _smallest_prompt_target(rollouts: Rollouts) -> float:
    """Returns the smallest target among the prompts."""
    return rollouts.target_lengths.min().item()
