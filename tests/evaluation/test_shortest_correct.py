"""Rows for supervised fine-tuning: which completion they have, and that TRL trains on the tokens of the model."""

from types import SimpleNamespace

import pytest
from conftest import gym_tokenizer
from sampled_run import completion, problem

from leash_trl.cli.commands.filter import rows_with_shortest_correct
from leash_trl.evaluation.shortest_correct import prompt_completion_row, shortest_correct_text
from leash_trl.model_facts import prompt_ids


PROMPT = [{"role": "user", "content": "3 (a) +4 = ?"}]
TEXT = " (a) 7</think>7"  # the gym's template has begun the thinking


def test_the_shortest_is_right_and_ended_by_itself():
    wrong = completion("1", 10, False, text="wrong")
    unknown = completion("1", 10, None, text="unknown")
    cut = completion("1", 64, True, text="cut")
    incomplete = {**completion("1", 10, True), "num_special_tokens": 1}
    longer = completion("1", 90, True, text="longer")
    shorter = completion("1", 80, True, text="shorter")
    assert shortest_correct_text([wrong, cut, longer, unknown, incomplete, shorter]) == "shorter"
    assert shortest_correct_text([wrong, cut, unknown, incomplete]) is None


MESSAGES = "{% for message in messages %}{{ message.content }}{% endfor %}"
END = "{% if not add_generation_prompt %}{{ eos_token }}{% endif %}"
OPENED = "{% if add_generation_prompt %}<think>\n{% endif %}"


def row_of(template, prompt=PROMPT, **template_kwargs):
    """The row of the completion `TEXT` with this chat template."""
    options = {"chat_template": template, **template_kwargs}
    return prompt_completion_row(prompt, TEXT, gym_tokenizer(), "</think>", options)


def written_rows(rows, **chat_template_kwargs):
    """What is written for these problems, to each of which the model answered `TEXT`."""
    samples = [problem(index, completion("7", 5, True, text=TEXT)) for index in range(len(rows))]
    plan = SimpleNamespace(thinking_end="</think>", chat_template_kwargs=chat_template_kwargs)
    return rows_with_shortest_correct(rows, samples, SimpleNamespace(tokenizer=gym_tokenizer(), plan=plan))


def test_prompt_and_completion_are_the_tokens_that_the_model_read_and_wrote():
    tokenizer = gym_tokenizer()
    row = prompt_completion_row(PROMPT, TEXT, tokenizer, "</think>", {})
    learned = tokenizer.apply_chat_template(row["prompt"] + row["completion"], return_dict=False)
    (asked,) = prompt_ids(tokenizer, [PROMPT])
    assert learned == asked + tokenizer.encode(TEXT) + [tokenizer.eos_token_id]
    assert row.keys() == {"prompt", "completion", "num_tokens"}
    assert row["num_tokens"] == len(learned)


def test_a_model_without_a_template_learns_text():
    tokenizer = gym_tokenizer()
    row = prompt_completion_row("3 +4 = ?", " 7", tokenizer, "</think>", {})
    num_tokens = len(tokenizer.encode("3 +4 = ? 7")) + 1  # TRL appends the end token
    assert row == {"prompt": "3 +4 = ?", "completion": " 7", "num_tokens": num_tokens}


def test_a_template_of_the_run_goes_with_the_row():
    template = MESSAGES + END + OPENED
    row = row_of(template)
    assert row["completion"][0]["content"] == f"<think>\n{TEXT}"
    assert row["chat_template_kwargs"] == {"chat_template": template}


@pytest.mark.parametrize(
    "template",
    [
        # as that of R1-Distill removes the thinking
        "{% for message in messages %}{{ message.content.split('</think>')[-1] }}{% endfor %}" + END + OPENED,
        # as that of Qwen3 writes empty thinking before an answer
        "{% for message in messages %}"
        "{% if message.role == 'assistant' %}<think></think>{% endif %}{{ message.content }}{% endfor %}" + END,
        MESSAGES,  # as that of GLM-4.5, which would not teach the model to end
        MESSAGES + "{% if not add_generation_prompt %}</think>{{ eos_token }}{% endif %}",
    ],
    ids=["removed", "added", "no end", "added at the end"],
)
def test_a_completion_that_the_template_changes_is_no_row(template):
    assert row_of(template) is None


def test_problems_whose_completion_the_template_changes_are_left_out_and_counted(capsys):
    """Here those that begin with a system message."""
    template = "{% if messages[0].role == 'system' %}<think></think>{% endif %}" + MESSAGES + END
    asked_so = "{% if add_generation_prompt %}" + MESSAGES + "{% else %}" + template + "{% endif %}"
    system = [{"role": "system", "content": "Be brief."}, *PROMPT]
    rows = [{"id": "p0", "prompt": PROMPT}, {"id": "p1", "prompt": system}]
    written = written_rows(rows, chat_template=asked_so)
    assert [row["id"] for row in written] == ["p0"]
    assert any(line.startswith("1 ") and "chat_template" in line for line in capsys.readouterr().out.splitlines())


def test_columns_that_trl_would_read_are_not_written():
    row = {"id": "p0", "prompt": PROMPT, "solution": "7", "tools": [{}], "text": "x", "input_ids": [1], "labels": 3}
    (written,) = written_rows([row])
    assert written.keys() == {"id", "prompt", "completion", "num_tokens"}


def test_a_row_keeps_its_own_arguments_of_the_template_beside_those_of_the_run():
    is_asked = "{% if add_generation_prompt and is_thinking %}<think>{% endif %}"
    of_run = {"chat_template": MESSAGES + END + is_asked, "is_thinking": False}
    rows = [
        {"id": "p0", "prompt": PROMPT, "chat_template_kwargs": {"is_thinking": True, "other": None}},
        {"id": "p1", "prompt": PROMPT, "chat_template_kwargs": None},
    ]
    thinking, plain = written_rows(rows, **of_run)
    assert thinking["completion"][0]["content"] == f"<think>{TEXT}"
    assert thinking["chat_template_kwargs"] == {**of_run, "is_thinking": True}
    assert (plain["completion"][0]["content"], plain["chat_template_kwargs"]) == (TEXT, of_run)


def test_all_rows_have_the_same_arguments_which_trl_passes_to_the_template():
    """`datasets` reads an argument that only other rows have as None, and TRL cannot pass None for the arguments."""
    template = MESSAGES + END
    rows = [
        {"id": "p0", "prompt": PROMPT, "chat_template_kwargs": {"level": 3}},
        {"id": "p1", "prompt": PROMPT, "chat_template_kwargs": {}},
    ]
    first, second = written_rows(rows, chat_template=template)
    assert first["chat_template_kwargs"] == {"chat_template": template, "level": 3}
    assert second["chat_template_kwargs"] == {"chat_template": template, "level": None}


def test_a_row_on_whose_prompt_an_argument_of_other_rows_would_have_an_effect_is_left_out():
    template = "{% if level is defined %}level {{ level }}: {% endif %}" + MESSAGES + END
    rows = [
        {"id": "p0", "prompt": PROMPT, "chat_template_kwargs": {"level": 3}},
        {"id": "p1", "prompt": PROMPT, "chat_template_kwargs": None},  # asked without a level
    ]
    assert [row["id"] for row in written_rows(rows, chat_template=template)] == ["p0"]
