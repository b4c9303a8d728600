"""Turns prompts into conversations, so that the model's chat template, and with it the thinking block, applies."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from datasets import Dataset


# The authors' release appends this to every question.
BOXED_SUFFIX = " Please reason step by step, and put your final answer within \\boxed{}."

# What DAPO-Math-17k writes around every question, and the form of its head in slime and miles.
_DAPO_HEAD = (
    "Solve the following math problem step by step. The last line of your response should be of the form "
    "Answer: {} where $Answer is the answer to the problem.\n\n"
)
DAPO_HEADS = (_DAPO_HEAD.format("$Answer (without quotes)"), _DAPO_HEAD.format("\\boxed{$Answer}"))
DAPO_TAIL = '\n\nRemember to put your answer on its own line after "Answer:".'

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def is_blank(row: Mapping[str, Any]) -> bool:
    """Whether a row's prompt asks nothing: it is missing, empty or blank, or its last message is.

    Messages with images, and a last message that calls tools, ask something without text.

    Args:
        row (`Mapping`): Row with text or messages in column `prompt`, and perhaps with `image` or `images`.

    Example:
        >>> [is_blank({"prompt": prompt}) for prompt in (None, " ", [], [{"role": "user", "content": "?"}])]
        [True, True, True, False]
    """
    content = row["prompt"]
    if content and isinstance(content, list):
        if not isinstance(content[-1], Mapping):
            return True
        if content[-1].get("tool_calls") or row.get("images") or row.get("image"):
            return False
        content = content[-1].get("content")
    return not (content.strip() if isinstance(content, str) else content)


def check_not_blank(dataset: "Dataset") -> None:
    """Raises `ValueError` if a prompt is neither text nor messages, or asks nothing; it names the first such row."""
    batches = dataset.select_columns("prompt").iter(1000)
    for row, prompt in enumerate(prompt for batch in batches for prompt in batch["prompt"]):
        is_messages = isinstance(prompt, list) and all(isinstance(part, dict) for part in prompt)
        is_known = is_messages or isinstance(prompt, str)
        # images take long to read
        if not is_known or (is_blank({"prompt": prompt}) and is_blank(dataset[row])):
            raise ValueError(f"row {row} (counted from 0) of the data set: {_blank_problem(prompt)}")


def _blank_problem(prompt: Any) -> str:
    """The error text for a blank prompt, with its remedy."""
    return f"prompt is {prompt!r}, but must be text or messages with something in it; fill it or drop the row"


def as_conversation(
    row: dict[str, Any],
    suffix: str = BOXED_SUFFIX,
    has_chat_template: bool = True,
    system_prompt: str | None = None,
) -> dict[str, Any]:
    r"""A row whose prompt is a conversation; for `Dataset.map`. The one rule for prompts.

    1. Messages stay as they are, after the system prompt unless they begin with one.
    2. A string becomes one user message, so that the chat template applies: the string without blanks around it, then
       the suffix, unless the string ends with it. For a base model, whose tokenizer has no chat template, it stays a
       string, with the same suffix.
    3. In published data (`leash_trl.data.schemas`), the question is the string. If the data has its own template
       around the question (verl, slime), the string is the question inside it. Training reads column `prompt` if there
       is one; so do filtering and evaluation, unless the data has question and answer, but no gold for the prompt.

    `leash train`, `leash filter` and `leash eval` read all data by this rule, with the suffix of the option
    `prompt_suffix`; all three refuse messages if the tokenizer has no chat template. `LeashGRPOTrainer` takes a data
    set as it is, like TRL: a string goes to the model without chat template and suffix, with a warning if the
    tokenizer has a template. Prepare data for it with `Dataset.map(as_conversation)`.

    Args:
        row (`dict`): Row with messages or a string in column `prompt`.
        suffix (`str`): Text to append to strings; defaults to the instruction of the LEASH authors' release.
        has_chat_template (`bool`): Whether the model's tokenizer has one.
        system_prompt (`str`): Content of a system message to put in front.

    Returns:
        `dict`: The new `prompt` column; other columns stay as they are under `Dataset.map`.

    Raises:
        `ValueError`: If there is nothing to ask: no prompt, an empty one, an empty last message, or one of the
            assistant; or if there is a system prompt and no chat template.

    Example:
        >>> as_conversation({"prompt": "What is 2 + 2?"}, suffix=" Be brief.")
        {'prompt': [{'role': 'user', 'content': 'What is 2 + 2? Be brief.'}]}
    """
    prompt = row["prompt"]
    if is_blank(row):
        raise ValueError(_blank_problem(prompt))
    if isinstance(prompt, str):
        text = prompt.strip()
        asked = text if text.endswith(suffix.strip()) else text + suffix
        prompt = [{"role": "user", "content": asked}] if has_chat_template else asked
    # TRL would end this turn and begin another
    elif prompt[-1].get("role") == "assistant" and not prompt[-1].get("tool_calls"):
        raise ValueError("prompt ends with a message of the assistant, but must end with the user's; drop it")
    if system_prompt is None or (not isinstance(prompt, str) and prompt[0].get("role") == "system"):
        return {"prompt": prompt}
    if isinstance(prompt, str):
        raise ValueError("system_prompt needs a chat template, which this tokenizer lacks; set chat_template")
    return {"prompt": [{"role": "system", "content": system_prompt}, *prompt]}


def bare_question(text: str) -> str:
    """A question without the text of its source around it: DAPO's template, or the suffix of the LEASH release.

    Source: the templates of DAPO-Math-17k, of its copies for slime and miles, and of the LEASH authors' files. Text
    without them only loses the blanks around it.

    Example:
        >>> bare_question("What is 2 + 2? Please reason step by step, and put your final answer within \\\\boxed{}.")
        'What is 2 + 2?'
    """
    text = text.strip().removesuffix(BOXED_SUFFIX).removesuffix(DAPO_TAIL)
    for head in DAPO_HEADS:
        text = text.removeprefix(head)
    return text.strip()


def multiple_choice_question(question: str, choices: Sequence[str]) -> str:
    r"""A question with its choices, one lettered line each, and the request for a letter.

    Differs: of the release's sentence only "Answer LETTER within \boxed{}" is known; this has the same meaning.

    Example:
        >>> print(multiple_choice_question("Which is prime?", ["4", "5"]))
        Which is prime?
        <BLANKLINE>
        A. 4
        B. 5
        <BLANKLINE>
        Answer with the LETTER of the right choice within \boxed{}.
    """
    lines = [f"{letter}. {choice}" for letter, choice in zip(LETTERS[: len(choices)], choices, strict=True)]
    return "\n".join([question, "", *lines, "", "Answer with the LETTER of the right choice within \\boxed{}."])
