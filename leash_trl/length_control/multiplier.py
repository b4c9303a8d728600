"""`Multiplier`, the state of one constraint: lambda, and the completions that its next dual step will count."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from leash_trl.length_control.checked_values import is_count, is_number, saved_multiplier, saved_value
from leash_trl.length_control.dual import projected_ascent


@dataclass
class Multiplier:
    """LEASH's multiplier of one constraint.

    Args:
        lam (`float`):
            lambda, in reward units per unit of relative overshoot.
        lr (`float`):
            Step size of the dual step.
        minimum (`float`), maximum (`float`):
            Bounds of lambda.
        observed (`list[list[float]]`, *optional*):
            Target and length in tokens of every completion since the last dual step.
    """

    lam: float
    lr: float
    minimum: float
    maximum: float
    observed: list[list[float]] = field(default_factory=list)

    def move(self, violation: float) -> None:
        """Does one dual step with the violation of the observed completions, which the next step no longer counts."""
        self.lam = projected_ascent(self.lam, violation, self.lr, self.minimum, self.maximum)
        self.observed = []

    def pass_by(self, is_sampled: bool) -> None:
        """Notes a policy update without new completions of this constraint; LEASH's multiplier stays.

        Args:
            is_sampled (`bool`):
                Whether the update was on its last completions once more; False if on those of other constraints.
        """

    def statistics(self) -> dict[str, float]:
        """The state as numbers to log."""
        return {"lambda": self.lam}

    def state_dict(self) -> dict[str, Any]:
        """The state in types of JSON, which keeps lambda to the last bit."""
        return {"lambda": self.lam, "observed": [list(row) for row in self.observed]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a saved state, or raises `ValueError`; in older ones a row also has a number of completions."""
        self.lam = saved_multiplier(state, "lambda", self.minimum, self.maximum)
        needed = "rows of a target and a length in tokens"
        rows = saved_value({"observed": [], **state}, "observed", _are_observations, needed)
        self.observed = []
        for target, tokens, *completions in rows:
            count = completions[0] if completions else 1
            self.observed += [[target, tokens / count]] * count


def _are_observations(rows: Any) -> bool:
    return isinstance(rows, list) and all(
        isinstance(row, list)
        and len(row) in (2, 3)
        and all(map(is_number, row))
        and row[0] > 0 <= row[1]
        and (len(row) == 2 or (is_count(row[2]) and row[2] > 0))
        for row in rows
    )
