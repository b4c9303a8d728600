"""No length control: plain GRPO, the baseline of every comparison."""

from leash_trl.length_control import LengthControl


class NoControl(LengthControl):
    """No length control: plain GRPO on the unchanged task rewards.

    Use: as the baseline of every comparison.
    """

    name = "none"

    def needs_correctness(self) -> str | None:
        return None
