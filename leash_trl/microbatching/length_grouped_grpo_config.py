"""Configuration of `LengthGroupedGRPOTrainer`: two switches beside TRL's own fields."""

from dataclasses import dataclass

from trl import GRPOConfig


@dataclass
class LengthGroupedGRPOConfig(GRPOConfig):
    """Configuration class for the [`LengthGroupedGRPOTrainer`]: [`~trl.GRPOConfig`] with two switches.

    Args:
        length_grouped_microbatches (`bool`): Whether to fill micro-batches with completions of similar length and to
            trim each to its longest. The gradient stays the same up to rounding (with dropout, other activations are
            dropped). Where it would change, as with `bnpo` or an entropy bonus, completions stay in TRL's
            micro-batches, which are only trimmed. TRL's `clip_ratio/low_min` and `high_max` are extremes over
            micro-batches, so here over completions of similar length.
        skip_zero_signal (`bool`): Whether to leave out completions whose advantage is exactly zero. The gradient stays
            the same; the logged entropy and clip ratios then cover only the others. It has no effect where such
            completions count: with `beta`, an entropy bonus, `top_entropy_quantile` or a router loss.
    """

    length_grouped_microbatches: bool = True
    skip_zero_signal: bool = True
