"""`thinking_end: "[/THINK]"`: what counts as length and what is graded as the answer follow the same two texts, in
both front doors. A guess inside thinking that has not ended is no answer."""

from copy import deepcopy

import pytest
from conftest import quiet
from datasets import Dataset
from gradient_run import scripted_rollout
from stock_run import run_of
from transformers import AutoModelForCausalLM

from leash_trl import LeashGRPOConfig, LeashGRPOTrainer, LengthControlledReward
from leash_trl.completions.thinking import ThinkingMarkers
from leash_trl.rewards import math_reward, reasoning_gym_reward
from leash_trl.rewards.reasoning_gym_reward import procedural_dataset


START = "[THINK]"
END = "[/THINK]"
GUESS = r"\boxed{4} Wait, "
ANSWER = rf"\boxed{{4}}{END}\boxed{{4}}"


@pytest.fixture(scope="module")
def bracket_tokenizer(tokenizer):
    """The gym's tokenizer with these markers as tokens."""
    bracket_tokenizer = deepcopy(tokenizer)
    bracket_tokenizer.add_tokens([START, END])
    return bracket_tokenizer


@pytest.fixture(scope="module")
def bracket_model(tiny_model_path, bracket_tokenizer, tmp_path_factory):
    """Path of the tiny model with an embedding for each of these tokens."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model_path)
    model.resize_token_embeddings(len(bracket_tokenizer))
    path = tmp_path_factory.mktemp("bracket-model")
    model.save_pretrained(path)
    bracket_tokenizer.save_pretrained(path)
    return str(path)


# the template, or the completion, opens the thinking
OPENINGS = pytest.mark.parametrize(("in_template", "in_completion"), [(START, ""), ("", START)])


def template(opening):
    return "{{ messages[0].content }}<|assistant|>" + opening


@OPENINGS
@pytest.mark.parametrize("length_of", ["completion", "thinking"])
def test_leash_grpo_trainer_grades_only_what_follows_the_thinking(
    in_template, in_completion, length_of, bracket_model, bracket_tokenizer, tmp_path
):
    def ids_of(trainer, index, code):
        said = GUESS if index % 2 == 0 else ANSWER
        return [*bracket_tokenizer.encode(in_completion + said), bracket_tokenizer.eos_token_id]

    fields = quiet(tmp_path, max_steps=1, thinking_end=END, length_of=length_of)
    prompt = [{"role": "user", "content": "1 +3 = ?"}]
    tokenizer = deepcopy(bracket_tokenizer)
    tokenizer.chat_template = template(in_template)
    trainer = LeashGRPOTrainer(
        bracket_model,
        math_reward,
        LeashGRPOConfig(**fields),
        Dataset.from_list([{"prompt": prompt, "solution": "4"}] * 8),
        processing_class=tokenizer,
        rollout_func=scripted_rollout(bracket_tokenizer, ids_of),
    )
    trainer.train()
    assert list(trainer._logs["rewards"]["math_reward"]) == [-1.0, 1.0] * 4


@OPENINGS
@pytest.mark.parametrize("length_of", ["completion", "thinking"])
def test_length_controlled_reward_grades_only_what_follows_the_thinking(
    in_template, in_completion, length_of, bracket_tokenizer, bracket_model, tmp_path
):
    reward = LengthControlledReward(math_reward, "none", length_of=length_of, thinking_end=END)
    run = run_of(tmp_path, bracket_model, bracket_tokenizer, template(in_template))
    reward.read_run_settings(**run)
    completions = [in_completion + GUESS, in_completion + ANSWER]
    rewards = reward(
        prompts=["1 +3 = ?" + in_template] * 2,
        completions=completions,
        completion_ids=[bracket_tokenizer.encode(completion) for completion in completions],
        solution=["4", "4"],
    )
    assert rewards == [-1.0, 1.0]


def test_length_controlled_reward_reads_from_each_text_whether_it_began_the_thinking(
    bracket_tokenizer, bracket_model, tmp_path
):
    reward = LengthControlledReward(math_reward, "none", length_of="thinking", thinking_end=END)
    run = run_of(tmp_path, bracket_model, bracket_tokenizer, template(START))
    reward.read_run_settings(**run)
    rewards = reward(
        prompts=[f"1 +3 = ?{START}", f"1 +3 = ?{START}{END}"],  # the second as a template with the thinking turned off
        completions=[GUESS, GUESS],
        completion_ids=[bracket_tokenizer.encode(GUESS)] * 2,
        solution=["4", "4"],
    )
    assert rewards == [-1.0, 1.0]


def test_the_reward_of_reasoning_gym_reads_only_what_follows_the_thinking():
    configuration = '{"task": "chain_sum", "min_terms": 2, "max_terms": 2, "seed": 1, "size": 1}'
    gold = procedural_dataset(configuration)[0]["answer"]
    completions = [rf"{START}\boxed{{{gold}}} Wait", rf"{START}no{END}\boxed{{{gold}}}"]
    rewards = reasoning_gym_reward(
        completions, reasoning_gym=[f"0 {configuration}"] * 2, thinking_markers=ThinkingMarkers(END)
    )
    assert rewards == [-1.0, 1.0]


def test_a_reward_function_of_ones_own_may_ask_for_the_markers(make_trainer):
    received = []

    def reward(completions, thinking_markers, **kwargs):
        received.append(thinking_markers)
        return [1.0] * len(completions)

    trainer = make_trainer(reward, max_steps=1, thinking_end=END)
    trainer.train()
    assert received == [ThinkingMarkers(END)]
    assert "rewards/reward/mean" in trainer.state.log_history[0]


def test_an_end_that_texts_do_not_show_is_warned_of(make_trainer):
    with pytest.warns(UserWarning, match=r"thinking_end.*<\|end\|>"):
        make_trainer(thinking_end="<|end|>")
