"""Rows for supervised fine-tuning: which completion they have, and that TRL trains on the tokens of the model."""

from types import SimpleNamespace

import pytest
from conftest import gym_tokenizer
from sampled_run import completion, problem, write_run

from leash_trl.cli.commands.filter import rows_with_shortest_correct
from leash_trl.evaluation.shortest_correct import prompt_completion_row, shortest_correct_text
from leash_trl.model_facts import prompt_ids


PROMPT = [{"role": "user", "content": "3 (a) +4 = ?"}]
TEXT = " (a) 7</think>7"  # the gym's template has begun the thinking


def test_the_shortest_is_right_and_ended_by_itself():
    wrong = completion("1", 10, False, text="wrong")
    unknown = completion("1", 10, None, text="unknown")
    cut = completion("1", 64, True, text="cut")
    longer = completion("1", 90, True, text="longer")
    assert shortest_correct_text([wrong, cut, longer, unknown, completion("1", 80, True, text="shorter")]) == "shorter"
    assert shortest_correct_text([wrong, cut, unknown]) is None


def test_prompt_and_completion_are_the_tokens_that_the_model_read_and_wrote():
    tokenizer = gym_tokenizer()
    row = prompt_completion_row(PROMPT, TEXT, tokenizer, "</think>", {})
    learned = tokenizer.apply_chat_template(row["prompt"] + row["completion"], return_dict=False)
    (asked,) = prompt_ids(tokenizer, [PROMPT])
    assert learned == asked + tokenizer.encode(TEXT) + [tokenizer.eos_token_id]
    assert row.keys() == {"prompt", "completion"}


def test_a_model_without_a_template_learns_text():
    row = prompt_completion_row("3 +4 = ?", " 7", gym_tokenizer(), "</think>", {})
    assert row == {"prompt": "3 +4 = ?", "completion": " 7"}


def test_a_template_of_the_run_goes_with_the_row_and_one_that_drops_the_thinking_is_refused():
    tokenizer = gym_tokenizer()
    opened = "{% if add_generation_prompt %}<think>\n{% endif %}"
    kept = {"chat_template": "{% for message in messages %}{{ message.content }}{% endfor %}" + opened}
    row = prompt_completion_row(PROMPT, TEXT, tokenizer, "</think>", kept)
    assert (row["completion"][0]["content"], row["chat_template_kwargs"]) == (f"<think>\n{TEXT}", kept)
    # as that of R1-Distill does
    answer_only = "{% for message in messages %}{{ message.content.split('</think>')[-1] }}{% endfor %}"
    with pytest.raises(ValueError, match="chat_template") as failure:
        prompt_completion_row(PROMPT, TEXT, tokenizer, "</think>", {"chat_template": answer_only + opened})
    assert "\n" not in str(failure.value)


def test_a_row_keeps_its_own_arguments_of_the_template_beside_those_of_the_run(tmp_path):
    messages = "{% for message in messages %}{{ message.content }}{% endfor %}"
    is_asked = "{% if add_generation_prompt and is_thinking %}<think>{% endif %}"
    samples = [problem(index, completion("7", 5, True, text=TEXT)) for index in range(2)]
    of_run = {"chat_template": messages + is_asked, "is_thinking": False}
    write_run(tmp_path, {"p": samples}, chat_template_kwargs=of_run, thinking_end="</think>")
    rows = [
        {"id": "p0", "prompt": PROMPT, "chat_template_kwargs": {"is_thinking": True, "other": None}},
        {"id": "p1", "prompt": PROMPT, "chat_template_kwargs": None},
    ]
    arguments = SimpleNamespace(output_dir=tmp_path, model_name_or_path="gym", revision=None)
    thinking, plain = rows_with_shortest_correct(rows, samples, arguments)
    assert thinking["completion"][0]["content"] == f"<think>{TEXT}"
    assert thinking["chat_template_kwargs"] == {**of_run, "is_thinking": True}
    assert (plain["completion"][0]["content"], plain["chat_template_kwargs"]) == (TEXT, of_run)
