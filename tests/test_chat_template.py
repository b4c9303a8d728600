"""How prompts become tokens, and templates that fail."""

import pickle

import pytest
from conftest import gym_tokenizer

from leash_trl.model_facts import TEMPLATE_FAULTS, prompt_ids, question_prompt, with_opened_thinking
from leash_trl.rewards import lenient_math_reward, math_reward


def test_messages_pass_the_template_and_texts_do_not():
    tokenizer = gym_tokenizer()
    tokenizer.chat_template = "{{ messages[0].content }}{% if loud %}<|end|>{% endif %}"
    messages = [[{"role": "user", "content": "1 +2"}], [{"role": "user", "content": "3"}]]
    assert prompt_ids(tokenizer, messages) == [tokenizer.encode("1 +2"), tokenizer.encode("3")]
    _, loud_ids = prompt_ids(tokenizer, messages, loud=True)
    assert loud_ids == tokenizer.encode("3") + tokenizer.encode("<|end|>")
    assert prompt_ids(tokenizer, ["1 +2"], loud=True) == [tokenizer.encode("1 +2")]


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
def test_what_a_failing_template_raises_is_a_template_fault(template):
    tokenizer = gym_tokenizer()
    tokenizer.chat_template = template
    with pytest.raises(TEMPLATE_FAULTS):
        tokenizer.apply_chat_template([{"role": "user", "content": "?"}] * 2, tokenize=False)


@pytest.mark.parametrize("template", [None, "{{ raise_exception('no lone question') }}"])
def test_a_template_that_is_missing_or_refuses_writes_an_empty_prompt(template):
    tokenizer = gym_tokenizer()
    tokenizer.chat_template = template
    assert question_prompt(tokenizer) == ""


def test_rewards_that_can_are_told_of_opened_thinking_and_can_still_be_pickled():
    def other(completions, **kwargs):
        return [0.0]

    strict, lenient, unchanged = with_opened_thinking([math_reward, lenient_math_reward, other])
    assert unchanged is other
    assert strict.__name__ == "math_reward"
    # a guess inside the thinking, an answer after it, and an answer that only the lenient reward reads
    completions = [r"so \boxed{4}? Wait", r"</think>\boxed{4}", "</think>It is 4."]
    strict, lenient = pickle.loads(pickle.dumps([strict, lenient]))
    assert strict(completions, solution=["4", "4", "4"]) == [-1.0, 1.0, -1.0]
    assert lenient(completions, solution=["4", "4", "4"]) == [-1.0, 1.0, 1.0]
