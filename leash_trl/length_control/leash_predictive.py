"""LEASH-Predictive, ours: a length advantage whose weight lambda follows a forecast of the length.

Two things make LEASH miss its target. Where all answers of a prompt are correct, dividing rewards by their standard
deviation cancels lambda. And lengths keep falling after lambda has reached 0. Here, the length has an advantage of its
own, normalized separately and weighted by lambda. Lambda decreases before the target is reached, by as much as the
length is expected to fall anyway.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from leash_trl.length_control import (
    AdvantageRule,
    LengthControl,
    Rollouts,
    group_advantages,
    hyperparameter,
    state_field,
)
from leash_trl.length_control.dual import clipped, mean_violation
from leash_trl.length_control.leash import Leash, Observation


# Chosen on simulated systems of CHOICE_SEED (recipes/gym/length_plants.py) and on seed 51 of the gym.
LOG_LENGTH_NOISE = 0.1  # s, standard deviation of the logarithm of a batch's mean length
LOG_RATIO_WALK = 0.003  # q_y, unexplained change of that logarithm per update
RESPONSE_WALK = 0.6  # q_b, change of the logarithm of the response while the length changes by a factor of e
DRIFT_WALK = 0.0003  # q_d, change of the drift per update
SPREAD_UPDATES = 5.0  # H, number of updates over which the remaining change of length is spread
RESPONSE_INIT = 0.04
COVARIANCE_INIT = np.diag([LOG_LENGTH_NOISE**2, 0.8**2, 0.005**2])  # of y, log b and d, which are independent at first
MIN_RESPONSE = 5e-4
MAX_RESPONSE = 0.4
MAX_DRIFT = 0.95  # as a share of the response
MIN_LENGTH_RATIO = 0.05  # shares of the target below this are raised to it, so that their logarithm is finite


class Forecast(NamedTuple):
    r"""An extended Kalman filter of how the mean length responds to lambda. Its state is $(y, \log b, d)$:
    `after_batch` corrects it by a measured length, `after_update` moves it by one policy update, and `needed_push`
    returns the push that brings the length to its target.

    Args:
        log_ratio (`float`): $y$, logarithm of the ratio of length to target that is expected for the next batch;
            `None` before the first batch.
        push (`float`): $u$, running mean of lambda, dimensionless, which models the momentum of the optimizer.
        response (`float`): $b$, by how much the logarithm falls in one update if the push is 1.
        drift (`float`): $d$, by how much the logarithm rises in one update if the push is 0.
        last_lambda (`float`): Lambda of the batch on which the policy was last updated.
        target (`float`): Target in tokens of all completions of that batch; `None` if they had different targets.
        covariance (`Sequence[Sequence[float]]`): $P$, covariance of the errors of $y$, $\log b$ and $d$, of shape
            `(3, 3)`; lists, since checkpoints hold it.
    """

    log_ratio: float | None = None
    push: float = 0.0
    response: float = RESPONSE_INIT
    drift: float = 0.0
    last_lambda: float = 0.0
    target: float | None = None
    covariance: Sequence[Sequence[float]] = COVARIANCE_INIT.tolist()

    def for_target(self, target: float | None) -> "Forecast":
        """Returns the forecast for a new target in tokens: the expected length stays the same, its ratio to the target
        changes."""
        if self.log_ratio is None or self.target is None or target is None:
            return self._replace(target=target)
        return self._replace(log_ratio=self.log_ratio + math.log(self.target / target), target=target)

    def after_batch(self, violation: float) -> "Forecast":
        r"""Returns the forecast after a batch with the measured violation $\hat J_P$.

        $$ e = \log(1 + \hat J_P) - y, \qquad k = \frac{P_{\cdot y}}{P_{yy} + s^2}, \qquad
           (y, \log b, d) \leftarrow (y, \log b, d) + k e, \qquad P \leftarrow P - k P_{y \cdot} $$

        $e$ is the surprise. In the first batch, $y$ is the measured logarithm, so $e$ is 0. $b$ is clipped to
        `MIN_RESPONSE` and `MAX_RESPONSE`, $d$ to $[0, 0.95 b]$. Source: ours.
        """
        # 1 + violation is the mean ratio of length to target. The state of the filter is the logarithm of this ratio
        # (`log_ratio`), the logarithm of the response to lambda, and the drift.
        measured = math.log(max(1.0 + violation, MIN_LENGTH_RATIO))
        expected = measured if self.log_ratio is None else self.log_ratio
        surprise = measured - expected
        # Only the logarithm of the ratio is measured. The other two parts are corrected as far as their errors vary
        # with its error, by the first row of the covariance.
        covariance = np.array(self.covariance)  # P, of shape (3, 3)
        log_ratio_row = covariance[0]  # P_y.
        gain = log_ratio_row / (log_ratio_row[0] + LOG_LENGTH_NOISE**2)  # k, the Kalman gain
        log_ratio_gain, response_gain, drift_gain = gain.tolist()
        # The correction of the logarithm of the response is a factor of the response.
        response = clipped(self.response * math.exp(response_gain * surprise), MIN_RESPONSE, MAX_RESPONSE)
        return self._replace(
            log_ratio=expected + log_ratio_gain * surprise,
            response=response,
            drift=clipped(self.drift + drift_gain * surprise, 0.0, MAX_DRIFT * response),
            covariance=(covariance - np.outer(gain, log_ratio_row)).tolist(),
        )

    def after_update(self, lam: float, momentum: float) -> "Forecast":
        r"""Returns the forecast after one policy update with this lambda, by an optimizer with this momentum $\beta$.
        Source: ours.

        $$ u \leftarrow \beta u + (1 - \beta) \lambda, \qquad y \leftarrow y - b u + d, \qquad
           P \leftarrow F P F^\top + \mathrm{diag}(q_y^2, q_b^2 |b u - d|, q_d^2) $$

        $F$ is the identity matrix except for its first row, $(1, -b u, 1)$. The response is expected to change only
        while the length changes.
        """
        # The optimizer's momentum averages over updates, so lambda acts by its running mean, the push.
        push = momentum * self.push + (1.0 - momentum) * lam
        if self.log_ratio is None:  # no length has been measured yet
            return self._replace(push=push, last_lambda=lam)
        # The logarithm of length over target (`log_ratio`) falls by `fall` and rises by `drift`.
        fall = self.response * push
        # The response is expected to change only while the length does, so its variance grows with the change of
        # length.
        response_variance = RESPONSE_WALK**2 * abs(fall - self.drift)
        process_noise = np.diag([LOG_RATIO_WALK**2, response_variance, DRIFT_WALK**2])
        covariance = np.array(self.covariance)  # P
        # F P F^T, where F is the identity except for its first row, (1, -fall, 1). F P changes only the first row of
        # P, and (F P) F^T only the first column. It is no matrix product, since the last bit of that depends on the
        # processor, and a resumed run is to be the same everywhere.
        covariance[0] = covariance[0] - fall * covariance[1] + covariance[2]
        covariance[:, 0] = covariance[:, 0] - fall * covariance[:, 1] + covariance[:, 2]
        return self._replace(
            log_ratio=self.log_ratio - fall + self.drift,
            push=push,
            last_lambda=lam,
            covariance=(covariance + process_noise).tolist(),
        )

    def needed_push(self, momentum: float) -> float:
        r"""Returns the push that the next batch needs, dimensionless. It is negative if the length would fall too far
        even without a push, and infinite before the first batch.

        $$ \frac{y - b u m + d (H + m)}{b H}, \qquad m = \frac{\beta}{1 - \beta} $$

        Without any further push, the momentum would still add a push of $m u$ in all. Of the distance to the target
        that then remains, including the drift until then, the next update is to cover $1 / H$. If $y = 0$ and $b u =
        d$, the result is $u$, so the length stays at the target. Source: ours.

        Example:
            >>> round(Forecast(log_ratio=0.375, push=0.125, response=0.125).needed_push(momentum=0.9), 9)
            0.375
        """
        if self.log_ratio is None:  # no length has been measured yet: as much as `lambda_max` allows
            return math.inf
        # The optimizer's momentum goes on with the last push. Its whole effect is that of `carried_updates` updates
        # with this push.
        carried_updates = momentum / (1.0 - momentum)  # m
        carried_fall = self.response * self.push * carried_updates
        rise = self.drift * (SPREAD_UPDATES + carried_updates)
        # By this much, the logarithm of length over target must still fall. The push is chosen to cover
        # 1 / SPREAD_UPDATES of it in the next update.
        remaining = self.log_ratio - carried_fall + rise
        return remaining / (self.response * SPREAD_UPDATES)


class LeashPredictive(Leash):
    r"""LEASH-Predictive, ours: a length advantage among correct answers, weighted by a forecast of the length.

    $$ \hat A_i = \hat A_i^{\text{task}} + \lambda \hat A_i^{\text{length}}, \qquad
       \hat A_i^{\text{length}} = \frac{\bar \Delta - \Delta_i}{\sigma_\Delta + \epsilon}, \qquad
       \lambda = \mathrm{clip}\left(\frac{y - b u m + d (H + m)}{b H}, \lambda_{\min}, \lambda_{\max}\right) $$

    $\Delta_i$ is LEASH's relative overshoot. Its mean $\bar \Delta$ and standard deviation $\sigma_\Delta$ are over
    the correct answers of the prompt; the length advantage of wrong answers is 0. The task advantage is GRPO's. $y$ is
    the logarithm of the ratio of length to target that a [`Forecast`] expects for the next batch, $b$ and $d$ are its
    fall with full push and its rise without push per update, $u$ is the push that the optimizer's momentum carries,
    and $m = \beta / (1 - \beta)$ is the number of updates for which it lasts. The shaped reward, $r_i - \lambda
    \Delta_i$ for correct answers, is only logged.

    By default, answers that are shorter than the target stay so. With a negative `lambda_min`, lambda becomes negative
    once the forecast is below the target; then $\Delta_i = \min(0, L(y_i) / L_t - 1)$, so correct answers below the
    target are worth less, and the mean length returns to it. Answers to easy prompts, which need fewer tokens than the
    target, become longer too.

    Use: to reach a target without tuning anything else. Among random simulated systems, 67 % are within 5 % of the
    target after 200 updates and 81 % after 600 (with the default `lambda_min`). Only prompts with at least two correct
    answers have a length advantage.

    Source: ours. [GDPO](https://huggingface.co/papers/2601.05242) also normalizes a separate length advantage, but
    compares all answers of a prompt and divides the sum of advantages by its standard deviation over the batch, which
    would cancel lambda.

    Args:
        lambda_init (`float`): Weight of the length advantage before the first dual step. With 1 and `scale_rewards:
            group`, length counts as much as the task reward.
        lambda_lr (`float`): Must be 0, since there is no step size.
        lambda_min (`float`): Lower bound of lambda. With -1, answers that are too short become longer again.
        adam_beta1 (`float`): Momentum $\beta$ of the optimizer, the first beta of Adam; by default that of the run.
    """

    name = "leash_predictive"
    paper = None
    depends_on = "prompt"
    own_advantages = True
    advantages_have_mean_zero = True

    lambda_init: float = hyperparameter(1.0, ge=0)
    lambda_lr: float = hyperparameter(0.0, eq=0)
    lambda_min: float = hyperparameter(0.0, ge=-1)
    adam_beta1: float = hyperparameter(0.9, ge=0, lt=1)
    forecasts: dict[str, Forecast] = state_field(dict)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.forecasts = {name: Forecast(*values) for name, values in self.forecasts.items()}

    def forecast(self, name: str) -> Forecast:
        """Returns the forecast of a multiplier's prompts."""
        return self.forecasts.get(name, Forecast())

    def next_lambda(self, name: str, observed: Sequence[Observation], reuses_completions: bool) -> float:
        """Returns the push that the forecast asks for, clipped. If there are no new completions, the push of the last
        update was the same lambda again (`reuses_completions`) or 0."""
        forecast = self.forecast(name)
        # `lam` is the weight of length in the update that has just been done.
        if observed:
            lam = self.penalty_coefficient(name)
            lengths = [completion.length for completion in observed]
            targets = [completion.target for completion in observed]
            # The forecast is of the ratio of length to target, so it changes with the target, which is `None` if
            # completions had different ones.
            has_one_target = len(set(targets)) == 1
            forecast = forecast.for_target(targets[0] if has_one_target else None)
            forecast = forecast.after_batch(mean_violation(lengths, targets))
        elif reuses_completions:  # another update on the completions of the last one
            lam = forecast.last_lambda
        else:  # the update was on completions of other multipliers
            lam = 0.0
        forecast = forecast.after_update(lam, self.adam_beta1)
        self.forecasts[name] = forecast
        return clipped(forecast.needed_push(self.adam_beta1), self.lambda_min, self.lambda_max)

    def budget_statistics(self, name: str) -> dict[str, float]:
        forecast = self.forecast(name)
        return {**super().budget_statistics(name), "response": forecast.response, "drift": forecast.drift}

    needs_correctness = LengthControl.needs_correctness
    reward_warning = LengthControl.reward_warning

    def base_rewards(self, rollouts: Rollouts) -> torch.Tensor:
        return rollouts.task_rewards

    def penalized_excess(self, rollouts: Rollouts) -> torch.Tensor:
        r"""Returns the relative overshoot $\Delta_i$ of shape `(N,)`, float64; for a prompt with a negative lambda,
        minus the relative shortfall, $\min(0, L(y_i) / L_t - 1)$."""
        excess_N = rollouts.lengths.double() / rollouts.target_lengths - 1.0
        return excess_N.clamp(min=0.0).where(self._penalty_coefficients(rollouts) >= 0, excess_N.clamp(max=0.0))

    def penalty(self, rollouts: Rollouts) -> torch.Tensor:
        penalties_N = self._penalty_coefficients(rollouts) * self.penalized_excess(rollouts)
        return penalties_N.where(rollouts.is_correct, 0.0)

    def shaped_rewards(self, rollouts: Rollouts) -> torch.Tensor:
        return rollouts.task_rewards - self.penalty(rollouts)

    def advantages(self, rollouts: Rollouts, shaped: torch.Tensor, rule: AdvantageRule) -> torch.Tensor:
        """Adds the length advantage, which is always divided by its group's standard deviation, to the task advantage,
        to which `scale_rewards` applies."""
        num_generations = rollouts.num_generations
        task_advantages_N = rule(rollouts.task_rewards, num_generations)
        # Lengths are compared among the correct answers of a prompt that have a task reward. NaN leaves the others out
        # of mean and standard deviation, and gives them a length advantage of 0.
        is_compared_N = rollouts.is_correct & ~torch.isnan(shaped)
        excess_N = self.penalized_excess(rollouts).where(is_compared_N, torch.nan)
        length_advantages_N = group_advantages(-excess_N, num_generations, scale_rewards="group", epsilon=rule.epsilon)
        return task_advantages_N + self._penalty_coefficients(rollouts) * length_advantages_N
