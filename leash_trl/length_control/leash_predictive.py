"""LEASH-Predictive, ours: a price on length that is eased off before the target, by as much as is still under way.

Two things make LEASH miss its target. Dividing rewards by their group's standard deviation cancels lambda wherever all
answers are correct, so that any price pushes at full strength. And lengths go on falling after the price is gone: the
multiplier takes as long to come down as it took to rise, and the momentum of the optimizer carries on. Here lambda
weighs a length advantage that is normalised by itself, so half of it pushes half as hard; and it is the share of the
full push that, by the response measured so far, is needed to meet the target.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from leash_trl.length_control.advantages import Scaling, group_advantages
from leash_trl.length_control.checked_values import is_number, saved_value
from leash_trl.length_control.leash import Leash, relative_overshoot
from leash_trl.length_control.multiplier import Multiplier
from leash_trl.length_control.rollouts import Rollouts


CORRECTION = 0.25  # K, share of a surprise that the forecast takes in
LEARNING_RATE = 0.02  # eta, of the response
LEAST_POWER = 0.1  # epsilon, so that the response is not learned from noise while there is no push
MOMENTUM = 0.9  # beta, the optimizer's: Adam's first one
HORIZON = 10.0  # H, updates of push that the rest of the way is spread over
RESPONSE_INIT = 0.04
RESPONSE_BOUNDS = (1e-4, 0.3)
SHORTEST = 0.05  # of the target; a batch below it counts as if at it, whose logarithm is finite


class Forecast(NamedTuple):
    """What is known of a length under control.

    Args:
        level (`float`, *optional*):
            Logarithm of length over target that is expected of the next batch; `None` before the first one.
        push (`float`):
            Running mean of lambda, dimensionless: what the optimizer's momentum carries.
        response (`float`):
            Fall of the logarithm per update and unit of push.
    """

    level: float | None = None
    push: float = 0.0
    response: float = RESPONSE_INIT

    def updated(self, violation: float, lam: float) -> "Forecast":
        r"""The forecast for the batch after one with this violation, on which the policy was updated with `lam`.

        $$ e = \log(1 + \hat J_P) - \hat y, \qquad b \leftarrow \mathrm{clip}\left(b - \frac{\eta e u}{u^2 + \varepsilon}, b_{\min}, b_{\max}\right),
           $$

        $$ u \leftarrow \beta u + (1 - \beta) \lambda, \qquad \hat y \leftarrow \hat y + K e - b u $$

        A batch longer than expected raises the level by a share $K$ of the surprise $e$, and lowers the response.

        Source: ours; an observer of Luenberger's kind, whose gain $b$ is learned by normalised least mean squares.

        Example:
            >>> Forecast(level=0.5, push=1.0, response=0.25).updated(math.expm1(0.5), lam=1.0)
            Forecast(level=0.25, push=1.0, response=0.25)
        """
        measured = math.log(max(1.0 + violation, SHORTEST))
        expected = measured if self.level is None else self.level
        surprise = measured - expected
        least, most = RESPONSE_BOUNDS
        step = LEARNING_RATE * surprise * self.push / (self.push**2 + LEAST_POWER)
        response = min(max(self.response - step, least), most)
        push = MOMENTUM * self.push + (1.0 - MOMENTUM) * lam
        return Forecast(expected + CORRECTION * surprise - response * push, push, response)

    def needed_push(self) -> float:
        r"""Push that meets the target within $H$ updates, beyond what is under way; negative if that is too much.

        $$ \frac{1}{b H} \left( \hat y - b u \frac{\beta}{1 - \beta} \right) $$

        After the last push the momentum still carries $\beta u + \beta^2 u + \dots$

        Source: ours.

        Example:
            >>> round(Forecast(level=0.375, push=0.125, response=0.125).needed_push(), 9)
            0.1875
        """
        if self.level is None:
            return math.inf
        under_way = self.response * self.push * MOMENTUM / (1.0 - MOMENTUM)
        return (self.level - under_way) / (self.response * HORIZON)


@dataclass
class PredictiveMultiplier(Multiplier):
    """The weight of length that the forecast asks for.

    Args:
        forecast (`Forecast`):
            What is known of the lengths.
    """

    forecast: Forecast = Forecast()

    def move(self, violation: float) -> None:
        """Takes in the violation of the observed completions, and sets lambda for the next batch."""
        self.forecast = self.forecast.updated(violation, self.lam)
        self.lam = min(max(self.forecast.needed_push(), self.minimum), self.maximum)
        self.observed = []

    def statistics(self) -> dict[str, float]:
        """The multiplier and the response."""
        return {"lambda": self.lam, "response": self.forecast.response}

    def state_dict(self) -> dict[str, Any]:
        """The multiplier, the completions that wait for a step, and the forecast."""
        return {**super().state_dict(), **self.forecast._asdict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a saved state."""
        super().load_state_dict(state)
        level = saved_value(state, "level", lambda value: value is None or is_number(value), "a finite number or None")
        push = saved_value(state, "push", lambda value: is_number(value) and value >= 0, "a finite number, 0 or more")
        least, most = RESPONSE_BOUNDS
        needed = f"a number within [{least}, {most}]"
        response = saved_value(state, "response", lambda value: is_number(value) and least <= value <= most, needed)
        self.forecast = Forecast(level, float(push), float(response))


