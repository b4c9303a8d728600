"""`CorrectnessRule`: which reward decides whether an answer is correct, and whether its values can say so."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from leash_trl.errors import TrainingError
from leash_trl.length_control.method import LengthControl


NEGLIGIBLE = 1e-6  # rewards and weights come in float32; positive rewards that differ by a smaller share are equal
REMEDY = "set correctness_func to a function that is positive only for correct answers; it need not be in reward_funcs"


class CorrectnessRule:
    """Which reward decides whether an answer is correct: that of `correctness_func`, else that of the only reward
    function. The answer is correct if this reward is positive.

    It is not known which answers are correct if there are several reward functions and no `correctness_func`, or if
    the only reward function gives partial credit, which shows in two different positive rewards. Wrong answers may
    have different rewards, as long as none of them is positive. Once partial credit has been observed, correctness
    stays unknown: it may not mean something else in the second half of a run.

    Args:
        functions (`Sequence[Callable]`), names (`Sequence[str]`): The reward functions and their names.
        chosen (`Callable` or `str`), chosen_name (`str`): `correctness_func`, which is a reward function, its name, or
            another function; and its name.

    Attributes:
        column (`int`): Column of the deciding function in the table of all rewards: that of a reward function, the
            one after them for another function, or `None` if none is chosen.
        extra (`list[Callable]`), extra_names (`list[str]`): The deciding function if it is not a reward function: it
            is called and logged with the reward functions, but has no weight.
        lowest (`float`), highest (`float`): Smallest and largest positive reward of the deciding function so far.

    Raises:
        `TrainingError`: If no reward function has the chosen name, if it also has the name of another function, or if
            a model that is no reward function is chosen.
    """

    def __init__(self, functions: Sequence[Any], names: Sequence[str], chosen: Any = None, chosen_name: str = ""):
        self._names = list(names)
        self._chosen_name = chosen_name if callable(chosen) else chosen
        self.column: int | None = None
        self.extra: list[Any] = []
        self.extra_names: list[str] = []
        self.restart()
        if callable(chosen) and chosen not in functions:
            if isinstance(chosen, torch.nn.Module):
                raise TrainingError(
                    f"correctness_func is a {type(chosen).__name__}, but must be a function; a reward model may "
                    "decide only if it is among reward_funcs"
                )
            if chosen_name in names:
                raise TrainingError(
                    f"correctness_func and reward_funcs have the same name, {chosen_name!r}; rename one"
                )
            self.extra = [chosen]
            self.extra_names = [chosen_name]
            self.column = len(names)
        elif callable(chosen):
            self.column = list(functions).index(chosen)
        elif chosen in names:
            self.column = self._names.index(chosen)
        elif chosen is not None:
            raise TrainingError(self._unchosen())

    def restart(self) -> None:
        """Forgets the rewards that have been observed, at the beginning of another run."""
        self.lowest = math.inf
        self.highest = 0.0
        self._has_warned = False

    @property
    def gives_partial_credit(self) -> bool:
        """Whether the deciding function, or the only reward function, has returned two different positive rewards."""
        return self.highest > self.lowest * (1.0 + NEGLIGIBLE)

    @property
    def is_known(self) -> bool:
        """Whether the rewards say which answers are correct."""
        return self.column is not None or (len(self._names) == 1 and not self.gives_partial_credit)

    def observe(self, deciding_rewards: torch.Tensor) -> None:
        """Records deciding rewards of shape `(N,)`, in reward units; NaN is ignored."""
        positive = deciding_rewards[deciding_rewards > 0].tolist()
        if positive:
            self.lowest = min(self.lowest, min(positive))
            self.highest = max(self.highest, max(positive))

    def check(self, method: LengthControl) -> None:
        """Raises `TrainingError` if the method needs to know which answers are correct, and that is not known."""
        if not method.uses_correctness:
            return
        if type(method).uses_correctness:
            self.require(f"length_control {method.name!r}")
        else:  # only this instance needs it, because of its accuracy floor
            self.require("min_accuracy")

    def require(self, needing: str) -> None:
        """Raises `TrainingError` if it is not known which answers are correct; `needing` is what needs to know."""
        if self.is_known:
            return
        if len(self._names) > 1:
            raise TrainingError(self._unchosen())
        raise TrainingError(f"{self._partial_credit()}, but {needing} needs to know; {REMEDY}")

    def problem(self) -> str | None:
        """Returns in one line, once, that correctness is not known or that partial credit counts as correct; else
        `None`."""
        if self._has_warned or (self.is_known and not self.gives_partial_credit):
            return None
        self._has_warned = True
        if self.is_known:
            values = f"{self.lowest:.3g} and {self.highest:.3g}"
            return (
                f"correctness_func is {self._chosen_name!r}, which returned {values}, so partial credit counts as "
                "correct, too; set it to a function that is positive only for correct answers"
            )
        if len(self._names) > 1:
            return (
                "correctness_func is None, so with several reward functions it is not known which answers are "
                "correct, and accuracy is neither logged nor shown; set it to the function that decides whether an "
                "answer is correct"
            )
        return f"{self._partial_credit()}, and accuracy is neither logged nor shown; {REMEDY}"

    def _partial_credit(self) -> str:
        values = f"{self.lowest:.3g} and {self.highest:.3g}"
        return (
            f"reward_funcs is {self._names[0]}, which returned {values}, so it is not known which answers are correct"
        )

    def _unchosen(self) -> str:
        names = ", ".join(self._names)
        return (
            f"correctness_func is {self._chosen_name!r}, but must name one of {names}, or be another function, which "
            "decides whether an answer is correct"
        )

    def state_dict(self) -> dict[str, Any]:
        """Returns the positive rewards so far, in types that JSON can hold."""
        return {"positive_rewards": [self.lowest, self.highest] if self.highest > 0 else []}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Adds what [`state_dict`] returned in another process or an earlier part of the run, if anything."""
        self.observe(torch.tensor(state.get("positive_rewards", []), dtype=torch.float64))
