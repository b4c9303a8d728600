"""ACOER: a bonus for short correct answers, whose weight rises while accuracy is stable and falls when it falls."""

import math
from statistics import fmean
from typing import ClassVar

import torch

from leash_trl.length_control import LengthControl, Paper, Rollouts, hyperparameter, state_field


class ACOER(LengthControl):
    r"""ACOER: correctness (1 or 0) plus a bonus for correct answers below a budget that adapts to their mean length.

    $$ r_i = c_i \left(1 + \alpha \frac{\log(1 + s (1 - \min(L_i / B, 1)))}{\log(1 + s)}\right), \qquad
       \alpha \leftarrow \begin{cases} \max(\alpha_{\min}, 0.95\,\alpha) & \bar a_{t-w} - \bar a_t > \tau \\
       \min(\alpha_{\max}, 1.02\,\alpha) & \text{else} \end{cases}, \qquad B \leftarrow \max(B_{\min}, \rho \bar L) $$

    $\bar a$ and $\bar L$ are exponential moving averages of the accuracy of batches and of the mean length of correct
    answers. The weight $\alpha$ and the budget $B$ change only after `warmup_steps` updates and once the window is
    full. Wrong answers earn 0 at any length.

    Use: without a target, to shorten answers as far as accuracy allows, over about a thousand updates.

    Source: `acoer/reward.py` of [js-lee-AI/ACOER](https://github.com/js-lee-AI/ACOER), including the defaults. We have
    not read [the paper](https://huggingface.co/papers/2606.22716).

    Differs: the release measures the thinking by its characters, four to a token; here, the controlled tokens are
    counted. In the release, each process has its own state, which every call changes, even in evaluation, and which is
    lost when a run is resumed; here, there is one state, which changes once per policy update by the completions of
    all processes. In the release, a batch without a correct answer has a mean length of 0; here, it leaves the mean
    length unchanged.

    Args:
        alpha_init (`float`), alpha_min (`float`), alpha_max (`float`): Weight of the bonus, and its bounds.
        alpha_up (`float`), alpha_down (`float`): Factors of the weight per update while accuracy is stable and while
            it falls.
        max_accuracy_drop (`float`): Decrease $\tau$ of the mean accuracy over the window above which the weight falls.
        window (`int`): Number of updates $w$ over which accuracy is compared.
        ema_span (`int`): Span of the moving averages in updates; the newest batch has the weight 2 / (span + 1).
        budget_ratio (`float`): Ratio $\rho$ of the budget to the mean length of correct answers.
        min_budget (`int`), budget_init (`int`): Smallest and initial budget in tokens.
        log_scale (`float`): $s$, dimensionless; the larger, the earlier the bonus saturates as answers become shorter.
        warmup_steps (`int`): Number of updates before weight and budget begin to change.
    """

    name = "acoer"
    paper: ClassVar[Paper | None] = Paper(
        "Beyond Penalizing Mistakes: Stabilizing Efficiency Training in Large Reasoning Models via Adaptive "
        "Correct-Only Rewards",
        "2606.22716",
        "Jungseob Lee and Seungyoon Lee and Seongtae Hong and Minhyuk Kim and Chanjun Park and Heuiseok Lim",
    )
    formula_from = "the authors' release"

    alpha_init: float = hyperparameter(0.02, ge=0)
    alpha_min: float = hyperparameter(0.01, ge=0)
    alpha_max: float = hyperparameter(0.5, ge=0)
    alpha_up: float = hyperparameter(1.02, ge=1)
    alpha_down: float = hyperparameter(0.95, gt=0, le=1)
    max_accuracy_drop: float = hyperparameter(0.02, ge=0, le=1)
    window: int = hyperparameter(100, ge=2)
    ema_span: int = hyperparameter(50, ge=1)
    budget_ratio: float = hyperparameter(0.85, gt=0)
    min_budget: int = hyperparameter(512, ge=1)
    budget_init: int = hyperparameter(4096, ge=1)
    log_scale: float = hyperparameter(5.0, gt=0)
    warmup_steps: int = hyperparameter(200, ge=0)
    # moving averages of the accuracy after each of the last `window` updates, the newest last
    accuracies: list[float] = state_field(list)
    # moving average of the lengths of correct answers in tokens; `None` before the first correct answer
    mean_length: float | None = state_field(lambda: None)
    # number of scorable completions, and lengths of the correct ones, observed since the last update
    scorable: int = state_field(int)
    correct_lengths: list[float] = state_field(list)
    num_updates: int = state_field(int)
    alpha: float = state_field(float)
    budget: float = state_field(float)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.alpha = float(self.alpha_init)
        self.budget = float(self.budget_init)

    def shaped_rewards(self, rollouts: Rollouts) -> torch.Tensor:
        used_shares_N = (rollouts.lengths.double() / self.budget).clamp(max=1.0)  # min(L / B, 1)
        unused_shares_N = 1.0 - used_shares_N
        bonuses_N = torch.log1p(self.log_scale * unused_shares_N) / math.log1p(self.log_scale)  # from 0 to 1
        return self.base_rewards(rollouts) * (1.0 + self.alpha * bonuses_N)

    def observe(self, rollouts: Rollouts) -> None:
        self.scorable += int(rollouts.is_scorable.sum())
        self.correct_lengths += rollouts.lengths[rollouts.is_correct].tolist()

    def step(self) -> None:
        # There are no new completions if this update reused those of an earlier one.
        if self.scorable == 0:
            return
        self._update_averages()
        self.num_updates += 1
        # `accuracies` holds the moving average of accuracy after each of the last `window` updates. The weight and the
        # budget of the bonus change only once accuracy can be compared over a whole window.
        is_window_full = len(self.accuracies) == self.window
        if self.num_updates > self.warmup_steps and is_window_full:
            self._update_weight_and_budget()

    def _update_averages(self) -> None:
        """Adds what was observed since the last update to the moving averages of accuracy and of the length of correct
        answers."""
        previous_average = self.accuracies[-1] if self.accuracies else None
        accuracy = len(self.correct_lengths) / self.scorable
        self.accuracies.append(self._moving_average(previous_average, accuracy))
        self.accuracies = self.accuracies[-self.window :]  # the newest is the last
        # Without a correct answer, there is no new length, and the average stays as it is.
        if self.correct_lengths:
            self.mean_length = self._moving_average(self.mean_length, fmean(self.correct_lengths))
        self.scorable = 0
        self.correct_lengths = []

    def _moving_average(self, previous: float | None, newest: float) -> float:
        """Returns the exponential moving average after one more value; `previous` is `None` before the first one."""
        if previous is None:
            return newest
        newest_weight = 2.0 / (self.ema_span + 1)
        return previous + newest_weight * (newest - previous)

    def _update_weight_and_budget(self) -> None:
        """Changes the weight of the bonus for short answers, `alpha`, and the length below which it is earned,
        `budget`."""
        # The oldest average is from the beginning of the window, the newest from this update.
        accuracy_drop = self.accuracies[0] - self.accuracies[-1]
        # `alpha_down` is a factor below 1, `alpha_up` one above 1.
        if accuracy_drop > self.max_accuracy_drop:
            self.alpha = max(self.alpha_min, self.alpha * self.alpha_down)
        else:
            self.alpha = min(self.alpha_max, self.alpha * self.alpha_up)
        if self.mean_length is not None:  # `None` before the first correct answer
            self.budget = max(float(self.min_budget), self.budget_ratio * self.mean_length)

    def statistics(self) -> dict[str, float]:
        return {"alpha": self.alpha, "budget": self.budget}
