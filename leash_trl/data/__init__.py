"""Reads problems from published data sets, files and the Hub into the columns `prompt` and `solution`."""

from leash_trl.data.efforts import with_efforts
from leash_trl.data.prompts import BOXED_SUFFIX, as_conversation


__all__ = ["BOXED_SUFFIX", "as_conversation", "with_efforts"]
