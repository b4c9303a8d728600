"""Rows with arguments of the chat template of their own: budgets in the words of the model's template."""

from collections import defaultdict
from copy import deepcopy
from types import SimpleNamespace

import pytest
from conftest import eos_bias, generation_batches, log_rows, parity_reward, quiet
from datasets import Dataset
from stock_run import lambda_after
from tool_run import byte_tokenizer, tiny_model
from trl import GRPOTrainer

from leash_trl import LeashGRPOConfig, LeashGRPOTrainer
from leash_trl.data import with_efforts
from leash_trl.engines.shrinking_batch import shrinking_rollout
from leash_trl.errors import TrainingError
from leash_trl.rewards import math_reward
from leash_trl.trainer.checks import check_template_arguments


# gpt-oss states its effort before the conversation, Qwen3 ends the thinking in the prompt to turn it off
STATES_EFFORT = (
    "{%- if reasoning_effort is not defined %}{%- set reasoning_effort = 'medium' %}{%- endif %}"
    "<|user|> Effort: {{ reasoning_effort }}.<|end|>"
    "{%- for message in messages %}<|user|>{{ message.content }}<|end|>{%- endfor %}<|assistant|>"
)
QWEN3 = "{%- if enable_thinking is defined and enable_thinking is false %}<think></think>{%- endif %}"
# DeepSeek-V3.1 begins the thinking in the prompt unless it is off
BEGINS_THINKING = "{%- if enable_thinking is defined and not enable_thinking %}</think>{%- else %}<think>{%- endif %}"

TARGETS = {"low": 6, "high": 9, "off": 4}
TEMPLATE_KWARGS = {
    "low": {"reasoning_effort": "low"},
    "high": {"reasoning_effort": "high"},
    "off": {"enable_thinking": False},
}


@pytest.fixture
def make_template_trainer(tiny_model_path, tokenizer, tmp_path):
    """Factory of trainers whose tokenizer has this chat template."""

    def make(dataset, template=STATES_EFFORT + QWEN3, reward_funcs=parity_reward, rollout_func=None, **fields):
        fields.setdefault("generation_kwargs", eos_bias(tokenizer))
        processing_class = deepcopy(tokenizer)
        processing_class.chat_template = template
        return LeashGRPOTrainer(
            tiny_model_path,
            reward_funcs,
            LeashGRPOConfig(**quiet(tmp_path / "run", **fields)),
            dataset,
            processing_class=processing_class,
            rollout_func=rollout_func,
        )

    return make


def prompts_of(batches, tokenizer):
    """The prompts of batches, as token ids without padding."""
    prompts = []
    for batch in batches:
        for ids, mask in zip(batch["prompt_ids"], batch["prompt_mask"], strict=True):
            prompts.append(tuple(ids[mask.bool()].tolist()))
    return prompts


def rendered(trainer, question, **arguments):
    """The tokens that the template alone makes of a question."""
    messages = [{"role": "user", "content": question}]
    ids = trainer.processing_class.apply_chat_template(
        messages, add_generation_prompt=True, return_dict=False, **arguments
    )
    return tuple(ids)


@pytest.mark.parametrize("rollout_func", [None, shrinking_rollout], ids=["TRL", "shrinking"])
def test_each_effort_has_its_rendering_and_its_multiplier(rollout_func, make_template_trainer, problems, tokenizer):
    fields = {
        "length_control_kwargs": {"multiplier_per": "effort"},
        "lambda_init": 0.2,
        "max_steps": 2,
        "per_device_train_batch_size": 24,
        "generation_kwargs": None if rollout_func else eos_bias(tokenizer),
    }
    calls = []

    def reward(prompts, completion_ids, effort, **kwargs):
        questions = [prompt[0]["content"] for prompt in prompts]
        calls.append([*zip(questions, map(len, completion_ids), effort, strict=True)])
        return parity_reward(completion_ids)

    dataset = with_efforts(problems.select(range(4)), TARGETS, template_kwargs=TEMPLATE_KWARGS)
    trainer = make_template_trainer(dataset, reward_funcs=reward, rollout_func=rollout_func, **fields)
    batches = generation_batches(trainer)
    trainer.train()

    assert prompts_of(batches, tokenizer) == [
        rendered(trainer, question, **TEMPLATE_KWARGS[name]) for call in calls for question, _, name in call
    ]
    assert trainer.chat_template_kwargs == {}
    lambdas = dict.fromkeys(TARGETS, 0.2)
    for row, call in zip(log_rows(trainer), calls, strict=True):
        lengths = defaultdict(list)
        for _, length, name in call:
            lengths[name].append(length)
        for name, lengths_of_effort in lengths.items():
            assert row[f"leash/lambda/{name}"] == pytest.approx(lambdas[name], abs=1e-12)
            lambdas[name] = lambda_after(lambdas[name], lengths_of_effort, TARGETS[name], lambda_lr=0.1)
    assert trainer.length_control.lambdas == pytest.approx(lambdas, abs=1e-12)


