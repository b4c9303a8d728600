"""Writes prompts with the tokenizer's chat template."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


# exceptions of chat templates: refusals, syntax errors, undefined names, and Python's own errors from expressions
TEMPLATE_FAULTS = (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError)


def question_prompt(tokenizer: Any, **options: Any) -> str:
    """Returns the prompt that a tokenizer or processor writes for a single question, as text.

    It is empty if there is no chat template, or if the template requires a system message or lists as contents.
    """
    question = [{"role": "user", "content": "?"}]
    try:
        return str(tokenizer.apply_chat_template(question, tokenize=False, add_generation_prompt=True, **options))
    except TEMPLATE_FAULTS:
        return ""


def prompt_ids(
    tokenizer: "PreTrainedTokenizerBase", prompts: Sequence[str | list[dict[str, str]]], **options: Any
) -> list[list[int]]:
    """Returns the token ids of prompts, which must be all text or all messages; the chat template formats messages
    with `options`."""
    if isinstance(prompts[0], str):
        return list(tokenizer(list(prompts))["input_ids"])
    return list(tokenizer.apply_chat_template(list(prompts), add_generation_prompt=True, return_dict=False, **options))
