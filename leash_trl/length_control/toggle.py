"""Toggle of Kimi K2.5: the budget is on for some batches, off for as many, and never on for hard prompts."""

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


# what Toggle leaves to the method that it switches, as far as it is the same for budgeted groups and others
HELD = (
    *("target_use", "needs_truncated", "own_advantages"),
    *("check", "columns_read", "check_columns", "budgets", "budget_statistics", "base_rewards", "violation"),
    *("reward_scale_problem", "target_for"),
)


class PercentileBudget(LengthControl):
    """The report's own budget: correctness (1 or 0), but 0 beyond a percentile of the question's correct lengths.

    Source: Eq. (2) of [Kimi K2.5](https://huggingface.co/papers/2602.02276), see [`Toggle`].
    """

    name = "percentile_budget"

    percentile: float
    limits: dict[str, float] = state_field(dict)  # in tokens, by question number as text, as JSON has keys

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
    r"""Toggle of Kimi K2.5: a budget, or any other method, in every other period, and only on prompts solved often.

    $$ \tilde r(x, y) = \begin{cases}
       r(x, y) \cdot \mathbb{I}\left(\frac{1}{K} \sum_i r(x, y_i) < \lambda \ \text{or}\ |y| \le b(x)\right)
       & \lfloor t / m \rfloor \bmod 2 = 0 \\
       r(x, y) & \lfloor t / m \rfloor \bmod 2 = 1 \end{cases} $$

    $b(x)$ is a percentile of the correct lengths of question $x$, estimated once. With `method`, that method takes the
    place of the indicator: completions get its shaped rewards where Toggle is on, and its rewards before length where
    it is off. A group that is off is as in plain GRPO in all else: the trainer's own advantages, every completion in
    the loss. Advantages that a method standardises over the batch (`dler`, `lead`) count all groups as if it held.

    The method's state moves while the budget is on, by the prompts that feel it, or a multiplier would wind up over
    lengths that it does not price. The report's own budgets are recorded from all batches.

    Use: if a budget costs too much accuracy, or the model should still gain from more tokens than its budget. Methods
    that cut generation or write into the prompt are refused: use `dler` with `cut_generation: false`, and `l1_exact`
    and `l1_max` with `suffix: ""`.

    Source: section 4.4.2 of [Kimi K2.5](https://huggingface.co/papers/2602.02276); there is no released code.

    Differs: the report gives no $\lambda$, $m$ or percentile; the defaults are ours. Its $t$ counts iterations, ours
    generation batches; several batches in one update count once. It estimates all budgets at the beginning of
    training; here the first batch in which a question is solved gives its budget, and is held to it. Its text wants
    accuracy above $\lambda$; its formula, which we follow, at least $\lambda$. $r$ is 1 or 0: with -1 for a wrong
    answer, the indicator would make a long one better.

    Args:
        method (`str`): Method to switch, by name or import path; by default the report's own budget.
        method_kwargs (`dict`): Its hyper-parameters.
        period (`int`): Generation batches $m$ for which the budget stays on, and then off.
        accuracy_threshold (`float`): Accuracy $\lambda$ of a prompt from which on the budget holds for it.
        percentile (`float`): Percentile of the correct lengths for the report's own budget; with `method` it must
            stay.
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
            raise ValueError(f"method_kwargs is {self.method_kwargs!r}, but method is None; name a method or drop it")
        acts_early = self.switched.generation_cap(1.0) is not None or self.switched.prompt_suffix(1.0, math.inf)
        if self.switched.name in ("none", "toggle") or acts_early:
            reason = "acts before the solve rate is known, or not at all"
            raise ValueError(f"method is {self.method!r}, which {reason}; choose another")
        for name in HELD:
            setattr(self, name, getattr(self.switched, name))

    def _found_method(self, name: str) -> LengthControl:
        # it lists this class too
        from leash_trl.length_control.methods import find_method

        if self.percentile != Toggle.percentile:
            raise ValueError(f"percentile is {self.percentile!r}, but the budget is that of {name!r}; drop one")
        return find_method(name)(**(self.method_kwargs or {}))

    def _is_on(self, batch: int) -> bool:
        return batch // self.period % 2 == 0

    def is_budgeted(self, rollouts: Rollouts) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: True where the budget is on and the prompt is solved often enough."""
        return ~(rollouts.solve_rates < self.accuracy_threshold) & self._is_on(self.batches_done)

    def shape(self, rollouts: Rollouts) -> torch.Tensor:
        return self.switched.shape(rollouts).where(self.is_budgeted(rollouts), self.base_rewards(rollouts))

    def score(self, rollouts: Rollouts, rule: AdvantageRule) -> Score:
        """The method's score where the budget holds; elsewhere rewards before length, and plain advantages."""
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