@dataclass
class LeashPredictive(Leash):
    r"""LEASH-Predictive, ours: a length advantage among correct answers, weighed by what meets the target in time.

    $$ \hat A_i = \hat A_i^{\text{task}} + \lambda \hat A_i^{\text{length}}, \qquad
       \hat A_i^{\text{length}} = \frac{\bar \Delta - \Delta_i}{\sigma_\Delta + \epsilon}, \qquad
       \lambda = \mathrm{clip}\left(\frac{1}{b H} \left(\hat y - b u \frac{\beta}{1 - \beta}\right),
       \lambda_{\min}, \lambda_{\max}\right) $$

    $\Delta_i$ is LEASH's relative overshoot; $\bar \Delta$ and $\sigma_\Delta$ are those of the correct answers of the
    prompt, and wrong ones have no length advantage. The task advantage is the usual one. $\hat y$ is the logarithm of
    length over target that [`Forecast`] expects of the next batch, $b$ the fall per update that it has measured, and
    $u$ what the momentum of the optimizer still carries. The shaped reward, $r_i - \lambda \Delta_i$ for correct
    answers, is for the log.

    Use: to meet a target and stay there, with nothing to tune but the target. No lambda makes answers longer: where
    they get shorter without a price, they end below the target.

    Source: ours. The advantage of its own for length is that of [GDPO](https://huggingface.co/papers/2601.05242),
    here among correct answers.

    Args:
        lambda_init (`float`, *optional*, defaults to `1.0`):
            Weight of length before the first step; with 1, length counts as much as correctness.
        lambda_lr (`float`, *optional*, defaults to `0.0`):
            Must be 0: there is no step size.
    """

    name = "leash_predictive"
    uses_correctness = True

    lambda_init: float = 1.0
    lambda_lr: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lambda_lr != 0:
            raise ValueError(
                f"lambda_lr is {self.lambda_lr}, but leash_predictive has no step size; leave lambda_lr out, or use "
                "length_control='leash'"
            )

    def new_multiplier(self) -> Multiplier:
        """A multiplier as it is before its first step."""
        return PredictiveMultiplier(self.lambda_init, self.lambda_lr, self.lambda_min, self.lambda_max)

    def base_rewards(self, rollouts: Rollouts) -> torch.Tensor:
        """Task rewards as they are."""
        return rollouts.task_rewards

    def penalty(self, rollouts: Rollouts) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: lambda times the overshoot of correct answers, 0 for others."""
        return super().penalty(rollouts).where(rollouts.is_correct, 0.0)

    def shape(self, rollouts: Rollouts) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: Task rewards less the penalty; NaN where the task reward is NaN."""
        return rollouts.task_rewards - self.penalty(rollouts)

    def advantages(
        self, shaped_rewards: torch.Tensor, rollouts: Rollouts, scale_rewards: Scaling, epsilon: float
    ) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: Advantage of the task plus lambda times that of length; 0 if unscorable.

        `scale_rewards` is for the task alone; length is always measured by its group's deviation.
        """
        num_generations = rollouts.num_generations
        task = group_advantages(rollouts.task_rewards, num_generations, scale_rewards, epsilon)
        overshoot = relative_overshoot(rollouts.lengths, rollouts.target_lengths)
        is_counted = rollouts.is_correct & ~torch.isnan(shaped_rewards)
        of_correct = (-overshoot).where(is_counted, torch.nan)
        return task + self._lambdas(rollouts) * group_advantages(of_correct, num_generations, "group", epsilon)

    def reward_scale_problem(self, rollouts: Rollouts) -> str | None:
        """`None`: any scale will do, as rewards are not clipped, and wrong answers do not pay for their length."""
        return None
