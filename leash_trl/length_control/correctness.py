"""`CorrectnessRule`: which reward decides whether an answer is correct, and whether its values can say so."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from leash_trl.errors import TrainingError
from leash_trl.length_control.method import LengthControl
from leash_trl.length_control.rollouts import FLOAT32_ERROR


class CorrectnessRule:
    """Which reward decides whether an answer is correct: that of `correctness_func`, else that of the only reward
    function. The answer is correct if this reward is positive.

    It is not known which answers are correct if there are several reward functions and no `correctness_func`, or if
    the only reward function gives partial credit, which shows in two different positive rewards. Wrong answers may
    have different rewards, as long as none of them is positive. Once partial credit has been observed, correctness
    stays unknown, since its meaning must not change during a run.

    Args:
        functions (`Sequence[Callable]`), names (`Sequence[str]`): The reward functions and their names.
        chosen (`Callable` or `str`), chosen_name (`str`): `correctness_func`, which is a reward function, the name of
            one, another function or `None`; and the name of the function.

    Attributes:
        deciding_column (`int`): Column of the deciding function in the table of all rewards, in which another function
            comes after the reward functions; `None` if no function is chosen.
        unweighted_functions (`list[Callable]`), unweighted_names (`list[str]`): The deciding function if it is not a
            reward function, else nothing: it is called and logged with the reward functions, but has no weight.
        lowest_positive (`float`), highest_positive (`float`): Smallest and largest positive reward of the deciding
            function so far.

    Raises:
        `TrainingError`: If no reward function has the chosen name, or if another function is chosen that has the name
            of a reward function.
    """

    def __init__(self, functions: Sequence[Any], names: Sequence[str], chosen: Any = None, chosen_name: str = ""):
        self._names = list(names)
        self.restart()
        # A deciding function that is no reward function has the last column of the table of all rewards.
        is_another_function = callable(chosen) and chosen not in functions
        if is_another_function and chosen_name in names:
            raise TrainingError(f"correctness_func and reward_funcs have the same name, {chosen_name!r}; rename one")
        self.unweighted_functions = [chosen] if is_another_function else []
        self.unweighted_names = [chosen_name] if is_another_function else []
        self.deciding_column = self._column_of(chosen, [*functions, *self.unweighted_functions])

    def _column_of(self, chosen: Any, functions: Sequence[Any]) -> int | None:
        """Returns the column of a function, which `chosen` is or names, in the table of all rewards; `None` for
        `None`."""
        if chosen is None:
            return None
        if chosen in functions:
            return functions.index(chosen)
        if chosen in self._names:
            return self._names.index(chosen)
        names = ", ".join(self._names)
        raise TrainingError(f"correctness_func is {chosen!r}, but must name one of {names}, or be another function")

    def restart(self) -> None:
        """Forgets the rewards that have been observed, at the beginning of another run."""
        self.lowest_positive = math.inf
        self.highest_positive = 0.0
        self._has_warned = False

    @property
    def reason_unknown(self) -> str | None:
        """Why the rewards do not say which answers are correct, in one line; `None` if they do."""
        if self.deciding_column is not None:  # `correctness_func` names the function that decides
            return None
        if len(self._names) > 1:
            return (
                "correctness_func is None, so it is not known which answers are correct, and accuracy is neither "
                f"logged nor shown; set it to one of {', '.join(self._names)}, or to another function"
            )
        # The only reward function decides, unless it gives partial credit.
        if self.has_partial_credit:
            return (
                f"reward_funcs is {self._names[0]}, which returned {self.lowest_positive:.3g} and "
                f"{self.highest_positive:.3g}, so it is not known which answers are correct, and accuracy is neither "
                "logged nor shown; set correctness_func to a function that is positive only for correct answers; it "
                "need not be in reward_funcs"
            )
        return None

    @property
    def has_partial_credit(self) -> bool:
        """Whether two positive rewards so far are different. Before the first one, their bounds are infinity and 0."""
        return self.highest_positive > self.lowest_positive * (1.0 + FLOAT32_ERROR)

    @property
    def is_known(self) -> bool:
        """Whether the rewards say which answers are correct."""
        return self.reason_unknown is None

    def observe(self, deciding_rewards: torch.Tensor) -> None:
        """Records deciding rewards of shape `(N,)`, in reward units; NaN is ignored."""
        positive = deciding_rewards[deciding_rewards > 0].tolist()
        self.lowest_positive = min([self.lowest_positive, *positive])
        self.highest_positive = max([self.highest_positive, *positive])

    def check_known_for(self, method: LengthControl) -> None:
        """Raises `TrainingError` if the method needs to know which answers are correct, and that is not known."""
        # This is what needs it, such as "min_accuracy"; `None` if nothing does.
        if needed_by := method.needs_correctness():
            self.check_known(needed_by)

    def check_known(self, needed_by: str) -> None:
        """Raises `TrainingError` if it is not known which answers are correct; `needed_by` is what needs to know."""
        if self.reason_unknown is not None:
            raise TrainingError(f"{needed_by} cannot act: {self.reason_unknown}")

    def reason_unknown_once(self) -> str | None:
        """Returns why it is not known which answers are correct, only at the first call at which this is so; else
        `None`."""
        if self._has_warned:
            return None
        self._has_warned = self.reason_unknown is not None
        return self.reason_unknown

    def state_dict(self) -> dict[str, Any]:
        """Returns the lowest and highest positive reward so far, if any, in types that JSON can hold."""
        return {"positive_rewards": [self.lowest_positive, self.highest_positive] if self.highest_positive > 0 else []}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Adds what [`state_dict`] returned in another process or an earlier part of the run, if anything."""
        self.observe(torch.tensor(state.get("positive_rewards", []), dtype=torch.float64))
