"""The state of methods that only need to know how far training has come."""

from typing import Any

from leash_trl.length_control.method import LengthControl


class CountsSteps(LengthControl):
    """A method whose state is the number of policy updates done; subclasses are dataclasses as usual."""

    steps_done: int

    def __post_init__(self) -> None:
        self.steps_done = 0

    def step(self) -> None:
        """Counts policy updates."""
        self.steps_done += 1

    def state_dict(self) -> dict[str, Any]:
        """Policy updates done."""
        return {"steps_done": self.steps_done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over the number of policy updates done.

        Raises:
            `ValueError`: If it is missing or not a whole number from 0 on.
        """
        steps_done = state.get("steps_done")
        if type(steps_done) is not int or steps_done < 0:
            raise ValueError(f"the saved state holds steps_done={steps_done!r}, which is not a whole number from 0 on")
        self.steps_done = steps_done
