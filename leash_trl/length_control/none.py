"""No length control: plain GRPO, the baseline of every comparison."""

from leash_trl.length_control.method import LengthControl


class NoControl(LengthControl):
    """No length control: task rewards as they are, plain GRPO.

    Use: as the baseline of every comparison.
    """

    name = "none"
    uses_correctness = False
