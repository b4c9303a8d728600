"""The length reward of Arora and Zanette, which compares the correct answers to a prompt with each other."""

import torch

from leash_trl.length_control import LengthControl, Paper, Rollouts, hyperparameter, standardized


class Efficient(LengthControl):
    r"""Arora and Zanette: a correct answer earns 1 minus a penalty by its z-score among correct ones, a wrong one 0.

    $$ r_i = c_i \cdot (1 - \alpha \sigma(z_i)), \qquad z_i = \frac{L_i - \text{mean}}{\text{std} + 10^{-7}} $$

    $\sigma$ is the sigmoid. Mean and population standard deviation are over the prompt's correct answers only.

    Use: without a target, to set the trade-off between accuracy and tokens by one number.

    Source: `reward_server/math_server.py` of the [release](https://github.com/Zanette-Labs/efficient-reasoning) of
    [Arora and Zanette](https://huggingface.co/papers/2502.04463).

    Differs: the release tokenizes answers again, without special tokens; here, lengths are the generated tokens.

    Args:
        alpha (`float`): Penalty $\alpha$ in reward units, in [0, 1), so that correct answers have a higher reward than
            wrong ones. The paper tests 0 to 0.4; the released script uses 0.1.
        requires_eos (`bool`): Whether a truncated correct answer counts as wrong and is left out of mean and standard
            deviation.
    """

    name = "efficient"
    paper = Paper("Training Language Models to Reason Efficiently", "2502.04463")
    depends_on = "prompt"

    alpha: float = hyperparameter(0.1, ge=0, lt=1)
    requires_eos: bool = True

    def base_rewards(self, rollouts: Rollouts) -> torch.Tensor:
        if not self.requires_eos:
            return rollouts.correctness
        counts_as_wrong_N = rollouts.is_truncated & rollouts.is_scorable
        return rollouts.correctness.masked_fill(counts_as_wrong_N, 0.0)

    def shaped_rewards(self, rollouts: Rollouts) -> torch.Tensor:
        rewards_N = self.base_rewards(rollouts)  # c_i
        lengths_PG = rollouts.by_group(rollouts.lengths)
        is_correct_PG = rollouts.by_group(rewards_N > 0)
        # Correctness is the weight, so the mean and the standard deviation are those of the correct answers.
        z_scores_PG = standardized(lengths_PG, is_correct_PG, correction=0, epsilon=1e-7)
        return rewards_N * (1.0 - self.alpha * z_scores_PG.sigmoid().flatten())
