"""LASER-D and LASER-DE: LASER with a target for each difficulty, chosen anew every few steps."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from leash_trl.length_control.laser import WRONG_SCORE, Laser
from leash_trl.length_control.laser_targets import (
    DIFFICULTIES,
    candidate_targets,
    difficulty,
    lengths_by_difficulty,
    right_answers,
    smallest_target,
)
from leash_trl.length_control.method import knob
from leash_trl.length_control.rollouts import Rollouts


@dataclass
class LaserD(Laser):
    """LASER-D: LASER whose target depends on how often the prompt is solved.

    If no candidate serves, as is usual for hard prompts, the target is the longest response of the batch.

    Use: if easy and hard prompts are mixed, and one target would be wrong for both.

    Source: sections 2 to 4 of [LASER](https://huggingface.co/papers/2505.15612), see [`smallest_target`].

    Differs: the paper samples 500 training prompts, 8 times each, before training and every 20 steps, only to choose
    targets. This version chooses them from the training batches since the last choice, at no cost: with 128 prompts a
    batch these are 2560 prompts, sampled by the policies of the last 20 steps instead of the newest one. Before the
    first choice each batch gives its own targets. The lower bound of the candidates is the smallest target among the
    prompts. The length of an unscorable response counts if another response to its prompt was scored.

    Args:
        alpha (`float`, *optional*, defaults to `0.5`):
            The bonus in reward units.
        refresh_steps (`int`, *optional*, defaults to `20`):
            Policy updates between two choices.
        interval (`int`, *optional*, defaults to `1024`), upper_bound (`int`, *optional*, defaults to `16384`):
            Distance and maximum of the candidate targets in tokens.
        expected_correct (`int`, *optional*, defaults to `1`):
            Correct answers that must be expected under a target.
        rounding (`str`, *optional*, defaults to `"paper"`):
            `"paper"` or `"release"`, see [`right_answers`]; the release's targets are longer.
    """

    name = "laser_d"
    state = ("targets", "steps_since_refresh", "window", "lower_bound", "num_generations")
    needs_group = True

    refresh_steps: int = knob(20, least=1)
    interval: int = knob(1024, least=1)
    upper_bound: int = knob(16384, least=1)
    expected_correct: int = knob(1, least=1)
    rounding: Literal["paper", "release"] = "paper"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.targets: list[int | None] | None = None
        self.steps_since_refresh = 0
        self._clear_window()

    def check(self, target_length: int | None, max_completion_length: float, num_generations: int) -> None:
        """Raises `ValueError` if no candidate target lies between the target and `upper_bound`."""
        if target_length is not None:
            candidate_targets(target_length, self.upper_bound, self.interval)

    def _clear_window(self) -> None:
        self.window: list[list[int]] = [[] for _ in DIFFICULTIES]
        self.lower_bound = 0
        self.num_generations = 0

    def choose_targets(
        self, lengths: Sequence[Sequence[int]], lower_bound: int, num_generations: int
    ) -> list[int | None]:
        """A target in tokens for each of `DIFFICULTIES`; `None` means the longest response of a batch."""
        candidates = candidate_targets(lower_bound, self.upper_bound, self.interval)
        num_right = right_answers(num_generations, self.rounding)
        return [
            smallest_target(lengths_d, candidates, num_right_d, self.expected_correct)
            for lengths_d, num_right_d in zip(lengths, num_right, strict=True)
        ]

    def adaptive_targets(self, rollouts: Rollouts) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: Target of each completion by the solve rate of its prompt, in tokens."""
        chosen = self.targets
        if chosen is None:
            lengths = lengths_by_difficulty(rollouts)
            chosen = self.choose_targets(lengths, _lowest(rollouts), rollouts.num_generations)
        longest = int(rollouts.lengths.max())
        targets = torch.tensor([longest if target is None else target for target in chosen])
        return targets[difficulty(rollouts.solve_rates.nan_to_num(), "shaping")]

    def shape(self, rollouts: Rollouts) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: Scores with the bonus; NaN where unscorable."""
        return self._with_bonus(rollouts, self.adaptive_targets(rollouts))

    def observe(self, rollouts: Rollouts) -> None:
        """Adds the lengths of a training batch to the window."""
        lowest = _lowest(rollouts)
        self.lower_bound = min(self.lower_bound or lowest, lowest)
        self.num_generations = rollouts.num_generations
        for held, new in zip(self.window, lengths_by_difficulty(rollouts), strict=True):
            held += new

    def step(self) -> None:
        """Counts policy updates and, every `refresh_steps`, chooses the targets from the window."""
        self.steps_since_refresh += 1
        if self.steps_since_refresh >= self.refresh_steps and any(self.window):
            self.targets = self.choose_targets(self.window, self.lower_bound, self.num_generations)
            self.steps_since_refresh = 0
            self._clear_window()

    def statistics(self) -> dict[str, float]:
        """The chosen targets in tokens, except those that are the longest response of the batch."""
        chosen = zip(DIFFICULTIES, self.targets or (), strict=False)
        return {f"target_{name}": float(target) for name, target in chosen if target is not None}


@dataclass
class LaserDE(LaserD):
    r"""LASER-DE: LASER-D that also encourages exploration, a bonus for wrong answers beyond their target.

    $$ r_{DE}(y) = r_D(y) + \alpha \cdot (1 - \mathbb{I}(R)) \cdot \mathbb{I}(L(y) > L_A) $$

    Wrong answers without an end get no bonus.

    Use: as LASER-D, if the model should keep looking for an answer on prompts that it fails.

    Source: LASER-DE in [LASER](https://huggingface.co/papers/2505.15612). The guard against repetitive text in the
    release never fires and is left out.

    Differs: as [`LaserD`]; it has the same parameters.
    """

    name = "laser_de"

    def shape(self, rollouts: Rollouts) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: Scores with both bonuses; NaN where unscorable."""
        is_beyond = rollouts.lengths > self.adaptive_targets(rollouts)
        explores = (self.base_rewards(rollouts) == WRONG_SCORE) & is_beyond
        return super().shape(rollouts) + self.alpha * explores.double()


def _lowest(rollouts: Rollouts) -> int:
    return max(1, int(rollouts.target_lengths.min()))
