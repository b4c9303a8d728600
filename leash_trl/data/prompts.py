"""Turns prompts into conversations, so that the model's chat template applies, including its thinking block."""

import functools
import itertools
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from leash_trl.completions.prompts import with_suffix


if TYPE_CHECKING:
    from datasets import Dataset


logger = logging.getLogger(__name__)

# The authors' release appends this to every question, and so do our commands where mathematics is graded.
BOXED_SUFFIX = " Please reason step by step, and put your final answer within \\boxed{}."

# The template of DAPO-Math-17k around every question. Its beginning is different in slime and miles.
_DAPO_HEAD = (
    "Solve the following math problem step by step. The last line of your response should be of the form "
    "Answer: {} where $Answer is the answer to the problem.\n\n"
)
DAPO_HEADS = (_DAPO_HEAD.format("$Answer (without quotes)"), _DAPO_HEAD.format("\\boxed{$Answer}"))
DAPO_TAIL = '\n\nRemember to put your answer on its own line after "Answer:".'

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def has_blank_prompt(row: Mapping[str, Any]) -> bool:
    """Returns whether a row's prompt, or its last message, is missing, empty or blank.

    Messages with images, and a last message that calls tools, need no text.

    Args:
        row (`Mapping`): Row with text or messages in column `prompt`, and optionally with `image` or `images`.

    Example:
        >>> [has_blank_prompt({"prompt": prompt}) for prompt in (None, " ", [], [{"role": "user", "content": "?"}])]
        [True, True, True, False]
    """
    content = row["prompt"]
    if content and isinstance(content, list):
        if not isinstance(content[-1], Mapping):  # a list of something else than messages
            return True
        # A message that calls tools, or that has images, may have no text.
        if content[-1].get("tool_calls") or row.get("images") or row.get("image"):
            return False
        content = content[-1].get("content")
    # `None` and an empty list are blank, too. A list of parts, as messages with images have it, is not.
    return not str(content or "").strip()


def check_prompts_not_blank(dataset: "Dataset") -> None:
    """Raises `ValueError` if a prompt is blank; the message names the first row with one."""
    # Only the prompts are read, in batches, since other columns may hold images.
    batches = dataset.select_columns("prompt").iter(batch_size=1000)
    prompts = itertools.chain.from_iterable(batch["prompt"] for batch in batches)
    for row, prompt in enumerate(prompts):
        # A blank text is allowed beside images. These take long to decode, so the complete row is read only if the
        # text is blank.
        if has_blank_prompt({"prompt": prompt}) and has_blank_prompt(dataset[row]):
            raise ValueError(f"row {row} (counted from 0) of the data set: {_blank_prompt_message(prompt)}")


def _blank_prompt_message(prompt: Any) -> str:
    """Returns the error message for a blank prompt, with its remedy."""
    return f"prompt is {prompt!r}, but must be text or messages that are not blank; fill it or drop the row"


