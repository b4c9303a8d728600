"""Reads question and gold answer from rows of published data sets, by the columns of the data set.

`leash_trl.data.problems` loads the rows and removes repeated ones.
"""

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from datasets import Dataset, Features, IterableDataset

from leash_trl.data.prompts import LETTERS, multiple_choice_question


Row = Mapping[str, Any]
Messages = list[dict[str, Any]]

GPQA_CHOICES = ("Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3", "Correct Answer")

QUESTION_AND_GOLD_COLUMNS = (
    ("question", "final_answer"),
    ("problem", "answer"),
    ("question", "answer"),
    ("problem", "solution"),
    ("question", "solution"),
    ("question", "ground_truth"),
)

# columns of conversations, as in TRL and in ShareGPT, with the keys of a message's role and content
CHAT_KEYS = {"messages": ("role", "content"), "conversations": ("from", "value")}

# names of roles in ShareGPT
CHAT_ROLES = {"human": "user", "gpt": "assistant"}

# columns beside a conversation that may hold its gold
CHAT_GOLD_COLUMNS = ("final_answer", "answer", "solution", "ground_truth")

# In this order: if a row has several ids, the first that is not empty is used.
ID_COLUMNS = ("id", "unique_id", "problem_idx", "question_id", "Record ID")


@dataclass(frozen=True)
class Schema:
    """Columns of one family of data sets, and how to read its rows."""

    columns: tuple[str, ...]  # columns that the data set must have; it may have more
    read_row: Callable[[Row], tuple[str | Messages, str]]  # returns question, as text or as messages to keep, and gold
    has_template: bool = False  # whether the text of a question may have a template around it


def read_text(row: Row, column: str) -> str:
    """Returns the value of a column as text without surrounding blanks, and a float without decimals as an integer.
    Raises `ValueError` if the value is empty, or is neither text nor a number nor a list with one of them."""
    value = row[column]
    # Data in the format of verl may have a list of golds, mostly of one. Of several, it is not known which is correct.
    if isinstance(value, list) and len(value) == 1:
        (value,) = value
    if isinstance(value, float) and value.is_integer():  # pandas has 42.0 for 42 if a cell of the column is empty
        value = int(value)
    # `bool` is a subclass of `int`, but true and false are no numbers.
    is_answer = isinstance(value, str | int | float) and not isinstance(value, bool)
    is_nan = value != value  # NaN alone differs from itself; it stands for an empty cell
    if not is_answer or is_nan or not str(value).strip():
        raise ValueError(f"column {column!r} is {value!r}, but must be text or a number; fill it or drop the row")
    return str(value).strip()


def _text_of_only_message(messages: Messages) -> str | Messages:
    """Returns the text of a conversation with a single message, so that the text can get another template; returns
    other conversations unchanged."""
    if len(messages) == 1 and isinstance(messages[0]["content"], str):
        return str(messages[0]["content"])
    return messages


def _question_of_prompt(row: Row) -> str | Messages:
    prompt = row["prompt"]
    return prompt if isinstance(prompt, str) else _text_of_only_message(prompt)


def _read_chat(column: str, gold_column: str | None, row: Row) -> tuple[str | Messages, str]:
    """Returns a conversation without the assistant's last message as the question. The gold is the value of
    `gold_column` or, if this is `None`, that last message."""
    role_key, content_key = CHAT_KEYS[column]
    messages: Messages = []
    for message in row[column]:
        # {"from": "human", "value": "2 + 2?"} of ShareGPT becomes {"role": "user", "content": "2 + 2?"}.
        role = message[role_key]
        messages.append({"role": CHAT_ROLES.get(role, role), "content": message[content_key]})
    # The assistant's last message is an answer and no part of the question, also if the gold is in another column.
    is_answered = messages[-1]["role"] == "assistant"
    question = _text_of_only_message(messages[:-1] if is_answered else messages)
    if gold_column is not None:
        return question, read_text(row, gold_column)
    if not is_answered:
        raise ValueError(f"column {column!r} must end with an answer of the assistant; fix or drop the row")
    return question, read_text(messages[-1], "content")


def _read_alpaca(row: Row) -> tuple[str | Messages, str]:
    question = read_text(row, "instruction")
    context = str(row.get("input") or "").strip()
    if context:
        question = f"{question}\n\n{context}"
    return question, read_text(row, "output")


def _read_verl(row: Row) -> tuple[str | Messages, str]:
    column = "reward_model.ground_truth"
    # A row of this single column, so that messages of `read_text` name the entry.
    gold = read_text({column: row["reward_model"]["ground_truth"]}, column)
    return _question_of_prompt(row), gold


def _read_slime(row: Row) -> tuple[str | Messages, str]:
    return _question_of_prompt(row), read_text(row, "label")


def _read_trl(row: Row) -> tuple[str | Messages, str]:
    return row["prompt"], read_text(row, "solution")


def _read_texts(question: str, gold: str, row: Row) -> tuple[str | Messages, str]:
    """Reads question and gold; in GSM8K, the answer is a worked solution with the gold after `####`."""
    _, _, answer = read_text(row, gold).rpartition("####")  # all of the text where there is no mark
    return read_text(row, question), read_text({gold: answer}, gold)