def test_dynamic_sampling_draws_a_question_at_another_effort_and_renders_it_so(
    make_template_trainer, problems, tokenizer
):
    def reward(effort, **kwargs):  # only groups of one effort have signal
        return [1.0 if name != "off" else index % 2 for index, name in enumerate(effort)]

    dataset = with_efforts(problems.select(range(1)), TARGETS, template_kwargs=TEMPLATE_KWARGS)
    fields = {"dynamic_sampling_rounds": 2, "lambda_init": 0.0, "lambda_lr": 0.0, "max_steps": 1}
    trainer = make_template_trainer(dataset, reward_funcs=reward, shuffle_dataset=False, **fields)
    batches = generation_batches(trainer)
    trainer.train()
    question = problems[0]["prompt"][0]["content"]
    # of the prompts low and high, which have no signal, off replaces the first
    expected = [rendered(trainer, question, **TEMPLATE_KWARGS[name]) for name in ("off", "high")]
    assert prompts_of(batches, tokenizer) == [expected[0]] * 4 + [expected[1]] * 4


def test_the_arguments_of_a_row_win_over_those_of_the_run(make_template_trainer, problems, tokenizer):
    dataset = with_efforts(problems.select(range(1)), TARGETS, template_kwargs=TEMPLATE_KWARGS)
    common = {"reasoning_effort": "high"}
    trainer = make_template_trainer(dataset, chat_template_kwargs=common, shuffle_dataset=False, max_steps=1)
    batches = generation_batches(trainer)
    trainer.train()
    question = problems[0]["prompt"][0]["content"]
    low = rendered(trainer, question, reasoning_effort="low")
    assert prompts_of(batches, tokenizer)[:4] == [low] * 4


GUESS = r"\boxed{4} Wait, "  # 4 tokens, and the end token
ENDED = r" Wait, </think>\boxed{4}"  # 2 tokens of thinking


def rollout_of(tokenizer, texts):
    """A rollout function whose completions are these texts, one after the other."""
    remaining = iter(texts)

    def rollout(prompts, trainer):
        prompt_ids, _, _ = trainer._tokenize_prompts(prompts)
        completion_ids = [[*tokenizer.encode(next(remaining)), tokenizer.eos_token_id] for _ in prompts]
        return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": None}

    return rollout


def row_with(enable_thinking):
    prompt = [{"role": "user", "content": "1 +3 = ?"}]
    return {"prompt": prompt, "solution": "4", "chat_template_kwargs": {"enable_thinking": enable_thinking}}


def test_a_guess_is_an_answer_where_the_prompt_ended_the_thinking_and_none_where_it_began_it(
    make_template_trainer, tokenizer
):
    trainer = make_template_trainer(
        Dataset.from_list([row_with(enable_thinking=True), row_with(enable_thinking=False)]),
        "{{ messages[0].content }}<|assistant|>" + BEGINS_THINKING,
        math_reward,
        rollout_of(tokenizer, [GUESS, ENDED, GUESS, ENDED, GUESS, GUESS, GUESS, GUESS]),
        length_of="thinking",
        shuffle_dataset=False,
        max_steps=1,
    )
    trainer.train()
    assert list(trainer._logs["rewards"]["math_reward"]) == [-1, 1, -1, 1, 1, 1, 1, 1]
    assert trainer._rollouts.lengths.tolist() == [5, 2, 5, 2, 0, 0, 0, 0]


