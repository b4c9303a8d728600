"""Turns sampled completions into rows for supervised fine-tuning: the shortest correct completion of each problem."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from leash_trl.completions.thinking import ThinkingMarkers


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def shortest_correct_text(completions: Sequence[Mapping[str, Any]]) -> str | None:
    """Returns the text of the shortest correct completion that ended by itself, `None` if there is none; for the
    argument, see [`~leash_trl.evaluation.runs.read_lines`]."""
    candidates = []
    for completion in completions:
        # A truncated completion may be correct, but would not teach the model to end.
        if completion["is_correct"] and completion["finish_reason"] != "length":
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
) -> dict[str, Any]:
    """Returns a row in TRL's prompt-completion format, which `trl sft` turns into the tokens that the model generated.

    A text that the chat template writes at the end of the prompt to begin the thinking becomes part of the completion,
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
    # The text after which the model generated the completion. It may end with an opening such as "<think>\n".
    prompt_text = str(tokenizer.apply_chat_template(prompt, add_generation_prompt=True, **options))
    markers = ThinkingMarkers(thinking_end)
    if markers.start is not None and markers.is_opened_by(prompt_text):
        opening = prompt_text[prompt_text.rindex(markers.start) :]
        text = opening + text
    message = {"role": "assistant", "content": text}
    # The text on which TRL will train. Some templates remove the thinking from assistant messages, and others change
    # the blanks around it, which does no harm.
    trained_text = str(tokenizer.apply_chat_template([*prompt, message], **options))
    if "".join(text.split()) not in "".join(trained_text.split()):
        raise ValueError(
            f"chat_template leaves out a part of the completion {text!r:.99}, perhaps its thinking, so it would not "
            "be learned; set a template that writes all of an assistant message"
        )
    row: dict[str, Any] = {"prompt": prompt, "completion": [message]}
    # TRL passes the arguments in this column to the chat template.
    if chat_template_kwargs:
        row["chat_template_kwargs"] = dict(chat_template_kwargs)
    return row
