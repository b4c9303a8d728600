"""LEASH-Predictive, ours: a price on length that is eased off before the target, by as much as is still under way.

Two things make LEASH miss its target. Dividing rewards by their group's standard deviation cancels lambda wherever all
answers are correct, so that any price pushes at full strength. And lengths go on falling after the price is gone: the
multiplier takes as long to come down as it took to rise, and the momentum of the optimizer carries on. Here lambda
weighs a length advantage that is normalised by itself, so half of it pushes half as hard; and it is the share of the
full push that a forecast of the length asks for.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from leash_trl.length_control.advantages import Scaling, group_advantages
from leash_trl.length_control.checked_values import is_number, saved_value
from leash_trl.length_control.leash import Leash, relative_overshoot
from leash_trl.length_control.multiplier import Multiplier
from leash_trl.length_control.rollouts import Rollouts


# Chosen on toy plants of CHOICE_SEED (tests/length_plants.py) and on the gym's seed 51.
CORRECTION = 0.15  # K, share of a surprise that the level takes in
RESPONSE_RATE = 0.02  # eta_b
DRIFT_RATE = 0.005  # eta_d
QUIET = 0.1  # epsilon, of the squared push: above it a surprise is laid to the response, below it to the drift
HORIZON = 10.0  # H, updates over which the rest of the way is spread
RESPONSE_INIT = 0.04
RESPONSE_BOUNDS = (1e-4, 0.3)
SHORTEST = 0.05  # of the target; a batch below it counts as if at it, whose logarithm is finite


class Forecast(NamedTuple):
    """What is known of a length under control.

    Args:
        level (`float`, *optional*):
            Logarithm of length over target that is expected of the next batch; `None` before the first one.
        push (`float`):
            $u$, running mean of lambda, dimensionless: what the momentum of the optimizer carries.
        response (`float`):
            $b$, by how much the logarithm falls in an update with a push of 1.
        drift (`float`):
            $d$, by how much it rises in an update without a push.
    """

    level: float | None = None
    push: float = 0.0
    response: float = RESPONSE_INIT
    drift: float = 0.0

    def corrected(self, violation: float) -> "Forecast":
        r"""The forecast after a batch has been measured.

        $$ e = \log(1 + \hat J_P) - y, \qquad y \leftarrow y + K e, \qquad
           b \leftarrow b - \eta_b \frac{e u}{u^2 + \varepsilon}, \qquad
           d \leftarrow d + \eta_d \frac{e \varepsilon}{u^2 + \varepsilon} $$

        $e$ is 0 in the first batch, whose logarithm is taken as it is. $b$ is clipped to `RESPONSE_BOUNDS`, $d$ to
        $[0, b]$. Lengths that fall less than expected lower the response and raise the drift, so that the forecast
        is right where a constant push holds a constant length.

        Source: ours; an observer of Luenberger's kind, whose $b$ and $d$ are learned by normalised least mean squares.

        Args:
            violation (`float`):
                $\hat J_P$ of the batch, dimensionless; below `SHORTEST - 1` it counts as that.

        Returns:
            `Forecast`: With the same push.

        Example:
            >>> Forecast(level=0.5, push=0.0, response=0.25, drift=0.125).corrected(math.expm1(0.5))
            Forecast(level=0.5, push=0.0, response=0.25, drift=0.125)
        """
        measured = math.log(max(1.0 + violation, SHORTEST))
        expected = measured if self.level is None else self.level
        surprise = measured - expected
        least, most = RESPONSE_BOUNDS
        learned = surprise / (self.push**2 + QUIET)
        response = min(max(self.response - RESPONSE_RATE * learned * self.push, least), most)
        drift = min(max(self.drift + DRIFT_RATE * learned * QUIET, 0.0), response)
        return Forecast(expected + CORRECTION * surprise, self.push, response, drift)

    def after_update(self, lam: float, momentum: float) -> "Forecast":
        r"""The forecast after one policy update with this lambda.

        $$ u \leftarrow \beta u + (1 - \beta) \lambda, \qquad y \leftarrow y - b u + d $$

        Source: ours.

        Args:
            lam (`float`):
                The lambda of the batch that was trained on, dimensionless.
            momentum (`float`):
                $\beta$ of the optimizer, in [0, 1): Adam's first one.

        Example:
            >>> Forecast(level=0.5, push=1.0, response=0.25).after_update(lam=0.0, momentum=0.5)
            Forecast(level=0.375, push=0.5, response=0.25, drift=0.0)
        """
        push = momentum * self.push + (1.0 - momentum) * lam
        level = None if self.level is None else self.level - self.response * push + self.drift
        return self._replace(level=level, push=push)

    def needed_push(self, momentum: float) -> float:
        r"""Push for the next batch, dimensionless; negative if less than nothing is needed.

        $$ \frac{y - b u m + d (H + m)}{b H}, \qquad m = \frac{\beta}{1 - \beta} $$

        After the last push the momentum still carries $\beta u + \beta^2 u + \dots = m u$. Of what is then left, and
        of the drift until then, $1 / H$ is to go by the next update. A push that balances the drift at the target is
        left as it is: with $y = 0$ and $b u = d$ it is $u$.

        Source: ours.

        Args:
            momentum (`float`):
                As for [`after_update`].

        Returns:
            `float`: Infinite before the first batch.

        Example:
            >>> round(Forecast(level=0.375, push=0.125, response=0.125).needed_push(momentum=0.9), 9)
            0.1875
        """
        if self.level is None:
            return math.inf
        carried = momentum / (1.0 - momentum)
        rest = self.level - self.response * self.push * carried + self.drift * (HORIZON + carried)
        return rest / (self.response * HORIZON)


@dataclass
class PredictiveMultiplier(Multiplier):
    """The weight of length that the forecast asks for.

    Args:
        momentum (`float`):
            As for [`Forecast.after_update`].
        used (`float`):
            lambda of the batch that the policy was last updated on.
        target (`float`, *optional*):
            Target in tokens of all completions of that batch; `None` if they had several.
        forecast (`Forecast`):
            What is known of the lengths.
    """

    momentum: float = 0.9
    used: float = 0.0
    target: float | None = None
    forecast: Forecast = field(default_factory=Forecast)

    def move(self, violation: float) -> None:
        """Takes in the violation of the observed completions and the update on them, and sets the next lambda."""
        self._follow_target()
        self.used = self.lam
        if not math.isnan(violation):
            self.forecast = self.forecast.corrected(violation)
        self._advance()
        self.observed = []

    def pass_by(self, is_sampled: bool) -> None:
        """Carries the forecast on by the last lambda once more, or by none if the batch was of other prompts."""
        self.used = self.used if is_sampled else 0.0
        self._advance()

    def _advance(self) -> None:
        self.forecast = self.forecast.after_update(self.used, self.momentum)
        self.lam = min(max(self.forecast.needed_push(self.momentum), self.minimum), self.maximum)

    def _follow_target(self) -> None:
        """Keeps the expected length, not its ratio, where a schedule has changed the one target of all prompts."""
        targets = {target for target, _ in self.observed}
        target = targets.pop() if len(targets) == 1 else None
        if target is not None and self.target is not None and self.forecast.level is not None:
            self.forecast = self.forecast._replace(level=self.forecast.level + math.log(self.target / target))
        self.target = target

    def statistics(self) -> dict[str, float]:
        """The multiplier, the response and the drift."""
        return {"lambda": self.lam, "response": self.forecast.response, "drift": self.forecast.drift}

    def state_dict(self) -> dict[str, Any]:
        """The multiplier, the completions that wait for a step, the last batch's lambda and target, the forecast."""
        return {**super().state_dict(), "used": self.used, "target": self.target, **self.forecast._asdict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a saved state.

        Raises:
            `ValueError`: If a value is missing or damaged.
        """
        super().load_state_dict(state)
        least, most = RESPONSE_BOUNDS
        self.used = float(saved_value(state, "used", _is_share, "a finite number, 0 or more"))
        self.target = saved_value(state, "target", lambda value: value is None or _is_share(value), "tokens or None")
        level = saved_value(state, "level", lambda value: value is None or is_number(value), "a finite number or None")
        push = saved_value(state, "push", _is_share, "a finite number, 0 or more")
        response = saved_value(
            state, "response", lambda value: is_number(value) and least <= value <= most, f"within [{least}, {most}]"
        )
        drift = saved_value(
            state, "drift", lambda value: _is_share(value) and value <= response, "within [0, response]"
        )
        self.forecast = Forecast(level, float(push), float(response), float(drift))


def _is_share(value: Any) -> bool:
    return is_number(value) and value >= 0


@dataclass
class LeashPredictive(Leash):
    r"""LEASH-Predictive, ours: a length advantage among correct answers, weighed by what a forecast asks for.

    $$ \hat A_i = \hat A_i^{\text{task}} + \lambda \hat A_i^{\text{length}}, \qquad
       \hat A_i^{\text{length}} = \frac{\bar \Delta - \Delta_i}{\sigma_\Delta + \epsilon}, \qquad
       \lambda = \mathrm{clip}\left(\frac{y - b u m + d (H + m)}{b H}, \lambda_{\min}, \lambda_{\max}\right) $$

    $\Delta_i$ is LEASH's relative overshoot; $\bar \Delta$ and $\sigma_\Delta$ are those of the correct answers of the
    prompt, and wrong ones have no length advantage. The task advantage is the usual one. $y$ is the logarithm of
    length over target that a [`Forecast`] expects of the next batch, $b$ and $d$ its fall and rise per update, $u$
    what the momentum of the optimizer still carries, $m = \beta / (1 - \beta)$ for how long. The shaped reward,
    $r_i - \lambda \Delta_i$ for correct answers, is for the log.

    Use: to meet a target and stay there, with nothing to tune but the target. It follows the mean length of all
    answers but pushes correct ones alone, so it needs prompts with two correct answers or more. No lambda makes
    answers longer: where they get shorter without a price, they end below the target.

    Source: ours. A length advantage of its own is also in [GDPO](https://huggingface.co/papers/2601.05242).

    Differs: GDPO compares all answers of a prompt and divides the sum of the advantages by its standard deviation over
    the batch, which would cancel lambda where length alone counts.

    Args:
        lambda_init (`float`, *optional*, defaults to `1.0`):
            Weight of length before the first step. With 1, and `scale_rewards: group`, length counts as much as the
            task does.
        lambda_lr (`float`, *optional*, defaults to `0.0`):
            Must be 0: there is no step size.
    """

    name = "leash_predictive"
    uses_correctness = True
    own_advantages = True

    lambda_init: float = 1.0
    lambda_lr: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lambda_lr != 0:
            raise ValueError(
                f"lambda_lr is {self.lambda_lr}, but leash_predictive has no step size; set lambda_lr to null, or use "
                "length_control='leash'"
            )

    def set_for_run(self, **settings: Any) -> None:
        """Sets what the configuration says for every method, and the momentum of the multipliers."""
        super().set_for_run(**settings)
        self.multipliers = {name: self.new_multiplier() for name in self.multipliers}

    def new_multiplier(self) -> Multiplier:
        """A multiplier as it is before its first step."""
        start = float(self.lambda_init)
        return PredictiveMultiplier(
            start, self.lambda_lr, self.lambda_min, self.lambda_max, [], self.optimizer_momentum
        )

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
        is_compared = rollouts.is_correct & ~torch.isnan(shaped_rewards)
        overshoot = relative_overshoot(rollouts.lengths, rollouts.target_lengths).where(is_compared, torch.nan)
        return task + self._lambdas(rollouts) * group_advantages(-overshoot, num_generations, "group", epsilon)

    def reward_scale_problem(self, rollouts: Rollouts) -> str | None:
        """A warning if no answer can be correct; other scales will do, as rewards are not clipped."""
        scores = rollouts.task_rewards[~torch.isnan(rollouts.task_rewards)]
        if rollouts.correctness_rewards is None and (scores == 0).any() and (scores <= 0).all():
            return (
                "the best task reward is 0, but only answers with a reward above 0 are correct, and only they learn "
                "to be shorter; shift the rewards, or name the function that decides in correctness_func"
            )
        return None
