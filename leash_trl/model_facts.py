"""Facts of a model and its tokenizer: the context length, the end tokens, and how the chat template writes prompts.

Training and evaluation use the same functions.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError


if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase


ROPE_TYPES_TO_MULTIPLY = frozenset({"linear", "dynamic"})
"""Rotary scalings for which `max_position_embeddings` is the length before scaling, as in transformers' dynamic NTK
formula. For `llama3` and `longrope`, and for models with a scaling for each kind of layer, such as Gemma 3, it is the
length after scaling."""

# exceptions of chat templates: refusals, syntax errors, undefined names, and Python's own errors from expressions
TEMPLATE_ERRORS = (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError)


def context_length(config: "PreTrainedConfig") -> int | None:
    r"""Returns how many tokens prompt and completion may have together; `None` if the configuration does not state it.

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
    text_config = config.get_text_config()
    # A configuration with another name for this length, such as GPT-2's `n_positions`, also has it under this name.
    length: int | None = getattr(text_config, "max_position_embeddings", None)
    if length is None:
        return None
    # such as {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768, "rope_theta": 1000000.0};
    # empty for models without rotary embeddings
    rope_parameters = getattr(text_config, "rope_parameters", None) or {}
    rope_type = rope_parameters.get("rope_type")
    factor = rope_parameters.get("factor") or 1
    if rope_type in ROPE_TYPES_TO_MULTIPLY:
        return int(factor * length)
    if rope_type == "yarn":
        # In some configurations, `length` is the length after scaling, in others that before scaling.
        stretched = int(factor * rope_parameters["original_max_position_embeddings"])
        return max(length, stretched)
    return length


def tokenizer_of(processing_class: Any) -> Any:
    """Returns a trainer's tokenizer: its `processing_class`, or the tokenizer inside it if this is a processor."""
    return getattr(processing_class, "tokenizer", processing_class)


def eos_token_ids(model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase") -> list[int]:
    """Returns the ids of the end tokens of the tokenizer and of a model's generation configuration, each once."""
    return merged_eos_token_ids(model.generation_config.eos_token_id, tokenizer)


def merged_eos_token_ids(configured: list[int] | int | None, tokenizer: "PreTrainedTokenizerBase") -> list[int]:
    """Returns the id of the tokenizer's end token and, after it, those of a generation configuration, each once.

    Args:
        configured (`list[int]` or `int`): `eos_token_id` of the generation configuration; `None` if it has none.
    """
    # Most generation configurations have one end token, some have a list, and some have none.
    if configured is None:
        configured = []
    elif isinstance(configured, int):
        configured = [configured]
    # A dict keeps the order, which a set would not.
    without_repetitions = dict.fromkeys([tokenizer.eos_token_id, *configured])
    return list(without_repetitions)


SAMPLE_QUESTION = [{"role": "user", "content": "?"}]


def rendered_prompt(tokenizer: Any, messages: list[dict[str, Any]], **options: Any) -> str:
    """Returns the prompt that the chat template of a tokenizer or processor writes for messages, as text.

    The text is empty if there is no chat template, or if the template raises an error, for example because it requires
    a system message or contents that are lists.
    """
    try:
        prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **options)
    except TEMPLATE_ERRORS:
        return ""
    return str(prompt)


def prompt_ids(
    tokenizer: "PreTrainedTokenizerBase", prompts: Sequence[str | list[dict[str, str]]], **options: Any
) -> list[list[int]]:
    """Returns the token ids of one or more prompts, which must be all text or all messages. `options` are the
    arguments of the chat template, which formats messages only."""
    is_text = isinstance(prompts[0], str)
    if is_text:
        return list(tokenizer(list(prompts))["input_ids"])
    # By default, transformers would return a dictionary with the ids and attention masks.
    rows = tokenizer.apply_chat_template(list(prompts), add_generation_prompt=True, return_dict=False, **options)
    return list(rows)
