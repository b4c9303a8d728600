"""Configuration of `LengthGroupedGRPOTrainer`: the parameters of TRL and two switches."""

from dataclasses import dataclass

from trl import GRPOConfig


@dataclass
class LengthGroupedGRPOConfig(GRPOConfig):
    """Configuration class for the [`LengthGroupedGRPOTrainer`]: [`~trl.GRPOConfig`] with two switches.

    Args:
        length_grouped_microbatches (`bool`): Whether to group completions of similar length into micro-batches and to
            trim each micro-batch to its longest completion. The gradient stays the same up to rounding; with dropout,
            other activations are dropped. If the gradient would change, as with `bnpo` or an entropy bonus,
            completions stay in TRL's micro-batches, which are only trimmed. TRL's `clip_ratio/low_min` and `high_max`
            are extremes over micro-batches, so here they are over completions of similar length.
        skip_zero_signal (`bool`): Whether to skip completions whose advantage is exactly zero. The gradient stays the
            same; the logged entropy and clip ratios cover only the other completions. The switch has no effect if such
            completions affect the loss, which they do with `beta`, an entropy bonus, `top_entropy_quantile` or a
            router loss, or if each of several processes keeps its own completions.
    """

    length_grouped_microbatches: bool = True
    skip_zero_signal: bool = True