def as_conversation(
    row: dict[str, Any],
    suffix: str = "",
    has_chat_template: bool = True,
    system_prompt: str | None = None,
) -> dict[str, Any]:
    r"""Turns the prompt of a row into a conversation, for `Dataset.map`. All commands use this rule for prompts.

    1. Messages stay unchanged; the system prompt is put before them unless they begin with one.
    2. A string becomes one user message, so that the chat template applies. Its surrounding blanks are removed, and a
       suffix, if there is one, is appended unless the string ends with it. For a base model, whose tokenizer has no
       chat template, it stays a string, with the same suffix.
    3. In published data (`leash_trl.data.schemas`), the question is the string. A suffix replaces the data's own
       template (verl, slime). Training uses column `prompt` if it exists; so do filtering and evaluation, unless the
       data has question and answer, but no gold for the prompt.

    `leash train`, `leash filter` and `leash eval` apply this rule to all data, with the suffix of the option
    `prompt_suffix`, which is by default `BOXED_SUFFIX` where mathematics is graded, and empty elsewhere; all three
    refuse messages if the tokenizer has no chat template. `LeashGRPOTrainer` does not change the data set, like TRL: a
    string is passed to the model without chat template, with a warning if the tokenizer has a template. Prepare data
    for it with `Dataset.map(as_conversation)`. For `math_reward`, which reads answers in a box, ask for one with
    `fn_kwargs={"suffix": BOXED_SUFFIX}`.

    Args:
        row (`dict`): Row with messages or a string in column `prompt`.
        suffix (`str`): Text to append to strings, such as `BOXED_SUFFIX`, the instruction of the LEASH authors'
            release.
        has_chat_template (`bool`): Whether the model's tokenizer has a chat template.
        system_prompt (`str`): Content of a system message to put before the others.

    Returns:
        `dict`: The new column `prompt`; `Dataset.map` keeps the other columns.

    Raises:
        `ValueError`: If the prompt or its last message is missing or blank, if the last message is the assistant's, or
            if there is a system prompt but no chat template.

    Example:
        >>> as_conversation({"prompt": "What is 2 + 2?"})
        {'prompt': [{'role': 'user', 'content': 'What is 2 + 2?'}]}
        >>> as_conversation({"prompt": "What is 2 + 2?"}, suffix=" Be brief.")
        {'prompt': [{'role': 'user', 'content': 'What is 2 + 2? Be brief.'}]}
    """
    prompt = row["prompt"]
    if has_blank_prompt(row):
        raise ValueError(_blank_prompt_message(prompt))
    if isinstance(prompt, str):
        text = _with_suffix_once(prompt, suffix)
        if has_chat_template:
            return {"prompt": _with_system_prompt([{"role": "user", "content": text}], system_prompt)}
        if system_prompt is not None:
            raise ValueError(
                "system_prompt needs a chat template, which the tokenizer does not have; set chat_template"
            )
        return {"prompt": text}
    # TRL would end this message, and the model would begin another message of the assistant. This is meant only after
    # calls of tools.
    if prompt[-1].get("role") == "assistant" and not prompt[-1].get("tool_calls"):
        raise ValueError("prompt ends with a message of the assistant, but must end with one of the user; drop it")
    return {"prompt": _with_system_prompt(prompt, system_prompt)}


def _with_suffix_once(prompt: str, suffix: str) -> str:
    """Returns a text that ends with the suffix; some data has it already, such as the files of the LEASH release."""
    text = prompt.strip()
    return text if text.endswith(suffix.strip()) else with_suffix(text, suffix)


def _with_system_prompt(messages: list[dict[str, Any]], system_prompt: str | None) -> list[dict[str, Any]]:
    """Returns messages that begin with the system prompt, if there is one, unless they begin with another."""
    if system_prompt is None or messages[0].get("role") == "system":
        return messages
    return [{"role": "system", "content": system_prompt}, *messages]


def contains_suffix(prompt: Any, suffix: str) -> bool:
    """Returns whether the text of a prompt, or of its last message, has a suffix, after which other text may follow.

    Example:
        >>> contains_suffix([{"role": "user", "content": "2 + 2? Be brief. Effort: low."}], " Be brief.")
        True
    """
    # The content of a message with images is a list of parts and no text.
    text = prompt if isinstance(prompt, str) else prompt[-1].get("content")
    return isinstance(text, str) and suffix.strip() in text


@functools.cache
def log_suffix_once(suffix: str) -> None:
    """Logs what is appended to prompts, once for all data sets of a process."""
    logger.warning('prompt_suffix %r is appended to prompts that are text; set prompt_suffix to "" for none', suffix)


def bare_question(text: str) -> str:
    """Removes the text that a source adds to a question: DAPO's template, or the suffix of the LEASH release.

    Other text only loses its surrounding blanks.

    Source: the templates of DAPO-Math-17k, of its copies for slime and miles, and of the LEASH authors' files.

    Example:
        >>> bare_question("What is 2 + 2? Please reason step by step, and put your final answer within \\\\boxed{}.")
        'What is 2 + 2?'
    """
    text = text.strip().removesuffix(BOXED_SUFFIX).removesuffix(DAPO_TAIL)
    for head in DAPO_HEADS:
        text = text.removeprefix(head)
    return text.strip()


def multiple_choice_question(question: str, choices: Sequence[str]) -> str:
    r"""Returns a question with one lettered line for each choice, and the request for a letter.

    Differs: of the sentence in the release, only "Answer LETTER within \boxed{}" is known. Ours means the same.

    Example:
        >>> print(multiple_choice_question("Which is prime?", ["4", "5"]))
        Which is prime?
        <BLANKLINE>
        A. 4
        B. 5
        <BLANKLINE>
        Answer with the LETTER of the right choice within \boxed{}.
    """
    lines = [question, ""]
    for letter, choice in zip(LETTERS[: len(choices)], choices, strict=True):
        lines.append(f"{letter}. {choice}")
    lines += ["", "Answer with the LETTER of the right choice within \\boxed{}."]
    return "\n".join(lines)
