"""A-DLP: a penalty per token that rises while accuracy is above a reference and falls while it is below."""

import math

import torch

from leash_trl.length_control import LengthControl, Paper, Rollouts, hyperparameter, state_field
from leash_trl.length_control.dual import projected_ascent


class ADLP(LengthControl):
    r"""A-DLP: correctness (1 or 0) minus a penalty per token, which rises while accuracy is above a reference.

    $$ r_i = c_i - \lambda_t L_i, \qquad
       \lambda_{t+1} = \max(0, \lambda_t + \eta \cdot (\text{acc}_t - \text{acc}_{\text{ref}})) $$

    Correct and wrong answers are penalized alike. With the script's initial penalty, a correct answer of 1000 tokens
    has the same reward as an empty wrong one.

    Use: if accuracy must stay at a reference, and length should fall as far as this allows.

    Source: the [release](https://github.com/JinyanSu1/A-DLP) of
    [Thinking Fast and Right](https://huggingface.co/papers/2505.18298); defaults are those of `scripts/train.sh`.

    Differs: the release updates the multiplier before the policy update, this version after it. Both score a batch
    with the multiplier before the batch.

    Args:
        lambda_init (`float`): Penalty $\lambda$ in reward units per token before the first step.
        lambda_lr (`float`): Step size $\eta$ per unit of accuracy; with 0, the penalty is constant.
        accuracy_reference (`float`): $\text{acc}_{\text{ref}}$, a constant in [0, 1].
    """

    name = "a_dlp"
    paper = Paper("Thinking Fast and Right", "2505.18298")

    lambda_init: float = hyperparameter(0.001, ge=0)
    lambda_lr: float = hyperparameter(0.001, ge=0)
    accuracy_reference: float = hyperparameter(0.62, ge=0, le=1)
    lam: float = state_field(float)  # penalty of the next batch, in reward units per token
    # numbers of correct and of scorable completions observed since the last update, such as 200 of 256
    correct: int = state_field(int)
    scorable: int = state_field(int)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.lam = float(self.lambda_init)

    def shaped_rewards(self, rollouts: Rollouts) -> torch.Tensor:
        penalties_N = self.lam * rollouts.lengths.double()  # lambda_t L_i
        return self.base_rewards(rollouts) - penalties_N

    def observe(self, rollouts: Rollouts) -> None:
        self.correct += int(rollouts.is_correct.sum())
        self.scorable += int(rollouts.is_scorable.sum())

    def step(self) -> None:
        # `correct` and `scorable` count the completions since the last update. Both are 0 if this update reused
        # completions that have already changed the penalty.
        if self.scorable == 0:
            return
        accuracy = self.correct / self.scorable
        # `lam` is the penalty per token. It rises while accuracy is above the reference, and falls while it is below.
        surplus = accuracy - self.accuracy_reference
        self.lam = projected_ascent(self.lam, violation=surplus, lr=self.lambda_lr, minimum=0.0, maximum=math.inf)
        self.correct = 0
        self.scorable = 0

    def statistics(self) -> dict[str, float]:
        return {"lambda": self.lam}
