"""Data: source schemas in, `prompt` and `solution` out."""

from leash_trl.data.prompts import BOXED_SUFFIX, as_conversation


__all__ = ["BOXED_SUFFIX", "as_conversation"]
