"""Completions that never end though the reward pays for them, and the chat template, which ends a turn."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError

from leash_trl.length_control.rollouts import Rollouts


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


# what chat templates raise: refusals, syntax and undefined names, and Python's own errors from expressions
TEMPLATE_FAULTS = (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError)
ENOUGH = 32  # completions without an end before one may say that none ends


@dataclass
class EndWatch:
    """Looks at training batches until a completion has ended, or until `ENOUGH` have not."""

    num_seen: int = field(default=0, init=False)
    num_rewarded: int = field(default=0, init=False)
    is_over: bool = field(default=False, init=False)

    def look(self, rollouts: Rollouts) -> bool:
        """Whether this batch makes it plain, for the first time, that nothing ends and the reward pays anyhow."""
        if self.is_over:
            return False
        self.num_seen += len(rollouts.lengths)
        self.num_rewarded += int((rollouts.is_truncated & rollouts.is_correct).sum())
        has_end = not bool(rollouts.is_truncated.all())
        self.is_over = has_end or self.num_seen >= ENOUGH
        return self.is_over and not has_end and self.num_rewarded > 0

    def problem(self, end_tokens: Mapping[str, int], turn_end: tuple[str, int] | None, limit: float) -> str:
        """What is wrong, and what to do about it.

        Args:
            end_tokens (`Mapping[str, int]`):
                Tokens that end a completion, with their ids.
            turn_end (`tuple[str, int]`, *optional*):
                Token that the chat template ends an answer with, and its id, from [`turn_end`].
            limit (`float`):
                Generation limit in tokens.
        """
        known = ", ".join(f"{token}, {number}" for token, number in end_tokens.items())
        remedy = _limit_remedy(turn_end, limit)
        if turn_end is not None and turn_end[1] not in end_tokens.values():
            token, number = turn_end
            remedy = (
                f"The chat template ends answers with {token} ({number}), which ends no completion: add {number} to "
                "eos_token_id in the model's generation_config.json, or set it as the tokenizer's eos_token"
            )
        return (
            f"none of the first {self.num_seen} completions ended with an end token ({known}), yet "
            f"{self.num_rewarded} of them were rewarded as right: a length of {limit} tokens says nothing then. "
            + remedy
        )


def _limit_remedy(turn_end: tuple[str, int] | None, limit: float) -> str:
    ends = "" if turn_end is None else f" (the chat template ends answers with {turn_end[0]})"
    return (
        f"Raise max_completion_length (now {limit}), or take a model that ends its answers, as base models often do "
        f"not{ends}; let the reward give nothing for an answer without an end, or leave it out of the loss with "
        "mask_truncated_completions: true"
    )


def check_chat_template(chat_template: Any) -> None:
    """Raises `ValueError` if there is no chat template to write messages with."""
    if chat_template is None:
        raise ValueError(
            "prompts are messages, but the tokenizer has no chat_template to write them with; take an "
            "instruction-tuned model, set tokenizer.chat_template and save it with the model, or give "
            "prompts that are plain text"
        )


def turn_end(
    tokenizer: "PreTrainedTokenizerBase", chat_template: str | None, chat_template_kwargs: Mapping[str, Any]
) -> tuple[str, int] | None:
    """The token that a chat template puts behind an answer, and its id; `None` if that cannot be told.

    Args:
        tokenizer (`PreTrainedTokenizerBase`):
            The model's tokenizer.
        chat_template (`str`, *optional*):
            Template in place of the tokenizer's.
        chat_template_kwargs (`Mapping`):
            Arguments of the template.
    """
    if chat_template is None and tokenizer.chat_template is None:
        return None
    answer = "leash"
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": answer}]
    try:
        text = tokenizer.apply_chat_template(
            messages, chat_template=chat_template, tokenize=False, **chat_template_kwargs
        )
    except TEMPLATE_FAULTS:  # some want a system message, or lists for contents
        return None
    _, found, behind = text.rpartition(answer)
    ids = tokenizer.encode(behind, add_special_tokens=False) if found and behind else []
    return (tokenizer.convert_ids_to_tokens(ids[0]), ids[0]) if ids else None
