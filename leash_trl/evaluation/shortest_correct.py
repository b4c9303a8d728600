"""Turns sampled completions into rows for supervised fine-tuning: the shortest correct completion of each problem."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from leash_trl.completions.thinking import ThinkingMarkers


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def shortest_correct_text(completions: Sequence[Mapping[str, Any]]) -> str | None:
    """Returns the text of the shortest correct completion that ended by itself and has no special tokens before its
    end; `None` if there is none. The argument is described in [`~leash_trl.evaluation.runs.read_lines`]."""
    candidates = []
    for completion in completions:
        # A truncated completion may be correct, but would not teach the model to end.
        is_truncated = completion["finish_reason"] == "length"
        # The text lacks special tokens, such as the end of the thinking of some models.
        is_text_complete = "num_special_tokens" not in completion
        if completion["is_correct"] and is_text_complete and not is_truncated:
            candidates.append(completion)
    if not candidates:
        return None
    text: str = min(candidates, key=lambda completion: completion["num_tokens"])["text"]
    return text


def prompt_completion_row(
    prompt: str | list[dict[str, str]],
    text: str,
    tokenizer: "PreTrainedTokenizerBase",
    thinking_end: str,
    chat_template_kwargs: Mapping[str, Any],
) -> dict[str, Any] | None:
    """Returns a row in TRL's prompt-completion format, which `trl sft` turns into the tokens that the model read and
    generated, up to white space, with the token that ends the completion; `None` if the chat template writes other
    text, for example without the thinking.

    If the chat template ends the prompt with a text that opens the thinking, this text becomes part of the completion,
    since the template does not write it before an assistant message.

    Args:
        prompt (`str` or `list[dict]`): Text, or messages, as the model was asked.
        text (`str`): Completion of the model.
        thinking_end (`str`): Text that ends the thinking.
        chat_template_kwargs (`Mapping`): Arguments of the chat template, which the row keeps for TRL. The model was
            asked without those that are `None`.

    Returns:
        `dict[str, Any]`: `prompt` and `completion`; `chat_template_kwargs` if there are any; `num_tokens`, the tokens
        of prompt and completion.
    """
    if isinstance(prompt, str):
        # TRL appends the token that ends the completion.
        return {"prompt": prompt, "completion": text, "num_tokens": len(tokenizer.encode(prompt + text)) + 1}
    asked_with = {name: value for name, value in chat_template_kwargs.items() if value is not None}
    # the text after which the model generated the completion
    prompt_text = str(tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True, **asked_with))
    message = {"role": "assistant", "content": opening_of_thinking(prompt_text, thinking_end) + text}
    # the text on which TRL will train
    trained_text = str(tokenizer.apply_chat_template([*prompt, message], tokenize=False, **chat_template_kwargs))
    if not has_one_more_token(trained_text, prompt_text + text, tokenizer):
        return None
    row: dict[str, Any] = {"prompt": prompt, "completion": [message]}
    # TRL passes the arguments in this column to the chat template.
    if chat_template_kwargs:
        row["chat_template_kwargs"] = dict(chat_template_kwargs)
    row["num_tokens"] = len(tokenizer.encode(trained_text, add_special_tokens=False))
    return row


def opening_of_thinking(prompt_text: str, thinking_end: str) -> str:
    """Returns the text at the end of a prompt that opens the thinking, such as `"<think>\\n"`; empty if none does."""
    markers = ThinkingMarkers(thinking_end)
    if markers.start is None or not markers.is_opened_by(prompt_text):
        return ""
    return prompt_text[prompt_text.rindex(markers.start) :]


def has_one_more_token(trained_text: str, generated_text: str, tokenizer: "PreTrainedTokenizerBase") -> bool:
    """Returns whether a text that a chat template wrote is the generated text and one token that ends it. White space,
    which some templates change, is not compared."""
    trained, generated = without_blanks(trained_text), without_blanks(generated_text)
    rest = trained.removeprefix(generated)  # of other text, all is left, which is more than one token
    return len(tokenizer.encode(rest, add_special_tokens=False)) == 1


def without_blanks(text: str) -> str:
    """Returns a text without white space."""
    return "".join(text.split())
