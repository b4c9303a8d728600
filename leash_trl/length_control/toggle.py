"""Toggle of Kimi K2.5: turns a budget on and off in alternating periods, and exempts hard prompts from it."""

import math

import torch

from leash_trl.length_control import LengthControl, Paper, Rollouts, hyperparameter, state_field


class Toggle(LengthControl):
    r"""Toggle of Kimi K2.5: 0 for correct answers above a budget, in every other period and for prompts solved often.

    $$ \tilde r(x, y) = \begin{cases}
       r(x, y) \cdot \mathbb{I}\left(\frac{1}{K} \sum_i r(x, y_i) < \lambda \ \text{or}\ |y| \le b(x)\right)
       & \lfloor t / m \rfloor \bmod 2 = 0 \\
       r(x, y) & \lfloor t / m \rfloor \bmod 2 = 1 \end{cases} $$

    $b(x)$ is a percentile of the lengths of correct answers to question $x$, estimated once.

    Use: if a budget costs too much accuracy, or if the model should still be able to use more tokens than its budget.

    Source: Eq. (2) and section 4.4.2 of [Kimi K2.5](https://huggingface.co/papers/2602.02276); there is no released
    code.

    Differs: the report does not state $\lambda$, $m$ or the percentile; the defaults are ours. In the report, $t$
    counts iterations; here, it counts generation batches, and several batches in one update count once. The report
    estimates all budgets when training begins; here, the first batch in which a question is solved sets its budget,
    which already applies to that batch. The report's text requires an accuracy above $\lambda$; its formula, which we
    follow, at least $\lambda$. $r$ is 1 or 0, since with -1 for wrong answers, the indicator would raise the reward of
    long wrong ones.

    Args:
        period (`int`): Number $m$ of generation batches for which the budget is on, and then off.
        accuracy_threshold (`float`): Smallest accuracy $\lambda$ of a prompt at which the budget applies to it.
        percentile (`float`): Percentile of the lengths of a question's correct answers that is its budget.
    """

    name = "toggle"
    paper = Paper("Kimi K2.5: Visual Agentic Intelligence", "2602.02276", "Kimi Team")
    depends_on = "prompt"

    period: int = hyperparameter(20, ge=1)
    accuracy_threshold: float = hyperparameter(0.5, ge=0, le=1)
    percentile: float = hyperparameter(75.0, ge=0, le=100)
    # budgets in tokens by the number of the question, such as {"17": 900.0}; text, since JSON has text keys
    limits: dict[str, float] = state_field(dict)
    batches_done: int = state_field(int)
    # whether a batch was observed since the last update; an update that reuses completions is no new iteration
    is_observed: bool = state_field(bool)

    @property
    def is_budget_phase(self) -> bool:
        """Whether the next batch has a budget."""
        return self.batches_done // self.period % 2 == 0

    def has_budget(self, rollouts: Rollouts) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: True where the budget is on and the solve rate of the prompt is high
        enough."""
        is_hard_N = rollouts.solve_rates < self.accuracy_threshold  # False for a prompt without a solve rate
        return ~is_hard_N & self.is_budget_phase

    def shaped_rewards(self, rollouts: Rollouts) -> torch.Tensor:
        # Budgets in tokens by the number of the question, such as {"17": 900.0}. The first estimate stays in force, so
        # the budgets of earlier batches (`limits`) replace those of this batch.
        budget_by_question = self._estimated_budgets(rollouts) | self.limits
        questions = rollouts.questions.tolist()
        budgets = [budget_by_question.get(str(question), math.inf) for question in questions]  # inf: not solved yet
        is_above_N = rollouts.lengths > torch.tensor(budgets, dtype=torch.float64)
        # Above its budget, a completion earns 0, unless budgets are off in this period or its prompt is hard.
        is_kept_N = ~(is_above_N & self.has_budget(rollouts))
        return self.base_rewards(rollouts) * is_kept_N

    def observe(self, rollouts: Rollouts) -> None:
        self.is_observed = True
        self.limits = self._estimated_budgets(rollouts) | self.limits  # the first estimate stays in force

    def _estimated_budgets(self, rollouts: Rollouts) -> dict[str, float]:
        """Returns the budget in tokens by question, estimated from the correct answers of this batch."""
        correct_lengths = rollouts.lengths[rollouts.is_correct].double()
        correct_questions = rollouts.questions[rollouts.is_correct]
        # A budget is a percentile of the lengths of a question's correct answers. The keys are text, as in JSON.
        budgets = {}
        for question in set(correct_questions.tolist()):
            lengths = correct_lengths[correct_questions == question]
            budgets[str(question)] = lengths.quantile(self.percentile / 100).item()
        return budgets

    def step(self) -> None:
        if self.is_observed:
            self.batches_done += 1
        self.is_observed = False

    def statistics(self) -> dict[str, float]:
        return {"questions_with_budget": float(len(self.limits)), "budget_on": float(self.is_budget_phase)}
