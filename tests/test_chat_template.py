"""How prompts become tokens, and templates that fail."""

import pytest
from conftest import gym_tokenizer

from leash_trl.model_facts import SAMPLE_QUESTION, prompt_ids, rendered_prompt


def test_messages_pass_the_template_and_texts_do_not():
    tokenizer = gym_tokenizer()
    tokenizer.chat_template = "{{ messages[0].content }}{% if loud %}<|end|>{% endif %}"
    messages = [
        [{"role": "user", "content": "1 +2"}],
        [{"role": "user", "content": "3"}],
    ]
    assert prompt_ids(tokenizer, messages) == [tokenizer.encode("1 +2"), tokenizer.encode("3")]
    _, loud_ids = prompt_ids(tokenizer, messages, loud=True)
    assert loud_ids == tokenizer.encode("3") + tokenizer.encode("<|end|>")
    assert prompt_ids(tokenizer, ["1 +2"], loud=True) == [tokenizer.encode("1 +2")]


@pytest.mark.parametrize(
    "template",
    [
        None,
        "{{ raise_exception('no lone question') }}",
        "{{ messages[1].content[0]['text'] + '' }}",
        "{{ 1 / 0 }}",
        {"rag": "{{ messages[0].content }}"},
    ],
    ids=["missing", "refusal", "undefined", "arithmetic", "no default"],
)
def test_a_template_that_is_missing_or_fails_writes_an_empty_prompt(template):
    tokenizer = gym_tokenizer()
    tokenizer.chat_template = template
    assert rendered_prompt(tokenizer, SAMPLE_QUESTION) == ""
