"""Configuration of `LengthGroupedGRPOTrainer`: two switches beside TRL's own fields."""

import re
from dataclasses import dataclass, field
from typing import TypeVar

from trl import GRPOConfig


Config = TypeVar("Config", bound=type[GRPOConfig])

# name, and the first sentence of an entry such as "beta (`float`): Weight of the KL term."
ENTRY = re.compile(r"^ +(\w+) \(`.*?\):\s+(.+?\.)(?=\s)", re.MULTILINE | re.DOTALL)


def helped_by_docstring(config: Config) -> Config:
    """The class, with the first sentence of each field's docstring entry as its help; comes below `@dataclass`."""
    for name, sentence in ENTRY.findall(config.__doc__ or ""):
        text = " ".join(sentence.split()).replace("%", "%%")  # argparse formats help by %
        setattr(config, name, field(default=getattr(config, name), metadata={"help": text}))
    return config


@dataclass
@helped_by_docstring
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
