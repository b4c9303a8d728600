"""Toggle of Kimi K2.5: the budget is on for some policy updates, off for as many, and never on for hard prompts.

Report: [Kimi K2.5: Visual Agentic Intelligence](https://huggingface.co/papers/2602.02276).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch

from leash_trl.length_control.advantages import Scaling
from leash_trl.length_control.checked_values import check_range, is_number, saved_value
from leash_trl.length_control.method import LengthControl
from leash_trl.length_control.rollouts import Rollouts
from leash_trl.length_control.step_count import CountsSteps


def refusal(method: LengthControl) -> str | None:
    """Why toggle cannot switch a method on and off; `None` if it can.

    Example:
        >>> from leash_trl.length_control.methods import METHODS
        >>> refusal(METHODS["leash"]()), refusal(METHODS["none"]())
        (None, 'has no length control to switch')
    """
    if isinstance(method, Toggle):
        return "is the switch itself"
    if method.name == "none":
        return "has no length control to switch"
    if method.generation_cap(1.0) is not None:
        return "cuts generation before the solve rate is known"
    if method.prompt_suffix(1.0):
        return "writes into the prompt before the solve rate is known"
    return None


@dataclass
class PercentileBudget(LengthControl):
    """The budget that the report's own Toggle switches: correctness (1 or 0), but 0 beyond the budget of the question.

    Source: Eq. (2) of [Kimi K2.5](https://huggingface.co/papers/2602.02276), see [`Toggle`].

    Args:
        percentile (`float`):
            Percentile of the correct lengths, in [0, 100].
    """

    name = "percentile_budget"

    percentile: float

    def __post_init__(self) -> None:
        check_range(self, "percentile", 0, 100)
        self.limits: dict[int, float] = {}

    def shape(self, rollouts: Rollouts) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: 1 where correct within the budget, else 0; NaN where unscorable."""
        known = self._estimates(rollouts) | self.limits
        limits = [known.get(question, math.inf) for question in rollouts.questions.tolist()]
        is_within = rollouts.lengths <= torch.tensor(limits, dtype=torch.float64)
        return self.base_rewards(rollouts) * is_within.double()

    def observe(self, rollouts: Rollouts) -> None:
        """Records a budget for each question that has none and was solved; it stays as it is from then on."""
        self.limits = self._estimates(rollouts) | self.limits

    def _estimates(self, rollouts: Rollouts) -> dict[int, float]:
        """Budgets in tokens, by question, from the correct lengths of these completions."""
        is_correct = rollouts.is_correct
        lengths, questions = rollouts.lengths[is_correct].double(), rollouts.questions[is_correct]
        share = self.percentile / 100
        return {question: lengths[questions == question].quantile(share).item() for question in {*questions.tolist()}}

    def statistics(self) -> dict[str, float]:
        """The number of questions with a budget."""
        return {"questions_with_budget": float(len(self.limits))}

    def state_dict(self) -> dict[str, Any]:
        """Budget of every question in tokens; JSON keys are strings."""
        return {"budgets": {str(question): budget for question, budget in self.limits.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the saved budgets."""
        saved = saved_value(state, "budgets", _are_budgets, "a table of tokens by question number")
        self.limits = {int(question): float(budget) for question, budget in saved.items()}


@dataclass
class Toggle(CountsSteps):
    r"""Toggle of Kimi K2.5: a budget, or any other method, in every other period, and only on prompts solved often.

    $$ \tilde r(x, y) = \begin{cases}
       r(x, y) \cdot \mathbb{I}\left(\frac{1}{K} \sum_i r(x, y_i) < \lambda \ \text{or}\ |y| \le b(x)\right)
       & \lfloor t / m \rfloor \bmod 2 = 0 \\
       r(x, y) & \lfloor t / m \rfloor \bmod 2 = 1 \end{cases} $$

    $b(x)$ is a percentile of the correct lengths of question $x$, estimated once. With `method`, that method takes the
    place of the indicator: completions get its shaped rewards where Toggle is on, and its rewards before length where
    it is off. A group that is off is as in plain GRPO in all else: the trainer's own advantages, every completion in
    the loss. Methods that do not divide advantages keep one scale with `scale_rewards: none`.

    The method's state moves while the budget is on, by the prompts that feel it. Else a multiplier would wind up over
    lengths that it does not price. So `a_dlp` holds the accuracy of these prompts to its reference, and warm-ups count
    these updates. The report's own budgets are recorded from all batches.

    Use: if a budget costs too much accuracy, or the model should still gain from more tokens than its budget.

    Source: section 4.4.2 of [Kimi K2.5](https://huggingface.co/papers/2602.02276); there is no released code.

    Differs: the report gives no $\lambda$, $m$ or percentile; the defaults are ours. Its $t$ counts iterations, ours
    policy updates. It estimates all budgets at the beginning of training; here the first batch in which a question is
    solved gives its budget, and is held to it. Its text wants accuracy above $\lambda$; its formula, which we follow,
    at least $\lambda$. $r$ is 1 or 0: with -1 for a wrong answer, the indicator would make a long one better.

    Methods that cut generation or write into the prompt are refused: both act before it is known which prompts are to
    be spared. `dler` works with `cut_generation: false`, `l1_exact` and `l1_max` with `suffix: ""`.

    Args:
        method (`str`, *optional*):
            Method to switch, by name or import path; by default the report's own budget.
        method_kwargs (`dict`, *optional*):
            Its hyper-parameters.
        period (`int`, *optional*, defaults to `20`):
            Policy updates $m$ for which the budget stays on, and then off.
        accuracy_threshold (`float`, *optional*, defaults to `0.5`):
            Accuracy $\lambda$ of a prompt, in [0, 1], from which on the budget holds for it.
        percentile (`float`, *optional*, defaults to `75.0`):
            Percentile of the correct lengths, in [0, 100], for the report's own budget; with `method` it must stay.
    """

    name = "toggle"
    authors = "Kimi Team"
    needs_group = True

    method: str | None = None
    method_kwargs: dict[str, Any] | None = None
    period: int = 20
    accuracy_threshold: float = 0.5
    percentile: float = 75.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "period", 1, whole=True)
        check_range(self, "accuracy_threshold", 0, 1)
        self.switched = PercentileBudget(self.percentile) if self.method is None else self._found_method(self.method)
        if self.method is None and self.method_kwargs:
            raise ValueError(f"method_kwargs is {self.method_kwargs!r}, but method is None; name a method or drop it")
        if (reason := refusal(self.switched)) is not None:
            raise ValueError(f"method is {self.method!r}, which toggle cannot hold: it {reason}; choose another")
        self.target_use = self.switched.target_use  # type: ignore[misc]  # as the method that this instance holds
        self.needs_truncated = self.switched.needs_truncated  # type: ignore[misc]
        self.own_advantages = self.switched.own_advantages  # type: ignore[misc]
        self.cuts = self.switched.cuts  # type: ignore[misc]

    def _found_method(self, name: str) -> LengthControl:
        # it lists this class too
        from leash_trl.length_control.methods import find_method

        if self.percentile != Toggle.percentile:
            raise ValueError(f"percentile is {self.percentile!r}, but the budget is that of {name!r}; drop one")
        if not isinstance(name, str):
            raise ValueError(f"method is {name!r}, but must be the name of a method, such as 'leash', or None")
        if not isinstance(kwargs := {} if self.method_kwargs is None else self.method_kwargs, dict):
            raise ValueError(f"method_kwargs is {kwargs!r}, but must be a mapping, such as {{lambda_lr: 0.02}}")
        method = find_method(name)
        known = [field.name for field in fields(method)]
        if unknown := sorted(kwargs.keys() - set(known)):
            raise ValueError(
                f"method_kwargs holds {unknown[0]}, which means nothing to {name!r}, whose parameters are "
                f"{', '.join(known) or 'none'}; drop it, or mend its name"
            )
        return method(**kwargs)

    def set_for_run(self, **settings: Any) -> None:
        """Sets what the configuration says for every method, here and in the method that is switched."""
        super().set_for_run(**settings)
        self.switched.set_for_run(**settings)

    @property
    def is_on(self) -> bool:
        """Whether the coming policy update is in a period with a budget."""
        return self.steps_done // self.period % 2 == 0

    def is_budgeted(self, rollouts: Rollouts) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: True where the budget is on and the prompt is solved often enough."""
        return ~(rollouts.solve_rates < self.accuracy_threshold) & self.is_on

    def check(self, target_length: int | None, max_completion_length: float, num_generations: int) -> None:
        """Raises `ValueError` if the method that is switched does not work with the rest of the configuration."""
        self.switched.check(target_length, max_completion_length, num_generations)

    def columns_read(self) -> tuple[str, ...]:
        """Columns of the data set that the method reads."""
        return self.switched.columns_read()

    def check_columns(self, columns: Mapping[str, Sequence[Any]]) -> str | None:
        """What the method says of these columns."""
        return self.switched.check_columns(columns)

    def budgets(self, rollouts: Rollouts) -> Sequence[str] | None:
        """Name of the method's budget for each of the N completions; `None` if there is one for all."""
        return self.switched.budgets(rollouts)

    def budget_statistics(self, name: str) -> dict[str, float]:
        """The state of one of the method's budgets."""
        return self.switched.budget_statistics(name)

    def base_rewards(self, rollouts: Rollouts) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: Rewards before length of the method that is switched."""
        return self.switched.base_rewards(rollouts)

    @property
    def may_cut(self) -> bool:
        """Whether the method that is switched cuts completions."""
        return self.switched.may_cut

    def cut_lengths(self, rollouts: Rollouts) -> torch.Tensor | None:
        """`torch.Tensor` of shape `(N,)`, *optional*: Tokens that the method keeps where the budget holds."""
        kept = self.switched.cut_lengths(rollouts)
        return None if kept is None else kept.where(self.is_budgeted(rollouts), rollouts.lengths)

    def shape(self, rollouts: Rollouts) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: Shaped rewards where the budget holds, else rewards before length."""
        return self.switched.shape(rollouts).where(self.is_budgeted(rollouts), self.base_rewards(rollouts))

    def penalty(self, rollouts: Rollouts) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: The method's price where the budget holds, else 0."""
        return self.switched.penalty(rollouts).where(self.is_budgeted(rollouts), 0.0 * self.base_rewards(rollouts))

    @property
    def has_own_advantages(self) -> bool:
        """Whether the method that is switched has a rule of its own."""
        return self.switched.has_own_advantages

    def advantages(
        self, shaped_rewards: torch.Tensor, rollouts: Rollouts, scale_rewards: Scaling, epsilon: float
    ) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: The method's advantages where the budget holds, else plain ones."""
        plain = super().advantages(shaped_rewards, rollouts, scale_rewards, epsilon)
        own = self.switched.advantages(shaped_rewards, rollouts, scale_rewards, epsilon)
        return own.where(self.is_budgeted(rollouts), plain)

    @property
    def may_leave_out(self) -> bool:
        """Whether the method that is switched leaves completions out."""
        return self.switched.may_leave_out

    def is_trained_on(self, rollouts: Rollouts) -> torch.Tensor | None:
        """`torch.Tensor` of shape `(N,)`, *optional*: False where the budget holds and the method drops it."""
        is_kept = self.switched.is_trained_on(rollouts)
        return None if is_kept is None else is_kept | ~self.is_budgeted(rollouts)

    def observe(self, rollouts: Rollouts) -> None:
        """Shows the method the groups that feel it, and the report's own budget all of them."""
        seen = rollouts if self.method is None else rollouts.select(self.is_budgeted(rollouts).nonzero().flatten())
        if len(seen.lengths) > 0:
            self.switched.observe(seen)

    def step(self) -> None:
        """Counts policy updates; moves the method's state if the budget is on."""
        if self.is_on:
            self.switched.step()
        super().step()

    def violation(self, lengths: Sequence[float], target_lengths: Sequence[float]) -> float:
        """As the method that is switched has it, over all completions, priced or not."""
        return self.switched.violation(lengths, target_lengths)

    def statistics(self) -> dict[str, float]:
        """The method's state, and whether the budget is on."""
        return {**self.switched.statistics(), "budget_on": float(self.is_on)}

    def reward_scale_problem(self, rollouts: Rollouts) -> str | None:
        """A warning about the scale of the task rewards from the method that is switched."""
        return self.switched.reward_scale_problem(rollouts)

    def target_for(self, question: int, target_length: float | None) -> float | None:
        """The target in tokens that the method gives to a prompt."""
        return self.switched.target_for(question, target_length)

    def state_dict(self) -> dict[str, Any]:
        """Policy updates done, and the name and the state of the method that is switched."""
        return {**super().state_dict(), "method": self.switched.name, "method_state": self.switched.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a saved state of the same method."""
        super().load_state_dict(state)
        name = self.switched.name
        saved_value(state, "method", lambda saved: saved == name, f"{name!r}, the method of this run; go on with it")
        saved = saved_value(state, "method_state", lambda saved: isinstance(saved, dict), "a table")
        self.switched.load_state_dict(saved)


def _are_budgets(saved: Any) -> bool:
    return isinstance(saved, dict) and all(
        str(key).isdecimal() and is_number(value) and value >= 0 for key, value in saved.items()
    )