def _read_gpqa(row: Row) -> tuple[str | Messages, str]:
    """Puts the choices into a random order, whose seed is made of 42 and the question, so that the order does not
    depend on other rows. NeMo-Skills calls `random.seed(42)` for each row, which always puts the correct choice at C.

    Artefacts of a web form are removed as in NeMo-Skills and lm-evaluation-harness, but text in square brackets is
    kept, since names of chemicals have it (`bicyclo[2.2.1]heptane`).
    """
    question = read_text(row, "Question")
    columns = [*GPQA_CHOICES]
    random.Random(f"42 {question}").shuffle(columns)
    choices = [read_text(row, column).replace(" [title]", ". ").replace("  ", " ") for column in columns]
    return multiple_choice_question(question, choices), LETTERS[columns.index("Correct Answer")]


def _read_mmlu_pro(row: Row) -> tuple[str | Messages, str]:
    """Drops placeholders among the choices, which may change the letter of the answer."""
    options = row["options"]  # texts of the choices, some of which may be the placeholder "N/A"
    right = row["answer_index"]  # from 0
    # The correct option is kept whatever its text is. Its letter changes if placeholders before it are dropped.
    kept = [index for index, option in enumerate(options) if index == right or option.strip() != "N/A"]
    choices = [options[index].strip() for index in kept]
    return multiple_choice_question(read_text(row, "question"), choices), LETTERS[kept.index(right)]


def _chat_schemas() -> list[Schema]:
    """Returns the schemas of conversations: with a gold beside them or, last, with the assistant's answer as gold."""
    schemas = []
    for column in CHAT_KEYS:  # "messages" and "conversations"
        for gold in CHAT_GOLD_COLUMNS:  # such as "final_answer"
            schemas.append(Schema((column, gold), partial(_read_chat, column, gold), has_template=True))
        # This schema must come after those with a gold, since it applies to their columns too.
        schemas.append(Schema((column,), partial(_read_chat, column, None), has_template=True))
    return schemas


# In this order: the first schema whose columns all exist is used. Prompt and solution come first, since files of
# `leash filter` also keep the columns of their source.
SCHEMAS = (
    Schema(("prompt", "solution"), _read_trl),
    Schema(("prompt", "reward_model"), _read_verl, has_template=True),
    Schema(("prompt", "label"), _read_slime, has_template=True),
    Schema(("Question", *GPQA_CHOICES), _read_gpqa),
    Schema(("question", "options", "answer_index"), _read_mmlu_pro),
    *(Schema(columns, partial(_read_texts, *columns)) for columns in QUESTION_AND_GOLD_COLUMNS),
    *_chat_schemas(),
    Schema(("instruction", "output"), _read_alpaca),
)


def detect_schema(columns: Iterable[str], needs_gold: bool = True) -> Schema | None:
    """Returns the first of `SCHEMAS` whose columns all exist; raises `ValueError` if there is none.

    If no gold is needed and there is a column `prompt`, only schemas with this column count, and the result is `None`
    if none of them applies.

    Example:
        >>> detect_schema(["id", "question", "answer", "url"]).columns
        ('question', 'answer')
    """
    columns = [*columns]
    # If the user's own reward function grades, a column `prompt` is what to ask, and columns such as question and
    # answer beside it are for that function.
    asks_prompt = not needs_gold and "prompt" in columns
    candidates = [schema for schema in SCHEMAS if "prompt" in schema.columns or not asks_prompt]
    for schema in candidates:
        if set(schema.columns).issubset(columns):
            return schema
    if asks_prompt:
        return None  # no gold is read, and the prompt is taken as it is
    lacking = "prompt and solution" if needs_gold else "prompt"
    raise ValueError(
        f"the columns are {', '.join(columns)}, but {lacking} (or question and answer) are missing; add them, and do "
        "not rename columns that your reward functions read"
    )


def column_types(rows: Dataset | IterableDataset) -> Features:
    """Returns the types of the columns; for a stream that does not state them, those of its first row."""
    return rows.features or Dataset.from_list([next(iter(rows))]).features


def columns_to_read(schema: Schema | None, columns: Iterable[str]) -> list[str]:
    """Returns the columns that a schema reads, so that other columns, such as long worked solutions, are not
    decoded."""
    columns_of_schema = {"prompt", "solution", "input", "extra_info", *ID_COLUMNS}
    if schema is not None:
        columns_of_schema.update(schema.columns)
    return [column for column in columns if column in columns_of_schema]


def row_id(row: Row) -> str | None:
    """Returns the id that a row has in its source; `None` if it has none."""
    ids = [row.get(column) for column in ID_COLUMNS]
    # Data in the format of verl has the row's number in {"split": "test", "index": 7}. In other data, it may be text.
    extra_info = row.get("extra_info")
    if isinstance(extra_info, Mapping):
        ids.append(extra_info.get("index"))
    for value in ids:
        if value is not None and str(value):  # 0 is an id; empty text is none
            return str(value)
    return None
