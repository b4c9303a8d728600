"""Configuration of `LengthGroupedGRPOTrainer`: two switches beside TRL's own fields."""

from dataclasses import dataclass, field

from trl import GRPOConfig


@dataclass
class LengthGroupedGRPOConfig(GRPOConfig):
    r"""
    Configuration class for the [`LengthGroupedGRPOTrainer`].

    This class includes the two parameters of length-grouped micro-batches. For all others see [`~trl.GRPOConfig`],
    whose defaults are kept.

    Parameters:
        length_grouped_microbatches (`bool`, *optional*, defaults to `True`):
            Whether to fill micro-batches with completions of like length and to trim each to its longest. The
            gradient stays the same up to rounding (with dropout, other activations are dropped); where it would not,
            as with `bnpo` or an entropy bonus, completions stay in TRL's micro-batches and these are only trimmed.
            TRL's `clip_ratio/low_min` and `high_max` are extremes of micro-batches, and so of completions of like
            length.
        skip_zero_signal (`bool`, *optional*, defaults to `True`):
            Whether to leave out completions whose advantage is exactly zero. The gradient stays the same; the logged
            entropy and clip ratios then cover the others only. Without effect where such completions count: with
            `beta`, an entropy bonus, `top_entropy_quantile`, a router loss or `use_liger_kernel`.
    """

    length_grouped_microbatches: bool = field(
        default=True,
        metadata={
            "help": "Whether to fill micro-batches with completions of like length and to trim each to its longest."
        },
    )
    skip_zero_signal: bool = field(
        default=True,
        metadata={"help": "Whether to leave out completions whose advantage is exactly zero."},
    )
