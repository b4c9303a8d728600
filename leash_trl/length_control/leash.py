"""LEASH and its constant variant LEASH-C: the paper's Algorithm 1."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, ClassVar, NamedTuple

import torch

from leash_trl.length_control import LengthControl, Paper, Rollouts, hyperparameter, state_field
from leash_trl.length_control.accuracy_floor import RunningAccuracy
from leash_trl.length_control.dual import mean_violation, projected_ascent
from leash_trl.length_control.forecast import Forecast
from leash_trl.length_control.rollouts import FLOAT32_ERROR


COMMON_MULTIPLIER = ""  # name of the multiplier if all prompts share one


class Observation(NamedTuple):
    """What the dual step needs to know of a completion.

    Args:
        length (`float`), target (`float`): In tokens, or in the unit of `length_of`; the target is NaN if there is
            none.
        correctness (`float`): 1 or 0; NaN if it is not known.
    """

    length: float
    target: float
    correctness: float


@dataclass
class Multiplier:
    """What is kept of the prompts that share a lambda.

    Args:
        lam (`float`): Lambda without `release_factor`, in reward units per unit of relative overshoot.
        accuracy ([`RunningAccuracy`]): Accuracy of the prompts so far; `None` until a floor has needed it.
        forecast ([`Forecast`]): Forecast of their length; only LEASH-Predictive updates it.
        observed (`list[Observation]`): Their completions since the last dual step.
    """

    lam: float
    accuracy: RunningAccuracy | None = None
    forecast: Forecast = field(default_factory=Forecast)
    observed: list[Observation] = field(default_factory=list)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Multiplier":
        """Returns a multiplier from the JSON of a checkpoint, in which tuples have become lists."""
        return cls(
            lam=state["lam"],
            accuracy=None if state["accuracy"] is None else RunningAccuracy(*state["accuracy"]),
            forecast=Forecast(*state["forecast"]),
            observed=[Observation(*values) for values in state["observed"]],
        )

    @property
    def running_accuracy(self) -> RunningAccuracy:
        """The accuracy so far; until a floor has needed it, an initial value with which the full penalty applies."""
        return self.accuracy or RunningAccuracy()

    @property
    def violation(self) -> float:
        """The violation of the constraint by the completions since the last dual step, see [`mean_violation`]."""
        lengths = [completion.length for completion in self.observed]
        targets = [completion.target for completion in self.observed]
        return mean_violation(lengths, targets)

    @property
    def common_target(self) -> float | None:
        """The target of all completions since the last dual step; `None` if they have different targets or if there
        are none."""
        targets = {completion.target for completion in self.observed}
        return targets.pop() if len(targets) == 1 else None


def budget_name(value: Any) -> str:
    """Returns the name, in logs and checkpoints, of the multiplier for a value in the column `multiplier_per`.

    Example:
        >>> [budget_name(value) for value in ("low", 64, 64.0, 0.5, None)]
        ['low', '64', '64', '0.5', 'none']
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return "none" if value is None else str(value)


def relative_overshoot(lengths: torch.Tensor, target_lengths: torch.Tensor | float) -> torch.Tensor:
    r"""Returns how far each length exceeds its target, as a share of the target, in float64.

    $$ \Delta_i = \max\left(0, \frac{L(y_i)}{L_t} - 1\right) $$

    Source: Algorithm 1, line 9. The overshoot is one-sided: it is 0 for a completion at or below the target, which
    earns no bonus.

    Example:
        >>> relative_overshoot(torch.tensor([100, 200, 300]), 200).tolist()
        [0.0, 0.0, 0.5]
    """
    return (lengths.double() / target_lengths - 1.0).clamp(min=0.0)


