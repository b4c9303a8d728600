"""LEASH-Predictive, ours: a price on length that is eased off before the target, by as much as is still under way.

Two things make LEASH miss its target: dividing rewards by their group's deviation cancels lambda wherever all answers
are correct, and lengths go on falling after the price is gone. Here lambda weighs a length advantage that is
normalised by itself, and is the share of the full push that a forecast of the length asks for.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from leash_trl.length_control.advantages import group_advantages
from leash_trl.length_control.leash import Leash, relative_overshoot
from leash_trl.length_control.method import AdvantageRule, LengthControl, Rollouts, Score, hyperparameter, state_field


# Chosen on earlier toy plants and on the gym's seed 51 (recipes/gym/controllers.md).
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
        level (`float`): Logarithm of length over target that is expected of the next batch; `None` before the first
            one.
        push (`float`): $u$, running mean of lambda, dimensionless: what the momentum of the optimizer carries.
        response (`float`): $b$, by how much the logarithm falls in an update with a push of 1.
        drift (`float`): $d$, by how much it rises in an update without a push.
        used (`float`): lambda of the batch that the policy was last updated on.
        target (`float`): Target in tokens of all completions of that batch; `None` if they had several.
    """

    level: float | None = None
    push: float = 0.0
    response: float = RESPONSE_INIT
    drift: float = 0.0
    used: float = 0.0
    target: float | None = None

    def aimed_at(self, target: float | None) -> "Forecast":
        """The forecast with a new target in tokens: the length is still expected, so its ratio to the target moves."""
        if self.level is None or self.target is None or target is None:
            return self._replace(target=target)
        return self._replace(level=self.level + math.log(self.target / target), target=target)

    def corrected(self, violation: float) -> "Forecast":
        r"""The forecast after a batch has been measured by its violation $\hat J_P$.

        $$ e = \log(1 + \hat J_P) - y, \qquad y \leftarrow y + K e, \qquad
           b \leftarrow b - \eta_b \frac{e u}{u^2 + \varepsilon}, \qquad
           d \leftarrow d + \eta_d \frac{e \varepsilon}{u^2 + \varepsilon} $$

        $e$ is 0 in the first batch, whose logarithm is taken as it is. $b$ is clipped to `RESPONSE_BOUNDS`, $d$ to
        $[0, b]$.

        Source: ours; an observer of Luenberger's kind. $b$ and $d$ move by normalised least mean squares, but come
        near a plant's own only by chance: $b$ falls until lambda is enough, as an integral would.

        Example:
            >>> Forecast(level=0.5, push=0.0, response=0.25, drift=0.125).corrected(math.expm1(0.5))[:4]
            (0.5, 0.0, 0.25, 0.125)
        """
        measured = math.log(max(1.0 + violation, SHORTEST))
        expected = measured if self.level is None else self.level
        surprise = measured - expected
        least, most = RESPONSE_BOUNDS
        learned = surprise / (self.push**2 + QUIET)
        response = min(max(self.response - RESPONSE_RATE * learned * self.push, least), most)
        drift = min(max(self.drift + DRIFT_RATE * learned * QUIET, 0.0), response)
        return self._replace(level=expected + CORRECTION * surprise, response=response, drift=drift)

    def after_update(self, lam: float, momentum: float) -> "Forecast":
        r"""The forecast after one policy update with this lambda, by an optimizer with this momentum $\beta$. Source:
        ours.

        $$ u \leftarrow \beta u + (1 - \beta) \lambda, \qquad y \leftarrow y - b u + d $$

        Example:
            >>> Forecast(level=0.5, push=1.0, response=0.25).after_update(lam=0.0, momentum=0.5)[:4]
            (0.375, 0.5, 0.25, 0.0)
        """
        push = momentum * self.push + (1.0 - momentum) * lam
        level = None if self.level is None else self.level - self.response * push + self.drift
        return self._replace(level=level, push=push, used=lam)

    def needed_push(self, momentum: float) -> float:
        r"""Push for the next batch, dimensionless; negative if less than nothing is needed, infinite before the first.

        $$ \frac{y - b u m + d (H + m)}{b H}, \qquad m = \frac{\beta}{1 - \beta} $$

        After the last push the momentum still carries $m u$. Of what is then left, and of the drift until then,
        $1 / H$ is to go by the next update. With $y = 0$ and $b u = d$ it is $u$. Source: ours.

        Example:
            >>> round(Forecast(level=0.375, push=0.125, response=0.125).needed_push(momentum=0.9), 9)
            0.1875
        """
        if self.level is None:
            return math.inf
        carried = momentum / (1.0 - momentum)
        rest = self.level - self.response * self.push * carried + self.drift * (HORIZON + carried)
        return rest / (self.response * HORIZON)


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

    Use: to meet a target, with nothing to tune but it. Of random toy plants 56 % are within 5 % after 200 updates,
    61 % after 600; where half of the full push must hold the length, it stays 4 % too long, at 0.8 over 10 %. It
    pushes correct answers alone, so it needs prompts with two or more. No lambda makes answers longer.

    Source: ours. [GDPO](https://huggingface.co/papers/2601.05242) also has a length advantage of its own, but compares
    all answers of a prompt and divides the sum by its deviation over the batch, which would cancel lambda.

    Args:
        lambda_init (`float`): Weight of length before the first step. With 1, and `scale_rewards: group`, length
            counts as much as the task does.
        lambda_lr (`float`): Must be 0: there is no step size.
        momentum (`float`): $\beta$ of the optimizer: Adam's first one.
    """

    name = "leash_predictive"
    paper = None
    own_advantages = "group"
    uses_correctness = True

    lambda_init: float = hyperparameter(1.0, ge=0)
    lambda_lr: float = hyperparameter(0.0, ge=0, le=0)
    momentum: float = hyperparameter(0.9, ge=0, lt=1)
    forecasts: dict[str, Forecast] = state_field(dict)

    def next_lambda(self, name: str, observed: Sequence[Sequence[float]], is_sampled: bool) -> float:
        """What the forecast asks for; without new completions, the last lambda pushed once more, or none did."""
        forecast = Forecast(*self.forecasts.get(name, ()))
        used = forecast.used if is_sampled else 0.0
        if observed:
            used = self.price(name)
            target_lengths, lengths = zip(*observed, strict=True)
            forecast = forecast.aimed_at(target_lengths[0] if len(set(target_lengths)) == 1 else None)
            violation = self.violation(lengths, target_lengths)
            forecast = forecast if math.isnan(violation) else forecast.corrected(violation)
        forecast = self.forecasts[name] = forecast.after_update(used, self.momentum)
        return min(max(forecast.needed_push(self.momentum), self.lambda_min), self.lambda_max)

    def budget_statistics(self, name: str) -> dict[str, float]:
        forecast = Forecast(*self.forecasts.get(name, ()))
        return {**super().budget_statistics(name), "response": forecast.response, "drift": forecast.drift}

    reward_scale_problem = LengthControl.reward_scale_problem

    def base_rewards(self, rollouts: Rollouts) -> torch.Tensor:
        return rollouts.task_rewards

    def penalty(self, rollouts: Rollouts) -> torch.Tensor:
        return super().penalty(rollouts).where(rollouts.is_correct, 0.0)

    def shape(self, rollouts: Rollouts) -> torch.Tensor:
        return rollouts.task_rewards - self.penalty(rollouts)

    def score(self, rollouts: Rollouts, rule: AdvantageRule) -> Score:
        """`scale_rewards` is for the task's advantage alone; length is always measured by its group's deviation."""
        score, num_generations = super().score(rollouts, rule), rollouts.num_generations
        task = group_advantages(rollouts.task_rewards, num_generations, rule.scale_rewards, rule.epsilon)
        is_compared = rollouts.is_correct & ~torch.isnan(score.shaped)
        overshoot = relative_overshoot(rollouts.lengths, rollouts.target_lengths).where(is_compared, torch.nan)
        length = group_advantages(-overshoot, num_generations, "group", rule.epsilon)
        return replace(score, advantages=task + self._prices(rollouts) * length)
