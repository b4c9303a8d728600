"""The cosine length reward: short correct answers have the highest reward, short wrong ones the lowest."""

import math

import torch

from leash_trl.length_control import LengthControl, Paper, Rollouts, hyperparameter


class Cosine(LengthControl):
    r"""The cosine reward: falls from 2 to 1 with length if correct, rises from -10 to 0 if wrong; -10 at the limit.

    $$ r_i = r_L + \tfrac{1}{2} (r_0 - r_L) \left(1 + \cos \frac{\pi L_i}{L_{\max}}\right) $$

    Beyond $L_{\max}$ the reward stays at $r_L$; in open-r1, the cosine rises again. A longer wrong answer has a higher
    reward, so that the model thinks longer about hard questions.

    Use: to keep long thinking on questions that are not solved yet. It stabilizes the growth of lengths rather than
    shortening them.

    Source: section 4.2 of [Demystifying Long CoT](https://huggingface.co/papers/2502.03373). ms-swift uses
    `correct_at_zero=1, correct_at_max=0.5, wrong_at_zero=-0.5, wrong_at_max=0, exceeded=None`.

    Differs: the paper also penalizes repetition in wrong answers; this is left out, since it does not concern length.

    Args:
        correct_at_zero, correct_at_max (`float`): Reward $r_0$ of a correct answer of length 0, and $r_L$ of one of
            length $L_{\max}$.
        wrong_at_zero, wrong_at_max (`float`): The same for wrong answers.
        exceeded (`float`): Reward of every answer, even a correct one, whose length is within `margin` of $L_{\max}$
            or above; `None` for no such rule.
        margin (`int`): Number of tokens before $L_{\max}$ from which on `exceeded` applies, as in the authors'
            release.
        max_length (`int`): Maximum length $L_{\max}$ in tokens; `None` is the generation limit of the batch. It must
            be set where lengths have no limit.
    """

    name = "cosine"
    paper = Paper("Demystifying Long Chain-of-Thought Reasoning in LLMs", "2502.03373")

    correct_at_zero: float = 2.0
    correct_at_max: float = 1.0
    wrong_at_zero: float = -10.0
    wrong_at_max: float = 0.0
    exceeded: float | None = -10.0
    margin: int = hyperparameter(16, ge=0)
    max_length: int | None = hyperparameter(None, ge=1)

    def check(self, target_length: int | None, max_completion_length: float) -> None:
        if self.max_length is None and math.isinf(max_completion_length):
            raise ValueError("max_length is None, but cosine needs it where lengths have no limit; set max_length")

    def base_rewards(self, rollouts: Rollouts) -> torch.Tensor:
        return self._by_correctness(rollouts, correct=self.correct_at_zero, wrong=self.wrong_at_zero)

    def shaped_rewards(self, rollouts: Rollouts) -> torch.Tensor:
        max_length = self.max_length or rollouts.max_completion_length  # L_max
        # rewards that each completion would have with a length of 0 and of `max_length`; those between are a half
        # cosine
        at_zero_N = self.base_rewards(rollouts)  # r_0
        at_max_N = self._by_correctness(rollouts, correct=self.correct_at_max, wrong=self.wrong_at_max)  # r_L
        # L_i / L_max. Beyond L_max, where the cosine would rise again, the reward stays at r_L.
        shares_N = (rollouts.lengths.double() / max_length).clamp(max=1.0)
        rewards_N = at_max_N + 0.5 * (at_zero_N - at_max_N) * (1.0 + torch.cos(math.pi * shares_N))
        # `exceeded` is the reward of every completion, even a correct one, that comes within `margin` tokens of the
        # maximum.
        if self.exceeded is None:
            return rewards_N
        is_exceeding_N = rollouts.lengths + self.margin >= max_length
        return rewards_N.masked_fill(is_exceeding_N & rollouts.is_scorable, self.exceeded)

    def _by_correctness(self, rollouts: Rollouts, correct: float, wrong: float) -> torch.Tensor:
        # Correctness is 1, 0 or NaN. `torch.where` would turn NaN, which stands for unscorable, into one of the
        # rewards.
        return wrong + (correct - wrong) * rollouts.correctness
