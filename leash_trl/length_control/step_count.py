"""`CountsSteps`, the base class of methods whose only state is the number of policy updates done."""

from typing import Any

from leash_trl.length_control.checked_values import is_count, saved_value
from leash_trl.length_control.method import LengthControl


class CountsSteps(LengthControl):
    """A method whose state is the number of policy updates done; subclasses are dataclasses as usual."""

    def __post_init__(self) -> None:
        self.steps_done = 0

    def step(self) -> None:
        """Counts policy updates."""
        self.steps_done += 1

    def state_dict(self) -> dict[str, Any]:
        """Policy updates done."""
        return {"steps_done": self.steps_done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the number of policy updates done."""
        self.steps_done = saved_value(state, "steps_done", is_count, "a whole number from 0 on")
