"""What is known of a model before its weights are loaded: how many tokens it sees, whether it has a chat template.

Training and evaluation check against the same.
"""

from typing import TYPE_CHECKING

from leash_trl.engines.checkpoint_path import checkpoint_path


if TYPE_CHECKING:
    from transformers import PreTrainedConfig


STRETCHED = frozenset({"linear", "dynamic"})
"""Rotary scalings whose `max_position_embeddings` is the length before the stretch, as transformers' dynamic NTK
formula reads it. Models with `llama3` and `longrope`, and those with a scaling for each kind of layer, as Gemma 3,
state the length after it."""


def context_length(config: "PreTrainedConfig") -> int | None:
    r"""Tokens that prompt and completion may have together; `None` if the configuration does not say, or if positions
    are a slope (ALiBi), which has no end.

    With $L$ for `max_position_embeddings` and $s$ for the scaling's `factor`: $s L$ for `linear` and `dynamic`;
    for `yarn` the larger of $L$ and $s$ times `original_max_position_embeddings`, since some configurations of
    stretched models state $L$ before and others after; else $L$.

    Source: `RopeParameters` in transformers/modeling_rope_utils.py; vLLM's `_get_and_verify_max_len` multiplies for
    the same types.

    Example:
        >>> from transformers import LlamaConfig
        >>> context_length(LlamaConfig(max_position_embeddings=4096))
        4096
    """
    text = config.get_text_config()
    length: int | None = getattr(text, "max_position_embeddings", None)  # GPT-2's configuration calls it otherwise
    rope = getattr(text, "rope_parameters", None) or {}
    if length is None or getattr(text, "alibi", False):
        return None
    kind, factor = rope.get("rope_type"), rope.get("factor") or 1
    if kind in STRETCHED:
        return int(factor * length)
    return max(length, int(factor * rope["original_max_position_embeddings"])) if kind == "yarn" else length


def has_chat_template(name: str, revision: str | None = None) -> bool:
    """Whether a model's tokenizer has a chat template; `True` if it cannot be read, as loading the model says."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(checkpoint_path(name), revision=revision)
    except (OSError, ValueError, KeyError, ImportError):
        return True
    return tokenizer.chat_template is not None
