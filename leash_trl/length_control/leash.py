"""LEASH and its constant variant LEASH-C: the paper's Algorithm 1."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, ClassVar

import torch

from leash_trl.length_control.accuracy_floor import RunningAccuracy
from leash_trl.length_control.dual import projected_ascent
from leash_trl.length_control.method import LengthControl, Paper, Rollouts, hyperparameter, state_field


ONLY = ""  # name of the multiplier if there is one for all prompts
MOST_BUDGETS = 50  # more multipliers than this are probably a mistake


def budget_name(value: Any) -> str:
    """Name in the log and in checkpoints of the prompts with this value in the column of `multiplier_per`.

    Example:
        >>> [budget_name(value) for value in ("low", 64, 64.0, 0.5, None)]
        ['low', '64', '64', '0.5', 'none']
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return "none" if value is None else str(value)


def relative_overshoot(lengths: torch.Tensor, target_lengths: torch.Tensor | float) -> torch.Tensor:
    r"""How far each completion is over the target in tokens, dimensionless, in float64.

    $$ \Delta_i = \max\left(0, \frac{L(y_i)}{L_t} - 1\right) $$

    Source: Algorithm 1, line 9. One-sided: a completion at or under the target has 0 and earns no bonus.

    Example:
        >>> relative_overshoot(torch.tensor([100, 200, 300]), 200).tolist()
        [0.0, 0.0, 0.5]
    """
    return (lengths.double() / target_lengths - 1.0).clamp(min=0.0)


