"""Turns sampled completions into rows for supervised fine-tuning: the shortest correct completion of each problem."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from leash_trl.completions.thinking import ThinkingMarkers


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def shortest_correct_text(completions: Sequence[Mapping[str, Any]]) -> str | None:
    """Returns the text of the shortest correct completion that ended by itself; `None` if there is none. The argument
    is described in [`~leash_trl.evaluation.runs.read_lines`]."""
    # A truncated completion may be correct, but would not teach the model to end.
    ended = [completion for completion in completions if completion["finish_reason"] != "length"]
    correct = [completion for completion in ended if completion["is_correct"]]
    if not correct:
        return None
    text: str = min(correct, key=lambda completion: completion["num_tokens"])["text"]
    return text


def prompt_completion_row(
    prompt: str | list[dict[str, str]],
    text: str,
    tokenizer: "PreTrainedTokenizerBase",
    thinking_end: str,
    chat_template_kwargs: Mapping[str, Any],
) -> dict[str, Any]:
    """Returns a row in TRL's prompt-completion format, which `trl sft` turns into the tokens that the model generated.

    If the chat template ends the prompt with a text that opens the thinking, this text becomes part of the completion,
    since the template does not write it before an assistant message.

    Args:
        prompt (`str` or `list[dict]`): Text, or messages, as the model was asked.
        text (`str`): Completion of the model.
        thinking_end (`str`): Text that ends the thinking.
        chat_template_kwargs (`Mapping`): Arguments of the chat template, which the row keeps for TRL.

    Raises:
        `ValueError`: If the chat template leaves a part of the completion out, such as its thinking.
    """
    if isinstance(prompt, str):
        return {"prompt": prompt, "completion": text}
    options: dict[str, Any] = {"tokenize": False, **chat_template_kwargs}
    # the text after which the model generated the completion
    prompt_text = str(tokenizer.apply_chat_template(prompt, add_generation_prompt=True, **options))
    message = {"role": "assistant", "content": opening_of_thinking(prompt_text, thinking_end) + text}
    # the text on which TRL will train
    trained_text = str(tokenizer.apply_chat_template([*prompt, message], **options))
    check_whole_in(trained_text, message["content"])
    row: dict[str, Any] = {"prompt": prompt, "completion": [message]}
    # TRL passes the arguments in this column to the chat template.
    if chat_template_kwargs:
        row["chat_template_kwargs"] = dict(chat_template_kwargs)
    return row


def opening_of_thinking(prompt_text: str, thinking_end: str) -> str:
    """Returns the text at the end of a prompt that opens the thinking, such as `"<think>\\n"`; empty if none does."""
    markers = ThinkingMarkers(thinking_end)
    if markers.start is None or not markers.is_opened_by(prompt_text):
        return ""
    return prompt_text[prompt_text.rindex(markers.start) :]


def check_whole_in(trained_text: str, completion: str) -> None:
    """Raises `ValueError` if a text that a chat template rendered lacks a part of a completion. Some templates remove
    the thinking; others change the blanks around it, which does no harm."""
    if without_blanks(completion) not in without_blanks(trained_text):
        raise ValueError(
            f"chat_template leaves out a part of the completion {completion!r:.99}, perhaps its thinking, which would "
            "not be learned; set a template that writes all of an assistant message"
        )


def without_blanks(text: str) -> str:
    """Returns a text without white space."""
    return "".join(text.split())
