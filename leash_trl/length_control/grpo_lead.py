"""GRPO-LEAD: a length reward by z-score among the correct answers, and advantages weighted by difficulty."""

import torch

from leash_trl.length_control import AdvantageRule, LengthControl, Paper, Rollouts, hyperparameter, standardized


class GRPOLead(LengthControl):
    r"""GRPO-LEAD: correct answers earn `exp(-alpha z)`, wrong ones -1; hard prompts have larger advantages.

    $$ r_i = c_i \exp(-\alpha z_i) - (1 - c_i), \qquad z_i = \frac{L_i - \mu}{\sigma + 10^{-6}}, \qquad
       A'_i = \begin{cases} A_i \, w(\rho) & A_i > 0 \\ A_i \, w(1 - \rho) & A_i \le 0 \end{cases}, \qquad
       w(\rho) = A + \frac{B - A}{1 + \exp(k (\rho - \rho_0))} $$

    $\mu$ and $\sigma$ are the mean and the sample standard deviation of the lengths of the prompt's correct answers,
    and $\rho$ is its solve rate. The advantage $A_i$ is always divided by the group's standard deviation;
    `scale_rewards` has no effect.

    Use: without a target, if hard prompts should have more weight and correct answers should become a little shorter.

    Source: [GRPO-LEAD](https://huggingface.co/papers/2504.09696). The authors' release gives a reward of 0 to
    completions without a final answer and of -2 to repetitive ones; here, both are wrong answers with reward -1, as in
    the paper. The release also has no length reward for prompts whose three shortest completions have at most 4000
    tokens on average.

    Args:
        alpha (`float`): Strength of the length reward, dimensionless.
        weight_min (`float`), weight_max (`float`): Weights $A$ and $B$ for the easiest and the hardest prompts.
        weight_midpoint (`float`): Solve rate $\rho_0$ at which the weight is the mean of $A$ and $B$.
        weight_steepness (`float`): Steepness $k$ of the weight at that solve rate.
    """

    name = "grpo_lead"
    paper = Paper("GRPO-LEAD: A Difficulty-Aware Reinforcement Learning Approach", "2504.09696")
    depends_on = "prompt"
    scale_rewards = "group"

    alpha: float = hyperparameter(0.05, ge=0)
    weight_min: float = hyperparameter(0.4, ge=0)
    weight_max: float = hyperparameter(1.5, ge=0)
    weight_midpoint: float = 0.75
    weight_steepness: float = 10.0

    def base_rewards(self, rollouts: Rollouts) -> torch.Tensor:
        return 2.0 * rollouts.correctness - 1.0  # 1 or -1

    def shaped_rewards(self, rollouts: Rollouts) -> torch.Tensor:
        lengths_PG = rollouts.by_group(rollouts.lengths)
        is_correct_PG = rollouts.by_group(rollouts.is_correct)
        # Lengths are standardized in their group. Correctness is the weight, so the mean and the standard deviation
        # are those of the correct answers.
        z_scores_PG = standardized(lengths_PG, is_correct_PG, correction=1, epsilon=1e-6)
        # A wrong answer has the factor exp(0) = 1, so it earns -1 at any length.
        z_scores_PG = z_scores_PG.where(is_correct_PG, 0.0)
        factors_PG = torch.exp(-self.alpha * z_scores_PG)
        return self.base_rewards(rollouts) * factors_PG.flatten()

    def advantages(self, rollouts: Rollouts, shaped: torch.Tensor, rule: AdvantageRule) -> torch.Tensor:
        advantages_N = super().advantages(rollouts, shaped, rule)  # A_i
        rates_N = rollouts.solve_rates  # rho
        # Weights fall with the solve rate: a correct answer counts most where few answers are correct, and a wrong one
        # where few are wrong.
        weights_N = torch.where(
            advantages_N > 0, self.difficulty_weights(rates_N), self.difficulty_weights(1.0 - rates_N)
        )
        return (advantages_N * weights_N).nan_to_num(nan=0.0)  # an unscorable prompt has no solve rate

    def difficulty_weights(self, rates: torch.Tensor) -> torch.Tensor:
        """Returns the weights $w$ for solve rates, dimensionless."""
        # 1 / (1 + exp(k (rho - rho_0)))
        shares = torch.sigmoid(self.weight_steepness * (self.weight_midpoint - rates))
        return self.weight_min + (self.weight_max - self.weight_min) * shares