class Leash(LengthControl):
    r"""LEASH: the reward less lambda times the overshoot of the target; lambda follows the mean overshoot.

    $$ \tilde r_i = \mathrm{clip}(r_i - \lambda \Delta_i, -1, 1), \qquad
       \lambda \leftarrow \mathrm{clip}(\lambda + \alpha_\lambda \hat J_P, \lambda_{\min}, \lambda_{\max}) $$

    On the paper's scale of rewards, -1 and +1, a wrong answer sits on the lower clip and never feels its length.

    Use: to hold the mean length at a budget whose price is not known in advance; task rewards are -1 and +1.

    Source: Algorithm 1 of [LEASH](https://huggingface.co/papers/2512.21540). `multiplier_per` is ours: one constraint
    for each value of a column, whose multiplier climbs on the violation of its own prompts alone. So is the floor
    under accuracy: a share of lambda acts, the one that [`RunningAccuracy.above`] allows, and lambda does not climb
    while that share is below 1. With a target far below what the floor allows, answers become as short as it allows.

    Differs: the paper has one generation batch per policy update. Several updates on one batch make one dual step,
    after the first of them; several batches in one update make one on their pooled mean, and so do a batch whose
    update mixed precision skipped and the next batch.

    Args:
        lambda_init (`float`): Multiplier before the first dual step.
        lambda_lr (`float`): Step size of the dual step.
        lambda_min (`float`), lambda_max (`float`): Bounds of the multiplier.
        multiplier_per (`str`): Column of the data set. Prompts with the same value in it share a multiplier, which
            starts at `lambda_init` when the value is first seen; `target_length` gives each distinct target its own.
            By default there is one multiplier for all prompts.
        min_accuracy (`float`): Floor under the accuracy of the training batches, in [0, 1]; `multiplier_per` gives
            each value of its column a floor of its own.
        max_accuracy_drop (`float`): Floor as a distance below the best running accuracy so far, such as 0.02 for two
            points. With both, the higher floor counts.
    """

    name = "leash"
    paper: ClassVar[Paper | None] = Paper(
        "Leash: Adaptive Length Penalty and Reward Shaping for Efficient Large Reasoning Model",
        "2512.21540",
        "Yanhao Li and Lu Ma and Jiaran Zhang and Lexiang Tang and Wentao Zhang and Guibo Luo",
    )
    state = ("multiplier_per",)
    target_use = "required"
    uses_correctness = False
    needs_truncated = True

    lambda_init: float = hyperparameter(0.1, ge=0)
    lambda_lr: float = hyperparameter(0.005, ge=0)
    lambda_min: float = hyperparameter(0.0, ge=0)
    lambda_max: float = hyperparameter(1.0, ge=0)
    multiplier_per: str | None = None
    min_accuracy: float | None = hyperparameter(None, ge=0, le=1)
    max_accuracy_drop: float | None = hyperparameter(None, gt=0, le=1)
    # by name: each multiplier in reward units per unit of relative overshoot; target and length in tokens of its
    # completions since the last dual step; whether these are correct (NaN if not known); their running accuracy
    lambdas: dict[str, float] = state_field(dict)
    observed: dict[str, list[list[float]]] = state_field(dict)
    verdicts: dict[str, list[float]] = state_field(dict)
    accuracies: dict[str, RunningAccuracy] = state_field(dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.lambda_min <= self.lambda_init <= self.lambda_max:
            bounds = f"lambda_min={self.lambda_min} and lambda_max={self.lambda_max}"
            raise ValueError(f"lambda_init={self.lambda_init}, but must be within {bounds}")
        self.lambdas = {} if self.multiplier_per else {ONLY: float(self.lambda_init)}
        if self.has_floor:
            self.uses_correctness = True  # type: ignore[misc]  # of this method alone

    @property
    def lam(self) -> float:
        """The multiplier that the coming batch uses; the mean of all if there are several."""
        return fmean(self.lambdas.values() or [self.lambda_init])

    @property
    def has_floor(self) -> bool:
        """Whether accuracy can hold the price back."""
        return self.min_accuracy is not None or self.max_accuracy_drop is not None

    def price_share(self, name: str) -> float:
        """The share of a multiplier that acts on the coming batch, in [0, 1]."""
        return RunningAccuracy(*self.accuracies.get(name, ())).price_share

    def price(self, name: str) -> float:
        """What a multiplier's prompts pay in the coming batch, in reward units per unit of relative overshoot."""
        return self.lambdas.get(name, self.lambda_init) * self.price_share(name)

    def columns_read(self) -> tuple[str, ...]:
        return (self.multiplier_per,) if self.multiplier_per else ()

    def check_columns(self, columns: Mapping[str, Sequence[Any]]) -> str | None:
        """Warns of so many values that few prompts move each multiplier."""
        for column, values in columns.items():
            if (count := len(set(map(budget_name, values)))) > MOST_BUDGETS:
                return (
                    f"multiplier_per is {column!r}, which has {count} values in {len(values)} rows, so that most "
                    "multipliers stay near lambda_init; choose another"
                )
        return None

    def budgets(self, rollouts: Rollouts) -> Sequence[str] | None:
        if not self.multiplier_per:
            return None
        return [budget_name(value) for value in rollouts.columns[self.multiplier_per]]

    def _prices(self, rollouts: Rollouts) -> torch.Tensor:
        names = self.budgets(rollouts) or [ONLY] * len(rollouts.lengths)
        return torch.tensor([self.price(name) for name in names], dtype=torch.float64)

    def base_rewards(self, rollouts: Rollouts) -> torch.Tensor:
        return rollouts.task_rewards.clamp(-1.0, 1.0)

    def penalty(self, rollouts: Rollouts) -> torch.Tensor:
        return self._prices(rollouts) * relative_overshoot(rollouts.lengths, rollouts.target_lengths)

    def shape(self, rollouts: Rollouts) -> torch.Tensor:
        return (rollouts.task_rewards - self.penalty(rollouts)).clamp(-1.0, 1.0)

    def reward_scale_problem(self, rollouts: Rollouts) -> str | None:
        """A warning if the scale of the task rewards is not the paper's -1 to +1; `None` if nothing shows it."""
        scores = rollouts.task_rewards[~torch.isnan(rollouts.task_rewards)]
        if (scores.abs() > 1 + 1e-6).any():  # rewards and weights come in float32
            most = scores.abs().max().item()
            return f"task rewards reach {most:.3g}, but are clipped to [-1, 1]: lower them, or reward_weights"
        if (scores == 0).any() and (scores >= 0).all():
            return "wrong answers have task reward 0, so they learn to fail fast; LEASH is meant for -1 and +1"
        return None

    def observe(self, rollouts: Rollouts) -> None:
        names = self.budgets(rollouts) or [ONLY] * len(rollouts.lengths)
        verdicts = rollouts.correctness.tolist()
        for name, verdict, *pair in zip(
            names, verdicts, rollouts.target_lengths.tolist(), rollouts.lengths.tolist(), strict=True
        ):
            self.lambdas.setdefault(name, float(self.lambda_init))
            self.observed.setdefault(name, []).append(pair)
            if self.has_floor:
                self.verdicts.setdefault(name, []).append(verdict)

    def step(self) -> None:
        observed, self.observed = self.observed, {}
        verdicts, self.verdicts = self.verdicts, {}
        for name in self.lambdas:
            self.lambdas[name] = self.next_lambda(name, observed.get(name, []), is_sampled=not observed)
        for name, own in verdicts.items():
            known = [verdict for verdict in own if not math.isnan(verdict)]
            if not known:
                continue
            running = RunningAccuracy(*self.accuracies.get(name, ())).after(fmean(known))
            drop = 1.0 if self.max_accuracy_drop is None else self.max_accuracy_drop
            self.accuracies[name] = running.above(max(self.min_accuracy or 0.0, running.best - drop))

    def next_lambda(self, name: str, observed: Sequence[Sequence[float]], is_sampled: bool) -> float:
        """One multiplier after a policy update.

        Args:
            observed (`Sequence[Sequence[float]]`): Target and length in tokens of its completions since the last
                update; without any it stays.
            is_sampled (`bool`): Without any: whether the update was on its last completions, or on those of others.
        """
        if not observed:
            return self.lambdas[name]
        target_lengths, lengths = zip(*observed, strict=True)
        violation = self.violation(lengths, target_lengths)
        # a multiplier that is held back may fall, but would wind up
        most = self.lambda_max if self.price_share(name) == 1 else self.lambdas[name]
        return projected_ascent(self.lambdas[name], violation, self.lambda_lr, self.lambda_min, most)

    def budget_statistics(self, name: str) -> dict[str, float]:
        state = {"lambda": self.lambdas.get(name, float(self.lambda_init))}
        if self.has_floor:
            level = RunningAccuracy(*self.accuracies.get(name, ())).level
            state |= {"running_accuracy": level, "price_share": self.price_share(name)}
        return state

    def statistics(self) -> dict[str, float]:
        return {"lambda": self.lam} if self.multiplier_per else self.budget_statistics(ONLY)


class LeashC(Leash):
    """LEASH-C: LEASH with the multiplier frozen at `lambda_init`.

    Use: if a price is known to work, and as the control that shows what adapting it gains.

    Source: section 4 of [LEASH](https://huggingface.co/papers/2512.21540); 0.1 for the 1.5B, 0.2 for the 4B model.

    Args:
        lambda_lr (`float`): Must be 0.
    """

    name = "leash_c"

    lambda_lr: float = hyperparameter(0.0, ge=0, le=0)