@pytest.mark.parametrize(("opening", "reward_of_guess"), [("[THINK]", -1.0), ("", 1.0)])
def test_another_end_of_thinking_is_found_in_the_tokens_of_prompt_and_completion(opening, reward_of_guess, tmp_path):
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{{ messages[0].content }}" + opening
    row = {"prompt": [{"role": "user", "content": "1 +3 = ?"}], "solution": "4"}
    trainer = LeashGRPOTrainer(
        tiny_model(),
        math_reward,
        LeashGRPOConfig(**quiet(tmp_path, max_steps=1, thinking_end="[/THINK]")),
        Dataset.from_list([row] * 8),
        processing_class=tokenizer,
        rollout_func=rollout_of(tokenizer, [GUESS, r"\boxed{4}[/THINK]\boxed{4}"] * 4),
    )
    trainer.train()
    assert list(trainer._logs["rewards"]["math_reward"]) == [reward_of_guess, 1.0] * 4


def test_an_end_that_texts_do_not_show_is_warned_of(make_trainer):
    with pytest.warns(UserWarning, match=r"thinking_end.*<\|end\|>"):
        make_trainer(thinking_end="<|end|>")


def test_a_first_batch_without_thinking_is_no_wrong_thinking_end_if_the_prompts_ended_it(
    make_template_trainer, tokenizer, recwarn
):
    dataset = Dataset.from_list([row_with(enable_thinking=False)] * 2)
    rollout = rollout_of(tokenizer, [GUESS] * 8)
    trainer = make_template_trainer(dataset, rollout_func=rollout, length_of="thinking", max_steps=1)
    trainer.train()
    assert trainer.state.log_history[0]["leash/mean_length"] == 0
    assert not [warning for warning in recwarn if "length_of" in str(warning.message)]


def test_a_first_batch_whose_thinking_dynamic_sampling_replaced_is_no_wrong_thinking_end(
    make_template_trainer, tokenizer
):
    def reward(chat_template_kwargs, **kwargs):  # only groups that do not think have signal
        return [0 if row["enable_thinking"] else index % 2 for index, row in enumerate(chat_template_kwargs)]

    trainer = make_template_trainer(
        Dataset.from_list([row_with(enable_thinking=True), row_with(enable_thinking=False)]),
        reward_funcs=reward,
        rollout_func=rollout_of(tokenizer, [ENDED] * 4 + [GUESS] * 4),
        per_device_train_batch_size=4,
        length_of="thinking",
        dynamic_sampling_rounds=1,
        lambda_init=0.0,
        shuffle_dataset=False,
        max_steps=1,
    )
    trainer.train()
    assert trainer.state.log_history[0]["leash/wasted_share"] == 0.5
    assert trainer.state.log_history[0]["leash/mean_length"] == 1.0  # 2 of the first, 0 of the others


def test_an_argument_that_the_template_ignores_is_said_in_one_line(make_template_trainer, problems, recwarn):
    efforts = {"low": {"reasoning_effort": "low", "thinking_budget": 9}, "high": {"reasoning_effort": "high"}}
    dataset = with_efforts(problems, {"low": 6, "high": 9}, template_kwargs=efforts)
    make_template_trainer(dataset)
    (line,) = [str(warning.message) for warning in recwarn if "thinking_budget" in str(warning.message)]
    assert "chat_template_kwargs" in line
    assert "reasoning_effort" not in line
    assert "\n" not in line


@pytest.mark.filterwarnings("ignore:chat_template_kwargs")
@pytest.mark.filterwarnings("ignore:prompts are strings")
@pytest.mark.parametrize(
    ("prompt", "images"),
    [
        ("1 +3 = ?", None),
        ([{"role": "user", "content": "1 +3 = ?"}], ["image"]),
    ],
    ids=["text", "images"],
)
def test_arguments_for_prompts_other_than_messages_without_images_are_refused_in_one_line(
    prompt, images, make_template_trainer, monkeypatch
):
    def tokenized(self, prompts):
        return [[5]] * len(prompts), images, {}

    monkeypatch.setattr(GRPOTrainer, "_tokenize_prompts", tokenized)
    dataset = Dataset.from_list([{**row_with(enable_thinking=False), "prompt": prompt}] * 2)
    with pytest.raises(TrainingError, match=r"^a row has chat_template_kwargs.*enable_thinking.*messages.*$"):
        make_template_trainer(dataset).train()


def test_arguments_for_prompts_of_environments_are_refused():
    trainer = SimpleNamespace(environment_factories={"game": dict})
    with pytest.raises(ValueError, match=r"chat_template_kwargs.*environment_factory"):
        check_template_arguments(trainer, Dataset.from_list([row_with(enable_thinking=False)]))
