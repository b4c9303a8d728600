"""HAPO: compares the length of each answer with the shortest correct answer to the same question so far."""

import math

import torch

from leash_trl.length_control import LengthControl, Paper, Rollouts, hyperparameter, state_field
from leash_trl.length_control.rollouts import LEAST_LENGTH


class HAPO(LengthControl):
    r"""HAPO: correctness (1 or 0) plus a reward for beating the shortest correct answer to the question so far.

    $$ r'_i = r_i + w \begin{cases} \max(f_i, c) & \text{correct} \\ \min(f_i, 0) & \text{wrong} \end{cases}, \qquad
       f_i = \cos\left(\min\left(\frac{\pi}{2} \frac{L_i}{h}, \pi\right)\right), \qquad
       h \leftarrow \min(h, \min_{i\,\text{correct}} L_i) $$

    $h$ is the length of the shortest correct answer so far. $f$ is 0 for an answer of length $h$, and for a question
    without history. Wrong answers have no bonus, and a penalty if they are longer than $h$. The first epoch has no
    history and is plain GRPO, so the method needs several epochs.

    Use: in training over several epochs, if the answers to each question should become shorter from epoch to epoch.

    Source: [HAPO](https://huggingface.co/papers/2505.11225), as in `utils.py` of the authors' release.

    Args:
        weight (`float`): Weight $w$ of the length reward, dimensionless.
        correct_minimum (`float`): Lower bound $c$ of the length reward of correct answers, in [-1, 0]; with a bound
            above -1, correct answers always have a higher reward than wrong ones.
    """

    name = "hapo"
    paper = Paper("HAPO: History-Aware Policy Optimization", "2505.11225")

    weight: float = hyperparameter(1.0, ge=0)
    correct_minimum: float = hyperparameter(-0.7, ge=-1, le=0)
    shortest: dict[str, float] = state_field(dict)  # in tokens, by question number as text, since JSON has text keys

    def shaped_rewards(self, rollouts: Rollouts) -> torch.Tensor:
        # `self.shortest` is the length in tokens of the shortest correct answer so far, by the number of the question.
        questions = rollouts.questions.tolist()
        lengths_before = [self.shortest.get(str(question), math.nan) for question in questions]
        shortest_N = torch.tensor(lengths_before, dtype=torch.float64)  # h; NaN without history
        # The cosine falls from 1 at length 0 to 0 at the shortest correct answer, whose angle is pi / 2, and to -1 at
        # twice its length.
        angles_N = math.pi / 2 * rollouts.lengths.double() / shortest_N.clamp(min=LEAST_LENGTH)
        waves_N = torch.cos(angles_N.clamp(max=math.pi))  # f_i
        # A correct answer that is too long loses no more than `correct_minimum`, and a wrong one gains nothing by
        # being short.
        length_rewards_N = torch.where(
            rollouts.is_correct, waves_N.clamp(min=self.correct_minimum), waves_N.clamp(max=0.0)
        )
        # An answer without history, whose wave is NaN, has no length reward.
        length_rewards_N = length_rewards_N.where(~torch.isnan(shortest_N), 0.0)
        return self.base_rewards(rollouts) + self.weight * length_rewards_N

    def observe(self, rollouts: Rollouts) -> None:
        lengths = rollouts.lengths[rollouts.is_correct].tolist()
        questions = rollouts.questions[rollouts.is_correct].tolist()
        for question, length in zip(questions, lengths, strict=True):
            key = str(question)
            self.shortest[key] = min(self.shortest.get(key, length), length)

    def statistics(self) -> dict[str, float]:
        return {"questions_with_history": float(len(self.shortest))}
