"""LASER-D and LASER-DE: LASER with a target by difficulty, chosen anew every few steps.

Paper: [Learn to Reason Efficiently with Adaptive Length-based Reward Shaping](https://huggingface.co/papers/2505.15612).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from leash_trl.length_control.laser import WRONG_SCORE, Laser, within_target_bonus
from leash_trl.length_control.laser_targets import (
    DIFFICULTIES,
    candidate_targets,
    difficulty,
    lengths_by_difficulty,
    right_answers,
    smallest_target,
)
from leash_trl.length_control.rollouts import Rollouts


def exploration_bonus(
    scores: torch.Tensor, lengths: torch.Tensor, target_lengths: torch.Tensor, alpha: float
) -> torch.Tensor:
    r"""Bonus of wrong answers beyond the target, in reward units; none for those without an end.

    $$ \alpha \cdot (1 - \mathbb{I}(R)) \cdot \mathbb{I}(L(y) > L_A) $$

    Source: LASER-DE in [LASER](https://huggingface.co/papers/2505.15612). The guard against repetitive text in the
    release never fires and is left out.

    Example:
        >>> scores, targets = torch.tensor([-0.5, -0.5, -1.0, 1.0]), torch.tensor([4096] * 4)
        >>> exploration_bonus(scores, torch.tensor([4097, 4096, 9000, 9000]), targets, 0.5).tolist()
        [0.5, 0.0, 0.0, 0.0]
    """
    return alpha * ((scores == WRONG_SCORE) & (lengths > target_lengths)).double()


@dataclass
class LaserD(Laser):
    """LASER-D: LASER whose target depends on how often the prompt is solved.

    Where no candidate will do, which is the rule for hard prompts, the target is the longest response of the batch.

    Use: where easy and hard prompts are mixed, and one target would be wrong for both.

    Source: sections 2 to 4 of [LASER](https://huggingface.co/papers/2505.15612), see [`smallest_target`].

    Differs: the paper chooses targets from 500 training prompts sampled for it; `refresh_from="window"` uses the
    training batches since the last choice, which costs nothing. Before the first choice a batch is shaped by targets
    of its own. The lower bound of the candidates is the smallest target among the prompts. A response that nobody
    could score counts by its length, as the others of its prompt do, if one of them was scored.

    Args:
        alpha (`float`, *optional*, defaults to `0.5`):
            The bonus in reward units.
        refresh_from (`str`, *optional*, defaults to `"window"`):
            `"window"`, or `"rollouts"` for the paper's extra samples.
        refresh_steps (`int`, *optional*, defaults to `20`):
            Policy updates between two choices.
        monitor_prompts (`int`, *optional*, defaults to `500`):
            Training prompts to sample with `refresh_from="rollouts"`.
        interval (`int`, *optional*, defaults to `1024`), upper_bound (`int`, *optional*, defaults to `16384`):
            Distance and maximum of the candidate targets in tokens.
        expected_correct (`int`, *optional*, defaults to `1`):
            Right answers that must be expected under a target.
        rounding (`str`, *optional*, defaults to `"paper"`):
            `"paper"` or `"release"`, see [`right_answers`]; the release's targets are longer.

    Raises:
        `ValueError`: If a value is out of range.
    """

    name: ClassVar[str] = "laser_d"

    refresh_from: Literal["window", "rollouts"] = "window"
    refresh_steps: int = 20
    monitor_prompts: int = 500
    interval: int = 1024
    upper_bound: int = 16384
    expected_correct: int = 1
    rounding: Literal["paper", "release"] = "paper"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("refresh_steps", "monitor_prompts", "interval", "upper_bound", "expected_correct"):
            if type(value := getattr(self, name)) is not int or value < 1:
                raise ValueError(f"{name} is {value!r}, but must be a positive whole number")
        for name, allowed in (("refresh_from", ("window", "rollouts")), ("rounding", ("paper", "release"))):
            if (value := getattr(self, name)) not in allowed:
                raise ValueError(f"{name} is {value!r}, but must be {allowed[0]!r} or {allowed[1]!r}")
        self.targets: list[int | None] | None = None
        self.steps_since_refresh = 0
        self._longest = self.upper_bound
        self._clear_window()

    def check(self, target_length: int | None, max_completion_length: float, num_generations: int) -> None:
        """Raises `ValueError` if no candidate target lies between the target and `upper_bound`."""
        if target_length is not None and target_length > self.upper_bound:
            raise ValueError(
                f"upper_bound is {self.upper_bound}, but must not be below target_length={target_length}, where the "
                "candidate targets begin; raise it"
            )

    def _clear_window(self) -> None:
        self._window: list[list[int]] = [[] for _ in DIFFICULTIES]
        self._lower_bound = 0
        self._num_generations = 0

    def choose_targets(
        self, lengths: Sequence[Sequence[int]], lower_bound: int, num_generations: int
    ) -> list[int | None]:
        """A target in tokens for each of `DIFFICULTIES`; `None` stands for the longest response of a batch."""
        candidates = candidate_targets(lower_bound, self.upper_bound, self.interval)
        num_right = right_answers(num_generations, self.rounding)
        return [
            smallest_target(lengths_d, candidates, num_right_d, self.expected_correct)
            for lengths_d, num_right_d in zip(lengths, num_right, strict=True)
        ]

    def _targets_from(self, rollouts: Rollouts) -> list[int | None]:
        return self.choose_targets(lengths_by_difficulty(rollouts), _lowest(rollouts), rollouts.num_generations)

    def adaptive_targets(self, rollouts: Rollouts) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: Target of each completion by the solve rate of its prompt, in tokens."""
        chosen = self._targets_from(rollouts) if self.targets is None else self.targets
        longest = int(rollouts.lengths.max())
        targets = torch.tensor([longest if target is None else target for target in chosen])
        return targets[difficulty(rollouts.solve_rates.nan_to_num(), "shaping")]

    def shape(self, rollouts: Rollouts) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: Scores with the bonus; NaN where unscorable."""
        targets = self.adaptive_targets(rollouts)
        bonus = within_target_bonus(rollouts.is_correct, rollouts.lengths, targets, self.alpha)
        return self.base_rewards(rollouts) + bonus

    def observe(self, rollouts: Rollouts) -> None:
        """Adds the lengths of a training batch to the window."""
        self._longest = int(rollouts.lengths.max())
        if self.refresh_from == "rollouts":
            return
        lowest = _lowest(rollouts)
        self._lower_bound = min(self._lower_bound or lowest, lowest)
        self._num_generations = rollouts.num_generations
        for held, new in zip(self._window, lengths_by_difficulty(rollouts), strict=True):
            held += new

    def step(self) -> None:
        """Counts policy updates and, from the window, chooses the targets when it is time."""
        self.steps_since_refresh += 1
        if self.steps_since_refresh >= self.refresh_steps and any(self._window):
            self._refresh(self.choose_targets(self._window, self._lower_bound, self._num_generations))

    def _refresh(self, targets: list[int | None]) -> None:
        self.targets = targets
        self.steps_since_refresh = 0
        self._clear_window()

    @property
    def num_monitor_prompts(self) -> int:
        """`monitor_prompts` before training and when a refresh is due, with `refresh_from="rollouts"`; 0 otherwise."""
        is_due = self.targets is None or self.steps_since_refresh >= self.refresh_steps
        return self.monitor_prompts if self.refresh_from == "rollouts" and is_due else 0

    def monitor(self, rollouts: Rollouts) -> None:
        """Chooses the targets from the completions that `num_monitor_prompts` asked for."""
        self._refresh(self._targets_from(rollouts))

    def statistics(self) -> dict[str, float]:
        """The targets in tokens once they are chosen; for `None` the longest response of the last training batch."""
        return {
            f"target_{name}": float(self._longest if target is None else target)
            for name, target in zip(DIFFICULTIES, self.targets or (), strict=False)
        }

    def state_dict(self) -> dict[str, Any]:
        """Targets and window; lists are in the order of `DIFFICULTIES`."""
        return {
            "targets": None if self.targets is None else list(self.targets),
            "steps_since_refresh": self.steps_since_refresh,
            "window": [list(lengths) for lengths in self._window],
            "lower_bound": self._lower_bound,
            "num_generations": self._num_generations,
            "longest": self._longest,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over a saved state.

        Raises:
            `ValueError`: If something is missing or no number of tokens.
        """
        targets, window = state.get("targets", ()), state.get("window", [])
        names = ("steps_since_refresh", "lower_bound", "num_generations", "longest")
        counts: list[Any] = [state.get(name) for name in names]
        if targets is not None and not _is_triple(targets, lambda target: target is None or _is_count(target)):
            raise ValueError(f"the saved state holds targets={targets!r}, but they must be None or three lengths")
        if not _is_triple(window, lambda lengths: isinstance(lengths, list) and all(map(_is_count, lengths))):
            raise ValueError("the saved state holds a window that is not three lists of lengths")
        if not all(map(_is_count, counts)) or (any(window) and 0 in counts[1:3]):
            raise ValueError(
                f"the saved state holds {', '.join(names)} = {counts!r}, but they must be whole numbers from 0 "
                "on, and the middle two positive where the window holds lengths"
            )
        self.targets = None if targets is None else list(targets)
        self._window = [list(lengths) for lengths in window]
        self.steps_since_refresh, self._lower_bound, self._num_generations, self._longest = counts


@dataclass
class LaserDE(LaserD):
    """LASER-DE: LASER-D that also encourages exploration, a bonus for wrong answers beyond their target.

    Use: as LASER-D, where the model should keep looking for an answer on prompts that it fails.

    Source: LASER-DE in [LASER](https://huggingface.co/papers/2505.15612), see [`exploration_bonus`].

    Differs: as [`LaserD`], whose parameters it has.
    """

    name: ClassVar[str] = "laser_de"

    def shape(self, rollouts: Rollouts) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: Scores with both bonuses; NaN where unscorable."""
        targets = self.adaptive_targets(rollouts)
        scores = self.base_rewards(rollouts)
        return super().shape(rollouts) + exploration_bonus(scores, rollouts.lengths, targets, self.alpha)


def _lowest(rollouts: Rollouts) -> int:
    return max(1, int(rollouts.target_lengths.min()))


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_triple(values: Any, is_valid: Callable[[Any], bool]) -> bool:
    return isinstance(values, list) and len(values) == len(DIFFICULTIES) and all(map(is_valid, values))
