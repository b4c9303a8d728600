"""Toggle of Kimi K2.5: turns a budget on and off in alternating periods, and exempts hard prompts from it."""

import math
from dataclasses import replace
from typing import Any

import torch

from leash_trl.length_control.method import (
    AdvantageRule,
    LengthControl,
    Paper,
    Rollouts,
    Score,
    hyperparameter,
    state_field,
)
from leash_trl.length_control.rollouts import joined


# attributes and functions that Toggle takes from the method that it switches, whether the budget is on or off
HELD = (
    *("target_use", "needs_truncated", "own_advantages"),
    *("check", "columns_read", "check_columns", "budgets", "budget_statistics", "base_rewards", "violation"),
    *("reward_scale_problem", "target_for"),
)


class PercentileBudget(LengthControl):
    """The report's own budget: correctness (1 or 0), but 0 for answers longer than a percentile of the question's
    correct answers.

    Source: Eq. (2) of [Kimi K2.5](https://huggingface.co/papers/2602.02276), see [`Toggle`].
    """

    name = "percentile_budget"

    percentile: float
    limits: dict[str, float] = state_field(dict)  # in tokens, by question number as text, since JSON has text keys

    def shape(self, rollouts: Rollouts) -> torch.Tensor:
        known = self._estimates(rollouts) | self.limits
        limits = [known.get(str(question), math.inf) for question in rollouts.questions.tolist()]
        is_within = rollouts.lengths <= torch.tensor(limits, dtype=torch.float64)
        return self.base_rewards(rollouts) * is_within.double()

    def observe(self, rollouts: Rollouts) -> None:
        self.limits = self._estimates(rollouts) | self.limits

    def _estimates(self, rollouts: Rollouts) -> dict[str, float]:
        is_correct = rollouts.is_correct
        lengths, questions = rollouts.lengths[is_correct].double(), rollouts.questions[is_correct]
        share = self.percentile / 100
        return {str(each): lengths[questions == each].quantile(share).item() for each in {*questions.tolist()}}

    def statistics(self) -> dict[str, float]:
        return {"questions_with_budget": float(len(self.limits))}