class Leash(LengthControl):
    r"""LEASH: subtracts lambda times the relative overshoot of the target; lambda adapts to the constraint violation.

    $$ \tilde r_i = \mathrm{clip}(r_i - \lambda \Delta_i, -1, 1), \qquad
       \lambda \leftarrow \mathrm{clip}(\lambda + \alpha_\lambda \hat J_P, \lambda_{\min}, \lambda_{\max}) $$

    $\Delta_i$ is the [`relative_overshoot`], and $\hat J_P$ the [`mean_violation`] of the completions since the last
    dual step. With the paper's task rewards of -1 and +1, a wrong answer is already at the lower bound, so its length
    does not change its reward.

    Use: to bring the mean length to a target if the right penalty weight is not known; task rewards are -1 and +1.

    Source: Algorithm 1 of [LEASH](https://huggingface.co/papers/2512.21540). Three options are ours. `multiplier_per`
    sets one constraint for each value of a column, whose multiplier depends only on the violation of its own prompts.
    The accuracy floor multiplies a positive lambda by the share that [`RunningAccuracy.with_penalty_share`] allows,
    and lambda rises by that share of its step. If the target is too short for the floor, answers become about as short
    as the floor allows. The floor does not reduce a negative lambda, which makes answers longer. With `release_share`,
    a run ends with a smaller length penalty, as in the recipes for Nemotron 3 Ultra (`student_rlvr1.yaml` and
    `student_rlvr2.yaml` of NeMo-RL), which lower the penalty of the final answer from 0.25 to 0.08 for the last 50 of
    about 178 updates.

    Differs: the paper has one generation batch per policy update. Here, several updates on one batch make one dual
    step, after the first update. Several batches in one update make one dual step on the mean over all their
    completions. If mixed precision skips an update, its batch is pooled with the next one in the same way.

    Args:
        lambda_init (`float`): Multiplier before the first dual step.
        lambda_lr (`float`): Step size of the dual step.
        lambda_min (`float`), lambda_max (`float`): Bounds of the multiplier.
        multiplier_per (`str`): Column of the data set. Prompts with the same value in this column share a multiplier,
            which starts at `lambda_init` when the value is first seen; the column `target_length` gives each distinct
            target its own multiplier. By default all prompts share one multiplier.
        min_accuracy (`float`): Accuracy floor in [0, 1]; `None` for no floor. As the accuracy of the training batches
            comes near the floor, the penalty is reduced, and it goes on decreasing while accuracy is below the floor.
            Accuracy ends near the floor and may be below it for a time. With `multiplier_per`, the floor applies to
            each value of the column separately.
        release_share (`float`): Share of the run's policy updates, in [0, 1], with a smaller penalty at the end of the
            run, rounded to whole updates, but at least one; 0 for none. `release_factor` times lambda applies to the
            completions that are generated in these updates, and lambda itself is not updated, since it would rise to
            make up for the factor. An accuracy floor goes on adapting.
        release_factor (`float`): Factor, in [0, 1], of a positive or negative lambda in these updates. The product may
            be below `lambda_min`.
    """

    name = "leash"
    paper: ClassVar[Paper | None] = Paper(
        "LEASH: Adaptive Length Penalty and Reward Shaping for Efficient Large Reasoning Model",
        "2512.21540",
        "Yanhao Li and Lu Ma and Jiaran Zhang and Lexiang Tang and Wentao Zhang and Guibo Luo",
        {
            "booktitle": "Proceedings of the 64th Annual Meeting of the Association for Computational Linguistics "
            "(Volume 1: Long Papers)",
            "publisher": "Association for Computational Linguistics",
            "year": "2026",
            "pages": "2846--2856",
            "url": "https://aclanthology.org/2026.acl-long.129/",
        },
    )
    target_use = "required"
    needs_truncated = True

    lambda_init: float = hyperparameter(0.1, ge=0)
    lambda_lr: float = hyperparameter(0.005, ge=0)
    lambda_min: float = hyperparameter(0.0, ge=0)
    lambda_max: float = hyperparameter(1.0, ge=0)
    multiplier_per: str | None = None
    min_accuracy: float | None = hyperparameter(None, ge=0, le=1)
    release_share: float = hyperparameter(0.0, ge=0, le=1)
    release_factor: float = hyperparameter(0.25, ge=0, le=1)
    multipliers: dict[str, Multiplier] = state_field(dict)  # by name, such as "low" with `multiplier_per: effort`
    is_released: bool = state_field(bool)  # whether the next update is one of those of `release_share`
    # `multiplier_per`, by whose values the multipliers are named
    budget_column: str | None = state_field(lambda: None)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.lambda_min <= self.lambda_init <= self.lambda_max:
            raise ValueError(
                f"lambda_init={self.lambda_init}, but must be between lambda_min={self.lambda_min} and "
                f"lambda_max={self.lambda_max}"
            )
        # With `multiplier_per`, a multiplier is added when its value of this column is first seen. Without it, there
        # is a single one, whose name is `COMMON_MULTIPLIER`.
        self.budget_column = self.multiplier_per
        if not self.multiplier_per:
            self.multipliers = {COMMON_MULTIPLIER: Multiplier(float(self.lambda_init))}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a saved state; raises `ValueError` if its multipliers belong to another column."""
        # The saved multipliers are named by the values of this column, so the values of another column would not find
        # them.
        column = state["budget_column"]
        if column != self.multiplier_per:
            raise ValueError(
                f"multiplier_per is {self.multiplier_per!r}, but {column!r} in the saved state; set it to {column!r}"
            )
        super().load_state_dict(state)
        self.multipliers = {name: Multiplier.from_state(saved) for name, saved in state["multipliers"].items()}

    @property
    def lambdas(self) -> dict[str, float]:
        """The multipliers by name, without `release_factor`, such as `{"low": 0.1, "high": 0.0}`."""
        return {name: multiplier.lam for name, multiplier in self.multipliers.items()}

    @property
    def lam(self) -> float:
        """The multiplier for the next batch; the mean if there are several."""
        return fmean(self.applied_lambda(self.multiplier(name)) for name in self.multipliers or [COMMON_MULTIPLIER])

    def multiplier(self, name: str) -> Multiplier:
        """Returns the multiplier of this name, or a new one if no training batch has had the name."""
        return self.multipliers.get(name) or Multiplier(float(self.lambda_init))

    def applied_lambda(self, multiplier: Multiplier) -> float:
        """Returns the lambda of the next batch, before the accuracy floor holds back a part of it."""
        return multiplier.lam * self.release_factor if self.is_released else multiplier.lam

    def penalty_share(self, multiplier: Multiplier) -> float:
        """Returns the share of a positive lambda that is applied to the next batch, in [0, 1]."""
        if self.min_accuracy is None:  # even if the state was saved by a run with a floor
            return 1.0
        return multiplier.running_accuracy.penalty_share

    def penalty_coefficient(self, multiplier: Multiplier) -> float:
        """Returns the factor of the relative overshoot in the penalty of the next batch, in reward units: lambda, or
        the share of it that the accuracy floor allows."""
        lam = self.applied_lambda(multiplier)
        if lam <= 0:  # a negative lambda makes answers longer, which is allowed below the floor too
            return lam
        return lam * self.penalty_share(multiplier)

    def columns_read(self) -> tuple[str, ...]:
        return (self.multiplier_per,) if self.multiplier_per else ()

    def budgets(self, rollouts: Rollouts) -> Sequence[str] | None:
        if not self.multiplier_per:
            return None
        return [budget_name(value) for value in rollouts.columns[self.multiplier_per]]

    def _multiplier_names(self, rollouts: Rollouts) -> Sequence[str]:
        """Returns the name of the multiplier of each completion."""
        return self.budgets(rollouts) or [COMMON_MULTIPLIER] * len(rollouts.lengths)

    def _penalty_coefficients(self, rollouts: Rollouts) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: [`penalty_coefficient`] of each completion, in float64."""
        names = self._multiplier_names(rollouts)
        coefficients = [self.penalty_coefficient(self.multiplier(name)) for name in names]
        return torch.tensor(coefficients, dtype=torch.float64)

    def needs_correctness(self) -> str | None:
        # LEASH trains on task rewards of any kind, but its accuracy floor must know which answers are correct.
        return None if self.min_accuracy is None else "min_accuracy"

    def base_rewards(self, rollouts: Rollouts) -> torch.Tensor:
        return rollouts.task_rewards.clamp(-1.0, 1.0)

    def penalty(self, rollouts: Rollouts) -> torch.Tensor:
        overshoots_N = relative_overshoot(rollouts.lengths, rollouts.target_lengths)
        return self._penalty_coefficients(rollouts) * overshoots_N

    def shaped_rewards(self, rollouts: Rollouts) -> torch.Tensor:
        return (rollouts.task_rewards - self.penalty(rollouts)).clamp(-1.0, 1.0)

    def reward_warning(self, rollouts: Rollouts) -> str | None:
        """Returns a warning if the task rewards are not on the paper's scale of -1 to +1, else `None`."""
        task_rewards = rollouts.task_rewards
        # Shaped rewards are clipped to [-1, 1], where larger task rewards would all become equal.
        largest = task_rewards.nan_to_num().abs().max()
        if largest > 1 + FLOAT32_ERROR:
            return f"task rewards reach {largest:.3g}, but are clipped to [-1, 1]: lower reward_weights"
        # At -1, clipping cancels the penalty of a wrong answer. At 0 or above, a short wrong answer would earn more
        # than a long one.
        rewards_of_wrong = task_rewards[rollouts.is_scorable & ~rollouts.is_correct]
        if len(rewards_of_wrong) and (rewards_of_wrong >= 0).all():
            return (
                f"wrong answers have task reward {rewards_of_wrong.max():.3g}, so the model learns to fail early; "
                "LEASH needs -1 and +1"
            )
        return None

    def begin_update(self, num_done: int, num_updates: int) -> None:
        num_released = max(1, round(self.release_share * num_updates))
        self.is_released = self.release_share > 0 and num_done >= num_updates - num_released

    def observe(self, rollouts: Rollouts) -> None:
        lengths = rollouts.lengths.double().tolist()
        completions = zip(lengths, rollouts.target_lengths.tolist(), rollouts.correctness.tolist(), strict=True)
        for name, values in zip(self._multiplier_names(rollouts), completions, strict=True):
            multiplier = self.multipliers.setdefault(name, Multiplier(float(self.lambda_init)))
            multiplier.observed.append(Observation(*values))

    def step(self) -> None:
        # If there are no new completions, the update has reused those of an earlier update.
        reuses_completions = not any(multiplier.observed for multiplier in self.multipliers.values())
        for multiplier in self.multipliers.values():
            # The dual step needs the share of the penalty in the last batch, which the update of the accuracy then
            # changes.
            self.dual_step(multiplier, reuses_completions)
            self._update_accuracy(multiplier)
            multiplier.observed = []

    def dual_step(self, multiplier: Multiplier, reuses_completions: bool) -> None:
        """Changes a multiplier after a policy update, by its completions since the last update, if there are any.

        Args:
            reuses_completions (`bool`): `True` if no multiplier has new completions, because the update reused earlier
                ones.
        """
        # Lambda is not updated in the updates of `release_share`.
        if not multiplier.observed or self.is_released:
            return
        violation = multiplier.violation
        step_size = self.lambda_lr
        # If the accuracy floor holds back a part of the penalty, lambda rises only by the share that applies.
        # Otherwise lambda would go on rising without effect, and be far too high once all of it applies again.
        if violation > 0:
            step_size *= self.penalty_share(multiplier)
        multiplier.lam = projected_ascent(multiplier.lam, violation, step_size, self.lambda_min, self.lambda_max)

    def _update_accuracy(self, multiplier: Multiplier) -> None:
        """With an accuracy floor, adds the completions since the last step to a multiplier's running accuracy."""
        correctness = [completion.correctness for completion in multiplier.observed]
        known_correctness = [value for value in correctness if not math.isnan(value)]
        if self.min_accuracy is None or not known_correctness:
            return
        running_accuracy = multiplier.running_accuracy.after_batch(fmean(known_correctness))
        multiplier.accuracy = running_accuracy.with_penalty_share(self.min_accuracy)

    def budget_statistics(self, name: str) -> dict[str, float]:
        multiplier = self.multiplier(name)
        statistics = {"lambda": self.applied_lambda(multiplier)}
        if self.min_accuracy is not None:
            statistics["running_accuracy"] = multiplier.running_accuracy.mean_accuracy
            statistics["penalty_share"] = self.penalty_share(multiplier)
        return statistics

    def statistics(self) -> dict[str, float]:
        return {"lambda": self.lam} if self.multiplier_per else self.budget_statistics(COMMON_MULTIPLIER)


class LeashC(Leash):
    """LEASH-C: LEASH with the constant multiplier `lambda_init`.

    Use: if a good penalty weight is known, or as the baseline that shows what adapting the weight gains.

    Source: section 4 of [LEASH](https://huggingface.co/papers/2512.21540), with 0.1 for the 1.5B and 0.2 for the 4B
    model.

    Args:
        lambda_lr (`float`): Must be 0.
    """

    name = "leash_c"

    lambda_lr: float = hyperparameter(0.0, eq=0)
