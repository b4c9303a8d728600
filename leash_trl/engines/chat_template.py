"""Writes prompts with the tokenizer's chat template, and tells which token it ends an answer with."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


# exceptions of chat templates: refusals, syntax errors, undefined names, and Python's own errors from expressions
TEMPLATE_FAULTS = (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError)


def prompt_ids(
    tokenizer: "PreTrainedTokenizerBase", prompts: Sequence[str | list[dict[str, str]]], **options: Any
) -> list[list[int]]:
    """Token ids of prompts that are all text, or all messages, which the chat template then writes.

    Args:
        tokenizer (`PreTrainedTokenizerBase`):
            The model's tokenizer.
        prompts (`Sequence`):
            Texts or conversations.
        options (`Any`):
            Arguments of `apply_chat_template`.
    """
    if isinstance(prompts[0], str):
        return list(tokenizer(list(prompts))["input_ids"])
    return list(tokenizer.apply_chat_template(list(prompts), add_generation_prompt=True, return_dict=False, **options))


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