class Toggle(LengthControl):
    r"""Toggle of Kimi K2.5: a budget or another method, in every other period and only for prompts solved often.

    $$ \tilde r(x, y) = \begin{cases}
       r(x, y) \cdot \mathbb{I}\left(\frac{1}{K} \sum_i r(x, y_i) < \lambda \ \text{or}\ |y| \le b(x)\right)
       & \lfloor t / m \rfloor \bmod 2 = 0 \\
       r(x, y) & \lfloor t / m \rfloor \bmod 2 = 1 \end{cases} $$

    $b(x)$ is a percentile of the lengths of correct answers to question $x$, estimated once. If `method` is set, it
    replaces the indicator: completions get the shaped rewards of that method where Toggle is on, and its rewards
    without the length term where it is off. Groups where it is off are trained as in plain GRPO, with the trainer's
    own advantages. Methods that standardize advantages over the batch (`dler`, `lead`) do so over all groups, as if
    Toggle were on for all.

    The state of `method` is updated only while the budget is on, and only from the prompts to which it applies.
    Otherwise, a multiplier would rise because of lengths that it does not penalize. The report's own budgets are
    estimated from all batches.

    Use: if a budget costs too much accuracy, or if the model should still be able to use more tokens than its budget.
    Methods that limit generation or write into the prompt are not allowed: set `cut_generation: false` for `dler`, and
    `suffix: ""` for `l1_exact` and `l1_max`.

    Source: section 4.4.2 of [Kimi K2.5](https://huggingface.co/papers/2602.02276); there is no released code.

    Differs: the report does not state $\lambda$, $m$ or the percentile; the defaults are ours. In the report, $t$
    counts iterations; here, it counts generation batches, and several batches in one update count once. The report
    estimates all budgets when training begins; here, the first batch in which a question is solved sets its budget,
    which already applies to that batch. The report's text requires an accuracy above $\lambda$; its formula, which we
    follow, at least $\lambda$. $r$ is 1 or 0, since with -1 for wrong answers, the indicator would raise the reward of
    long wrong ones.

    Args:
        method (`str`): Method to switch on and off, by name or import path; by default the report's own budget.
        method_kwargs (`dict`): Hyper-parameters of `method`.
        period (`int`): Number $m$ of generation batches for which the budget is on, and then off.
        accuracy_threshold (`float`): Smallest accuracy $\lambda$ of a prompt at which the budget applies to it.
        percentile (`float`): Percentile of the lengths of correct answers that is the report's own budget; do not
            change it if `method` is set.
    """

    name = "toggle"
    paper = Paper("Kimi K2.5: Visual Agentic Intelligence", "2602.02276", "Kimi Team")
    state = ("method", "switched")
    needs_group = True

    method: str | None = None
    method_kwargs: dict[str, Any] | None = None
    period: int = hyperparameter(20, ge=1)
    accuracy_threshold: float = hyperparameter(0.5, ge=0, le=1)
    percentile: float = hyperparameter(75.0, ge=0, le=100)
    batches_done: int = state_field(int)
    is_observed: bool = state_field(bool)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.switched = PercentileBudget(self.percentile) if self.method is None else self._found_method(self.method)
        if self.method is None and self.method_kwargs:
            raise ValueError(f"method_kwargs is {self.method_kwargs!r}, but method is None; set method or remove it")
        acts_early = self.switched.generation_cap(1.0) is not None or self.switched.prompt_suffix(1.0, math.inf)
        if self.switched.name in ("none", "toggle") or acts_early:
            reason = "acts before the solve rate is known or has no effect"
            raise ValueError(f"method is {self.method!r}, which {reason}; choose another")
        for name in HELD:
            setattr(self, name, getattr(self.switched, name))

    def _found_method(self, name: str) -> LengthControl:
        # imported here, since the list of methods imports this file
        from leash_trl.length_control.methods import find_method

        if self.percentile != Toggle.percentile:
            raise ValueError(f"percentile is {self.percentile!r}, but method={name!r} has its own budget; remove one")
        return find_method(name)(**(self.method_kwargs or {}))

    def _is_on(self, batch: int) -> bool:
        return batch // self.period % 2 == 0

    def is_budgeted(self, rollouts: Rollouts) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: True where the budget is on and the solve rate of the prompt is high
        enough."""
        return ~(rollouts.solve_rates < self.accuracy_threshold) & self._is_on(self.batches_done)

    def shape(self, rollouts: Rollouts) -> torch.Tensor:
        return self.switched.shape(rollouts).where(self.is_budgeted(rollouts), self.base_rewards(rollouts))

    def score(self, rollouts: Rollouts, rule: AdvantageRule) -> Score:
        """Returns the score of the switched method where the budget applies, elsewhere the score of plain GRPO."""
        own, is_budgeted = self.switched.score(rollouts, rule), self.is_budgeted(rollouts)
        free = Score(own.base, 0.0 * own.base, own.base, own.advantages)
        mixed = own.where(is_budgeted, free)
        plain = rule(mixed, rollouts)
        return replace(mixed, advantages=own.advantages.where(is_budgeted, plain) if self.own_advantages else plain)

    def observe(self, rollouts: Rollouts) -> None:
        self.is_observed = True
        rows = None if self.method is None else self.is_budgeted(rollouts).nonzero().flatten()
        seen = joined([rollouts], rows)
        if len(seen.lengths) > 0:
            self.switched.observe(seen)

    def step(self) -> None:
        if self._is_on(self.batches_done if self.is_observed else self.batches_done - 1):
            self.switched.step()
        self.batches_done += self.is_observed
        self.is_observed = False

    def statistics(self) -> dict[str, float]:
        return {**self.switched.statistics(), "budget_on": float(self._is_on(self.batches_done))}
