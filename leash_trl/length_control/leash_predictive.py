"""LEASH-Predictive, ours: a length advantage whose weight lambda follows a forecast of the length.

Two things make LEASH miss its target. Where all answers of a prompt are correct, dividing rewards by their standard
deviation cancels lambda. And lengths keep falling after lambda has reached 0. Here, the length has an advantage of its
own, normalized separately and weighted by lambda. Lambda decreases before the target is reached, by as much as the
length is expected to fall anyway.
"""

import torch

from leash_trl.length_control import (
    AdvantageRule,
    LengthControl,
    Rollouts,
    group_advantages,
    hyperparameter,
)
from leash_trl.length_control.dual import clipped
from leash_trl.length_control.leash import Leash, Multiplier


class LeashPredictive(Leash):
    r"""LEASH-Predictive, ours: a length advantage among correct answers, weighted by a forecast of the length.

    $$ \hat A_i = \hat A_i^{\text{task}} + \lambda \hat A_i^{\text{length}}, \qquad
       \hat A_i^{\text{length}} = \frac{\bar \Delta - \Delta_i}{\sigma_\Delta + \epsilon}, \qquad
       \lambda = \mathrm{clip}\left(\frac{y - b u m + d (H + m)}{b H}, \lambda_{\min}, \lambda_{\max}\right) $$

    $\Delta_i$ is LEASH's relative overshoot. Its mean $\bar \Delta$ and standard deviation $\sigma_\Delta$ are over
    the correct answers of the prompt; the length advantage of wrong answers is 0. The task advantage is GRPO's. $y$ is
    the logarithm of the ratio of length to target that a [`Forecast`] expects for the next batch, $b$ and $d$ are its
    fall with full push and its rise without push per update, $u$ is the push that the optimizer's momentum carries,
    $m = \beta / (1 - \beta)$ is the number of updates for which this push lasts, and $H$ is the number of updates over
    which the remaining change is spread. The shaped reward, $r_i - \lambda \Delta_i$ for correct answers, is only
    logged.

    By default, answers that are shorter than the target stay so. With a negative `lambda_min`, lambda becomes negative
    once the forecast is below the target; then $\Delta_i = \min(0, L(y_i) / L_t - 1)$, so correct answers below the
    target are worth less, and the mean length returns to it. $d$ may then be negative, for lengths that fall without a
    push. Answers to easy prompts, which need fewer tokens than the target, become longer too.

    Use: to reach a target without tuning anything else. Among random simulated systems, 68 % are within 5 % of the
    target after 200 updates and 82 % after 600 (with the default `lambda_min`). Only prompts with at least two correct
    answers have a length advantage.

    Source: ours. [GDPO](https://huggingface.co/papers/2601.05242) also normalizes a separate length advantage, but
    compares all answers of a prompt and divides the sum of advantages by its standard deviation over the batch, which
    would cancel lambda.

    Args:
        lambda_init (`float`): Weight of the length advantage before the first dual step. With 1 and `scale_rewards:
            group`, length counts as much as the task reward.
        lambda_lr (`float`): Must be 0, since there is no step size.
        lambda_min (`float`): Lower bound of lambda. With -1, answers that are too short become longer again.
        adam_beta1 (`float`): Momentum $\beta$ of the optimizer, the first beta of Adam. `LeashGRPOConfig` passes that
            of the run; for other trainers, set it if it is not 0.9.
    """

    name = "leash_predictive"
    paper = None
    depends_on = "prompt"
    advantages_have_mean_zero = True

    lambda_init: float = hyperparameter(1.0, ge=0)
    lambda_lr: float = hyperparameter(0.0, eq=0)
    lambda_min: float = hyperparameter(0.0, ge=-1)
    adam_beta1: float = hyperparameter(0.9, ge=0, lt=1)

    def dual_step(self, multiplier: Multiplier, reuses_completions: bool) -> None:
        forecast = multiplier.forecast
        lam = self._lambda_of_update(multiplier, reuses_completions)
        if multiplier.observed:
            forecast = forecast.for_target(multiplier.common_target)
            forecast = forecast.after_batch(multiplier.violation, self.lambda_min)
        multiplier.forecast = forecast.after_update(lam, self.adam_beta1)
        # Lambda is not updated in the updates of `release_share`, while the forecast is.
        if not self.is_released:
            needed = multiplier.forecast.needed_lambda(self.adam_beta1)
            multiplier.lam = clipped(needed, self.lambda_min, self.lambda_max)

    def _lambda_of_update(self, multiplier: Multiplier, reuses_completions: bool) -> float:
        """Returns the lambda with which a multiplier's prompts were penalized in the update that has just been
        done."""
        if multiplier.observed:
            return self.penalty_coefficient(multiplier)
        if reuses_completions:
            return multiplier.forecast.last_lambda
        return 0.0  # the update was on completions of other multipliers

    def budget_statistics(self, name: str) -> dict[str, float]:
        forecast = self.multiplier(name).forecast
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
