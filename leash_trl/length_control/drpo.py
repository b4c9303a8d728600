"""DRPO: the weight of a correct answer falls with its length, but stays positive."""

import math

import torch

from leash_trl.length_control import AdvantageRule, LengthControl, Paper, Rollouts, hyperparameter


class DRPO(LengthControl):
    r"""DRPO: correct answers have positive advantages that fall with length; wrong ones share a negative advantage.

    $$ \omega_i = \frac{\exp(r_l(o_i) / \lambda)}{\sum_{j: c_j = 1} \exp(r_l(o_j) / \lambda)}, \qquad
       r_l(o_i) = 1 - \frac{|o_i|}{C}, \qquad
       A_i = \begin{cases} G \, \omega_i & c_i = 1 \\ - G / n_- & c_i = 0 \end{cases} $$

    $C$ is `max_completion_length` and $n_-$ the number of wrong answers. The length of wrong answers has no effect. If
    all answers to a prompt are correct, or all are wrong, their advantages are 0. `scale_rewards` has no effect.

    The shaped reward is $\omega_i$, scaled so that the shortest correct answer has 1.

    Use: without a target, if a correct answer must never have a negative advantage because of its length.

    Source: `compute_policy_loss_drpo` of the [release](https://github.com/Optimization-AI/DRPO); of
    [DRPO](https://huggingface.co/papers/2510.04474) we read the abstract and excerpts.

    Differs: this version is an advantage for GRPO's loss. The paper has its own objective,

    $$ \frac 1P \sum_q \Big[ \sum_{i: c_i = 1} \omega_i s_i - \tau \log \sum_{j: c_j = 0} e^{s_j / \tau} \Big]
       - \beta \, [D_{KL} - \delta]_+^2 / 2 $$

    with $s_i$ the mean log-probability of the tokens of $o_i$, and $\tau = 10$, $\beta = 1000$, $\delta = 10^{-4}$ in
    the release. With `loss_type: grpo` and one update per generation batch, the gradients agree with two exceptions.
    The paper weights wrong answers by $e^{s_j/\tau} / \sum_k e^{s_k/\tau}$, so that probable ones count more; here,
    all have the weight $1 / n_-$, which is the limit for large $\tau$. And the paper has the KL term where this
    version clips the importance ratio. Other loss types also weight completions by their length, as with every
    advantage.

    Args:
        temperature (`float`): $\lambda$ (`tau2` of the release), dimensionless, above 0: an answer that is $\lambda C$
            tokens longer has `1 / e` of the weight. The larger $\lambda$, the smaller the effect of length.
    """

    name = "drpo"
    paper = Paper(
        "DRPO: Efficient Reasoning via Decoupled Reward Policy Optimization", "2510.04474", "Gang Li and others"
    )
    formula_from = "the authors' release"
    depends_on = "prompt"
    advantages_have_mean_zero = True

    temperature: float = hyperparameter(0.1, gt=0)

    def check(self, target_length: int | None, max_completion_length: float) -> None:
        if math.isinf(max_completion_length):
            raise ValueError(
                "max_completion_length or length_of gives lengths no limit, but drpo divides by it; set a limit in "
                "tokens, or another length_control, such as 'grlc'"
            )

    def shaped_rewards(self, rollouts: Rollouts) -> torch.Tensor:
        is_correct_PG = rollouts.by_group(rollouts.is_correct)
        lengths_PG = rollouts.by_group(rollouts.lengths.double())
        shortest_P1 = lengths_PG.where(is_correct_PG, torch.inf).amin(dim=1, keepdim=True)  # among correct answers
        # The weight of a correct answer falls exponentially with its length. It is 1 for the shortest one of the
        # prompt, so that not all weights of a group are rounded to 0. Wrong answers have a base reward of 0 in any
        # case.
        excess_PG = (lengths_PG - shortest_P1).where(is_correct_PG, 0.0)
        scale = self.temperature * rollouts.max_completion_length  # lambda C
        weights_PG = torch.exp(-excess_PG / scale)
        return self.base_rewards(rollouts) * weights_PG.flatten()

    def advantages(self, rollouts: Rollouts, shaped: torch.Tensor, rule: AdvantageRule) -> torch.Tensor:
        is_correct_PG = rollouts.by_group(rollouts.is_correct)
        is_wrong_PG = rollouts.by_group(rollouts.is_scorable & ~rollouts.is_correct)
        # omega_i: shares of the correct answers of a prompt, which sum to 1. Their weights are the shaped rewards,
        # whose sum is at least 1, the weight of the shortest one; the clamp avoids 0 / 0 where no answer is correct.
        weights_PG = rollouts.by_group(shaped).where(is_correct_PG, 0.0)
        omegas_PG = weights_PG / weights_PG.sum(dim=1, keepdim=True).clamp(min=1.0)
        # 1 / n_-: equal shares of the wrong answers, which sum to 1, too
        num_wrong_P1 = is_wrong_PG.sum(dim=1, keepdim=True)
        wrong_shares_PG = is_wrong_PG.double() / num_wrong_P1.clamp(min=1)
        advantages_PG = rollouts.num_generations * (omegas_PG - wrong_shares_PG)
        # A prompt whose answers are all correct, or all wrong, has advantages of 0, as in GRPO on correctness alone.
        has_both_P1 = is_correct_PG.any(dim=1, keepdim=True) & is_wrong_PG.any(dim=1, keepdim=True)
        return advantages_PG.where(has_both_P1, 0.0).flatten()
