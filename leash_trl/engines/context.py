"""Finds a model's context length, and whether it has a chat template, before its weights are loaded.

Training and evaluation use the same functions for their checks.
"""

from typing import TYPE_CHECKING

from leash_trl.engines.checkpoint_path import checkpoint_path


if TYPE_CHECKING:
    from transformers import PreTrainedConfig


STRETCHED = frozenset({"linear", "dynamic"})
"""Rotary scalings for which `max_position_embeddings` is the length before scaling, as in transformers' dynamic NTK
formula. For `llama3` and `longrope`, and for models with a scaling for each kind of layer, such as Gemma 3, it is the
length after scaling."""


def context_length(config: "PreTrainedConfig") -> int | None:
    r"""Returns how many tokens prompt and completion may have together; `None` if the configuration does not state it,
    or if positions are linear biases (ALiBi), which have no limit.

    Let $L$ be `max_position_embeddings` and $s$ the `factor` of the scaling. The result is $s L$ for `linear` and
    `dynamic`. For `yarn`, it is the larger of $L$ and $s$ times `original_max_position_embeddings`, since some
    configurations state $L$ before scaling and others after. Otherwise it is $L$.

    Source: `RopeParameters` in transformers/modeling_rope_utils.py; vLLM's `_get_and_verify_max_len` multiplies for
    the same types.

    Example:
        >>> from transformers import LlamaConfig
        >>> context_length(LlamaConfig(max_position_embeddings=4096))
        4096
    """
    text = config.get_text_config()
    length: int | None = getattr(text, "max_position_embeddings", None)  # GPT-2's configuration has another name
    rope = getattr(text, "rope_parameters", None) or {}
    if length is None or getattr(text, "alibi", False):
        return None
    kind, factor = rope.get("rope_type"), rope.get("factor") or 1
    if kind in STRETCHED:
        return int(factor * length)
    return max(length, int(factor * rope["original_max_position_embeddings"])) if kind == "yarn" else length


def has_chat_template(name: str, revision: str | None = None) -> bool:
    """Returns whether a model's tokenizer has a chat template; `True` if it cannot be loaded, since loading the model
    then raises the error."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(checkpoint_path(name), revision=revision)
    except (OSError, ValueError, KeyError, ImportError):
        return True
    return tokenizer.chat_template is not None
