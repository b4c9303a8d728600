"""Looks at the tokenizer's chat template: whether it is there, what it raises, and which token ends an answer."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


# exceptions of chat templates: refusals, syntax errors, undefined names, and Python's own errors from expressions
TEMPLATE_FAULTS = (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError)


def check_chat_template(chat_template: Any) -> None:
    """Raises `ValueError` if there is no chat template to write messages with."""
    if chat_template is None:
        raise ValueError(
            "prompts are messages, but the tokenizer has no chat_template to write them with; take an "
            "instruction-tuned model, set tokenizer.chat_template and save it with the model, or give "
            "prompts that are plain text"
        )


def turn_end(tokenizer: "PreTrainedTokenizerBase", **options: Any) -> Mapping[str, int]:
    """The token that the chat template puts after an answer, with its id; empty if it is not known.

    Args:
        tokenizer (`PreTrainedTokenizerBase`):
            The model's tokenizer.
        options (`Any`):
            Arguments of `apply_chat_template`, such as a `chat_template` in place of the tokenizer's.
    """
    answer = "leash"
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": answer}]
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, **options)
    except TEMPLATE_FAULTS:  # there is none, or it needs a system message, or lists as contents
        return {}
    _, found, behind = text.rpartition(answer)
    ids = tokenizer.encode(behind, add_special_tokens=False) if found and behind else []
    return {tokenizer.convert_ids_to_tokens(ids[0]): ids[0]} if ids else {}
