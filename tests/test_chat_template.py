"""What a chat template ends an answer with, and templates that fail."""

import pytest

from leash_trl.engines.chat_template import TEMPLATE_FAULTS, check_chat_template, turn_end
from leash_trl.gym.tokenizer import build_tokenizer


def test_the_turn_end_is_what_stands_behind_an_answer():
    tokenizer = build_tokenizer()
    assert turn_end(tokenizer) == {tokenizer.eos_token: tokenizer.eos_token_id}
    template = "{{ messages[0].content }}<|user|>{{ messages[1].content }}<|pad|><|end|>"
    assert turn_end(tokenizer, chat_template=template) == {tokenizer.pad_token: tokenizer.pad_token_id}
    assert turn_end(tokenizer, chat_template="{{ messages[1].content }}") == {}


@pytest.mark.parametrize(
    "template",
    [
        None,
        "{{ raise_exception('no system message') }}",
        "{{ messages[1].content[0]['text'] + '' }}",
        "{{ 1 + messages[1].content }}",
        "{{ messages[1].content.index('absent') }}",
        "{{ 1 / 0 }}",
        {"rag": "{{ messages[1].content }}"},
    ],
    ids=["missing", "refusal", "undefined", "type", "value", "arithmetic", "no default"],
)
def test_a_template_that_fails_tells_nothing_and_stops_nothing(template):
    tokenizer = build_tokenizer()
    tokenizer.chat_template = template
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
    with pytest.raises(TEMPLATE_FAULTS):
        tokenizer.apply_chat_template(messages, tokenize=False)
    assert turn_end(tokenizer) == {}


def test_a_missing_template_is_named():
    check_chat_template("{{ messages }}")
    with pytest.raises(ValueError, match="the tokenizer has no chat_template"):
        check_chat_template(None)
