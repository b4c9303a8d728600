"""Mistakes that people make: each has one clear message, in Python and from `leash train`, as early as possible."""

import errno
import functools
import shutil
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from conftest import ROOT, parity_reward
from datasets import Dataset
from transformers import FalconConfig, GPT2Config, LlamaConfig, LlamaForCausalLM, MptConfig
from transformers.training_args import OptimizerNames

from leash_trl import LeashGRPOTrainer
from leash_trl.cli.main import main
from leash_trl.engines.endings import ENOUGH, TEMPLATE_FAULTS, EndWatch, turn_end
from leash_trl.trainer.advice import MIB, advice, advice_in, advise, is_out_of_space, space_problem
from leash_trl.trainer.checks import (
    MOST_MEASURED,
    PlacedPrompt,
    check_messages,
    check_refused,
    context_length,
    context_of,
    context_settings,
    is_refused_beyond_context,
    long_prompts,
    required_columns,
    warn_about_closed_thinking,
    warn_about_misspelt_target,
)


RECIPES = ROOT / "recipes"
NOWHERE = "a-model/that-nobody-can-load"
GYM = ["--model_name_or_path", "gym", "--dataset_name", "gym", "--use_cpu", "true", "--bf16", "false"]
GYM += ["--target_length", "40", "--max_completion_length", "64", "--gradient_checkpointing", "false"]
GYM += ["--report_to", "none", "--disable_tqdm", "true"]
CONTEXT = 2048  # of the tiny model
CLOSING = "{% if add_generation_prompt and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"


def right(completions, **kwargs):
    return [1.0 for _ in completions]


def wrong(completions, **kwargs):
    return [-1.0 for _ in completions]


@pytest.fixture
def changed_tokenizer():
    """Factory of gym tokenizers that lack something, or write prompts otherwise."""
    from leash_trl.gym.tokenizer import build_tokenizer

    def make(**attributes):
        tokenizer = build_tokenizer()
        for name, value in attributes.items():
            setattr(tokenizer, name, value)
        return tokenizer

    return make


def fails_in_one_line(arguments: list[str], capsys, code: int = 2) -> str:
    assert main(arguments) == code
    error = capsys.readouterr().err
    assert "Traceback" not in error
    line = error.strip().splitlines()[-1]
    assert line.startswith("leash ")
    return line


@pytest.mark.parametrize("target", [64, 65])
def test_a_target_that_is_not_below_the_limit_is_refused(target, make_args, capsys):
    with pytest.raises(ValueError, match=rf"target_length is {target}, but must be below max_completion_length=64"):
        make_args(target_length=target, max_completion_length=64)
    line = fails_in_one_line(["train", *GYM, "--target_length", str(target)], capsys)
    assert "lower the target or raise the limit" in line


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (24.0, "target_length is 24, but must be below max_completion_length=24"),
        (23.5, "target_length is 24, but must be below max_completion_length=24"),
        (-3.0, "target_length=-3.0, but it must be a positive number"),
    ],
)
def test_a_rows_own_target_is_held_to_the_limit_before_the_model_is_loaded(value, message, make_args, problems):
    targets = [None, 12.0, value, value, *[12.0] * (len(problems) - 4)]
    dataset = problems.add_column("target_length", targets)
    with pytest.raises(ValueError, match=f"row 2 of the data set, column target_length: .*{message}"):
        LeashGRPOTrainer(NOWHERE, parity_reward, make_args(), train_dataset=dataset)


def test_a_list_for_a_target_is_named_with_its_row(make_args, problems):
    dataset = problems.add_column("target_length", [None, [12.0], *[None] * (len(problems) - 2)])
    with pytest.raises(ValueError, match=r"row 1 of the data set, column target_length: .*target_length=\[12.0\]"):
        LeashGRPOTrainer(NOWHERE, parity_reward, make_args(), train_dataset=dataset)


def test_targets_of_rows_below_the_limit_are_taken(make_trainer, problems):
    targets = [None, *[23.0] * (len(problems) - 1)]
    make_trainer(dataset=problems.add_column("target_length", targets))


def rollouts_of(make_rollouts, num_ended: int, rewards: list[float]):
    truncated = [index >= num_ended for index in range(len(rewards))]
    return make_rollouts(rewards, [24] * len(rewards), truncated=truncated, limit=24)


def test_rewards_for_completions_without_an_end_are_a_problem_once(make_rollouts):
    watch = EndWatch()
    half = rollouts_of(make_rollouts, 0, [1.0, -1.0] * (ENOUGH // 4))
    assert [watch.look(half) for _ in range(4)] == [False, True, False, False]
    problem = watch.problem({"<|endoftext|>": 0}, ("<|im_end|>", 1), limit=24)
    assert f"none of the first {ENOUGH} completions ended with an end token (<|endoftext|>, 0)" in problem
    assert f"{ENOUGH // 2} of them were rewarded as right: a length of 24 tokens" in problem
    assert "ends answers with <|im_end|> (1), which ends no completion: add 1 to eos_token_id" in problem


@pytest.mark.parametrize("behind_answers", [("<|im_end|>", 1), None])
def test_without_a_better_end_token_the_limit_is_the_remedy(behind_answers):
    problem = EndWatch().problem({"<|im_end|>": 1}, behind_answers, limit=24)
    assert "Raise max_completion_length (now 24)" in problem
    assert "mask_truncated_completions: true" in problem
    assert "eos_token_id" not in problem


@pytest.mark.parametrize(("num_ended", "reward"), [(1, 1.0), (0, -1.0)])
def test_one_end_or_no_reward_is_no_problem(num_ended, reward, make_rollouts):
    assert not EndWatch().look(rollouts_of(make_rollouts, num_ended, [reward] * ENOUGH))


def test_a_completion_that_ended_stays_seen(make_rollouts):
    watch = EndWatch()
    assert not watch.look(rollouts_of(make_rollouts, 1, [1.0]))
    assert not watch.look(rollouts_of(make_rollouts, 0, [1.0] * ENOUGH))


def test_the_turn_end_is_what_stands_behind_an_answer(changed_tokenizer):
    tokenizer = changed_tokenizer()
    assert turn_end(tokenizer, None, {}) == (tokenizer.eos_token, tokenizer.eos_token_id)
    template = "{{ messages[0].content }}<|user|>{{ messages[1].content }}<|pad|><|end|>"
    assert turn_end(tokenizer, template, {}) == (tokenizer.pad_token, tokenizer.pad_token_id)
    assert turn_end(tokenizer, "{{ messages[1].content }}", {}) is None
    assert turn_end(tokenizer, "{{ raise_exception('no system message') }}", {}) is None
    assert turn_end(changed_tokenizer(chat_template=None), None, {}) is None


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[1].content[0]['text'] + '' }}",
        "{{ 1 + messages[1].content }}",
        "{{ messages[1].content.index('absent') }}",
        "{{ 1 / 0 }}",
        {"rag": "{{ messages[1].content }}"},
    ],
    ids=["undefined", "type", "value", "arithmetic", "no default"],
)
def test_a_template_that_fails_stops_no_diagnostic(template, changed_tokenizer):
    assert turn_end(changed_tokenizer(chat_template=template), None, {}) is None
    tokenizer = changed_tokenizer(chat_template=template)
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
    with pytest.raises(TEMPLATE_FAULTS):
        tokenizer.apply_chat_template(messages, tokenize=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_about_closed_thinking(messages, lambda prompt: tokenizer.apply_chat_template(prompt, tokenize=False), {})


def test_a_template_that_fails_on_a_prompt_lets_the_trainer_be_made(
    changed_tokenizer, make_args, problems, tiny_model_path
):
    LeashGRPOTrainer(
        tiny_model_path,
        parity_reward,
        make_args(),
        train_dataset=problems,
        processing_class=changed_tokenizer(chat_template="{{ 1 + messages[0].content }}"),
    )


def test_training_warns_once_when_nothing_ends_and_the_reward_pays(make_trainer, tokenizer):
    never = {"suppress_tokens": [tokenizer.eos_token_id, tokenizer.pad_token_id]}
    steps = ENOUGH // 8 + 2
    with pytest.warns(UserWarning, match=f"none of the first {ENOUGH} completions ended") as record:
        make_trainer(right, generation_kwargs=never, max_steps=steps).train()
    assert len([warning for warning in record if "ended with an end token" in str(warning.message)]) == 1
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="none of the first")
        make_trainer(wrong, generation_kwargs=never, max_steps=steps).train()


def test_rewards_of_zero_and_one_are_warned_about(make_trainer):
    def zero_or_one(completion_ids, **kwargs):
        return [(reward + 1) / 2 for reward in parity_reward(completion_ids)]

    with pytest.warns(UserWarning, match=r"wrong answers have task reward 0.*LEASH is meant for -1 and \+1"):
        make_trainer(zero_or_one, max_steps=1).train()


def test_messages_without_a_chat_template_are_refused(changed_tokenizer, make_args, problems, tiny_model_path):
    with pytest.raises(ValueError, match="prompts are messages, but the tokenizer has no chat_template"):
        LeashGRPOTrainer(
            tiny_model_path,
            parity_reward,
            make_args(),
            train_dataset=problems,
            processing_class=changed_tokenizer(chat_template=None),
        )


def test_a_template_that_closes_the_thinking_is_warned_about(changed_tokenizer, make_args, problems, tiny_model_path):
    template = changed_tokenizer().chat_template.replace("<think>", "") + CLOSING

    def make(**overrides):
        tokenizer = changed_tokenizer(chat_template=template)
        return LeashGRPOTrainer(
            tiny_model_path, parity_reward, make_args(**overrides), train_dataset=problems, processing_class=tokenizer
        )

    with pytest.warns(UserWarning, match=r"closes the thinking.*chat_template_kwargs is \{'enable_thinking': False\}"):
        make(chat_template_kwargs={"enable_thinking": False})
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="the chat template closes")
        make(chat_template_kwargs={"enable_thinking": True})


def test_prompts_of_plain_text_need_no_template():
    check_messages("1 + 1 = ?", None)
    with pytest.raises(ValueError, match="has no chat_template"):
        check_messages([{"role": "user", "content": "1 + 1 = ?"}], None)


def test_an_earlier_answer_without_thinking_is_no_closed_thinking():
    messages = [{"role": "user", "content": "?"}]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_about_closed_thinking(messages, lambda prompt: "<think>\n\n</think>4<|user|>?<|assistant|><think>", {})


def test_a_tokenizer_without_end_token_is_refused(changed_tokenizer, make_args, problems, tiny_model_path):
    with pytest.raises(ValueError, match=r"the tokenizer has no eos_token \(its pad_token is '<\|pad\|>'\)"):
        LeashGRPOTrainer(
            tiny_model_path,
            parity_reward,
            make_args(),
            train_dataset=problems,
            processing_class=changed_tokenizer(eos_token=None),
        )


def test_a_tokenizer_without_pad_token_changes_nothing(changed_tokenizer, make_args, problems, tiny_model_path):
    logs = []
    for attributes in ({}, {"pad_token": None}):
        trainer = LeashGRPOTrainer(
            tiny_model_path,
            parity_reward,
            make_args(generation_kwargs={"sequence_bias": [[[1], 2.0], [[0], -50.0]]}),
            train_dataset=problems,
            processing_class=changed_tokenizer(**attributes),
        )
        trainer.train()
        rows = trainer.state.log_history[:-1]
        logs.append([{key: value for key, value in row.items() if key != "step_time"} for row in rows])
    assert logs[0] == logs[1]
    assert 0 < max(row["leash/truncated_share"] for row in logs[0]) < 1


def test_columns_that_a_reward_needs_are_named_before_the_model_is_loaded(make_args, problems):
    from leash_trl.rewards import get_math_reward, math_reward

    renamed = problems.rename_column("solution", "answer")
    for reward in (math_reward, get_math_reward(opens_thinking=True), [parity_reward, math_reward]):
        with pytest.raises(ValueError, match="columns prompt, answer, level, but solution is missing"):
            LeashGRPOTrainer(NOWHERE, reward, make_args(), train_dataset=renamed)
    with pytest.raises(ValueError, match="columns question, solution, level, but prompt is missing"):
        LeashGRPOTrainer(
            NOWHERE, parity_reward, make_args(), train_dataset=problems.rename_column("prompt", "question")
        )


def test_parameters_with_a_default_or_from_trl_are_no_columns():
    class Reward:
        def __call__(self, prompts, completions, trainer_state, log_metric, hint, style="box", **kwargs): ...

    assert required_columns(Reward()) == {"hint"}
    assert required_columns("a/reward-model") == set()
    assert required_columns(max) == set()


def test_a_wrapper_needs_what_it_takes_itself():
    def inner(completions, gold): ...

    @functools.wraps(inner)
    def with_gold(completions, prompts, hint, **kwargs):
        return inner(completions, gold=prompts)

    assert required_columns(with_gold) == {"hint"}
    assert required_columns(functools.partial(inner, gold=1)) == set()


def needs_gold(completion_ids, gold, **kwargs):
    return parity_reward(completion_ids)


def test_what_a_rollout_function_gives_is_no_missing_column(make_trainer, make_args, problems):
    def rollout(prompts, trainer):
        size = len(prompts)
        answers = {"prompt_ids": [[2, 3]] * size, "completion_ids": [[5, 6, 7]] * size, "logprobs": None}
        return {**answers, "gold": ["4"] * size}

    trainer = make_trainer(needs_gold, rollout_func=rollout, max_steps=1)
    trainer.train()
    assert trainer.state.global_step == 1
    nameless = problems.rename_column("prompt", "question")
    with pytest.raises(ValueError, match="but prompt is missing"):
        LeashGRPOTrainer(NOWHERE, parity_reward, make_args(), train_dataset=nameless, rollout_func=rollout)


def test_prompts_are_a_rollout_functions_own_business(make_trainer, problems, tokenizer):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="row 5 of the data set")
        make_trainer(dataset=with_long_prompt(problems, tokenizer, 3000), rollout_func=lambda prompts, trainer: {})


def test_leash_train_hears_of_a_rollout_function(make_args, problems):
    from leash_trl.cli.training_checks import check_training_data
    from leash_trl.rewards import math_reward

    bare = problems.remove_columns("solution")
    check_training_data(bare, [needs_gold, math_reward], make_args(), "my_lib.rollout")
    with pytest.raises(ValueError, match="gold and solution is missing"):
        check_training_data(bare, [needs_gold, math_reward], make_args())


class Adder:
    """An environment, as the trainer takes it."""

    def reset(self, **kwargs):
        return "1 + 1 = ?"


TOOLS_TEMPLATE = "{% for m in messages %}{{ m.content }}{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}"
TOOLS_TEMPLATE += "{% endfor %}"


@pytest.mark.parametrize("columns", [["prompt", "solution"], ["solution"]], ids=["prompts", "no prompts"])
def test_environments_train_with_and_without_prompts(columns, make_args, problems, changed_tokenizer, tiny_model_path):
    trainer = LeashGRPOTrainer(
        tiny_model_path,
        parity_reward,
        make_args(max_steps=1),
        train_dataset=problems.select_columns(columns),
        processing_class=changed_tokenizer(chat_template=TOOLS_TEMPLATE),
        environment_factory=Adder,
    )
    trainer.train()
    assert trainer.state.global_step == 1


def test_environments_give_rewards_no_columns(make_args, problems):
    with pytest.raises(ValueError, match="but gold is missing"):
        LeashGRPOTrainer(
            NOWHERE, needs_gold, make_args(), train_dataset=problems.select_columns("level"), environment_factory=Adder
        )


@pytest.mark.parametrize("columns", [["level"], ["level", "prompt"]])
def test_columns_that_a_transform_makes_are_not_missed(columns, make_trainer, problems):
    def ask(batch):
        return {
            "prompt": [[{"role": "user", "content": "?"}] for _ in batch["level"]],
            "gold": ["4" for _ in batch["level"]],
        }

    trainer = make_trainer(needs_gold, dataset=problems.select_columns(columns).with_transform(ask), max_steps=1)
    trainer.train()
    assert trainer.state.global_step == 1


def test_the_trainer_warns_of_a_misspelt_column(make_trainer, problems):
    with pytest.warns(UserWarning, match="has a column 'target_lenght'"):
        make_trainer(dataset=problems.add_column("target_lenght", [12] * len(problems)))


def test_a_column_that_is_nearly_target_length_is_warned_about():
    with pytest.warns(UserWarning, match="has a column 'target_lenght', which means nothing here"):
        warn_about_misspelt_target(["prompt", "target_lenght"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_about_misspelt_target(["prompt", "target_length", "target_lengths", "length"])
        warn_about_misspelt_target(["prompt", "length", "level"])


def with_long_prompt(problems, tokenizer, size: int):
    """The problems, the prompt of row 5 of so many tokens."""
    rows = problems.to_list()
    empty = tokenizer.apply_chat_template([{"role": "user", "content": ""}], add_generation_prompt=True)["input_ids"]
    rows[5]["prompt"] = [{"role": "user", "content": " ".join("+" * (size - len(empty)))}]
    return type(problems).from_list(rows)


def test_a_prompt_longer_than_the_context_is_warned_about(make_trainer, problems, tokenizer):
    with pytest.warns(UserWarning, match=r"row 5 .* has a prompt of 3000 tokens.*context of 2048 tokens"):
        make_trainer(dataset=with_long_prompt(problems, tokenizer, 3000))


def test_a_prompt_may_fill_the_context_up_to_its_target(make_trainer, problems, tokenizer):
    with pytest.warns(UserWarning, match=r"max_completion_length is 24.*row 5, 2036 tokens.*holds 12:"):
        make_trainer(dataset=with_long_prompt(problems, tokenizer, CONTEXT - 12))
    with pytest.warns(UserWarning, match="with a completion of 12 tokens; drop prompts above 2036 tokens"):
        make_trainer(dataset=with_long_prompt(problems, tokenizer, CONTEXT - 11))


@pytest.mark.filterwarnings("ignore:row 5 of the data set")
def test_a_prompt_that_leaves_vllm_no_token_is_an_error(make_trainer, problems, tokenizer):
    fitting, filling = (with_long_prompt(problems, tokenizer, size) for size in (CONTEXT - 1, CONTEXT))
    trainer = make_trainer()
    trainer._check_context(filling, trainer.length_control)
    trainer.args.use_vllm, trainer.args.vllm_mode = True, "colocate"
    trainer._check_context(fitting, trainer.length_control)
    with pytest.raises(ValueError, match=r"row 5 .* prompt of 2048 tokens.*drop prompts above 2047 tokens"):
        trainer._check_context(filling, trainer.length_control)


def test_the_longest_prompt_is_the_one_that_is_refused():
    prompts = [PlacedPrompt(row, "", 900.0 - row) for row in range(3)]
    check_refused(prompts, [97, 99, 98], 100, "vllm_max_model_length")
    with pytest.raises(ValueError, match=r"row 1 .* 99 tokens"):
        check_refused(prompts, [97, 99, 98], 99, "vllm_max_model_length")


@pytest.mark.parametrize(
    ("use_vllm", "mode", "expected"), [(True, "colocate", True), (True, "server", False), (False, "colocate", False)]
)
def test_only_a_vllm_of_this_process_refuses_prompts(use_vllm, mode, expected, make_args):
    assert is_refused_beyond_context(make_args(use_vllm=use_vllm, vllm_mode=mode)) is expected


def test_of_many_prompts_that_may_not_fit_the_longest_are_measured(make_trainer, problems):
    trainer = make_trainer()
    sizes = [*range(1, MOST_MEASURED + 1), 5000, 1]
    rows = [{"prompt": [{"role": "user", "content": "+" * size}]} for size in sizes]
    found = long_prompts(type(problems).from_list(rows), trainer.length_control, trainer.args, 24, 0)
    assert len(found) == MOST_MEASURED
    assert found[0].row == MOST_MEASURED
    assert {placed.row for placed in found}.isdisjoint({0, MOST_MEASURED + 1})


def test_stretched_positions_train_without_a_word(make_args, tokenizer, problems, tmp_path):
    """Sixteen positions, stretched by 8, are room for prompts of some 30 tokens and completions of 24."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        max_position_embeddings=16,
        rope_parameters={"rope_type": "linear", "factor": 8.0, "rope_theta": 10000.0},
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        trainer = LeashGRPOTrainer(
            str(tmp_path / "model"), parity_reward, make_args(max_steps=1), train_dataset=problems
        )
    trainer.train()
    assert trainer.state.global_step == 1


def test_only_the_main_process_warns(
    make_args, make_trainer, problems, tokenizer, changed_tokenizer, tiny_model_path, monkeypatch
):
    dataset = with_long_prompt(problems, tokenizer, 3000).add_column("target_lenght", [12] * len(problems))
    closing = changed_tokenizer(chat_template=changed_tokenizer().chat_template.replace("<think>", "") + CLOSING)
    monkeypatch.setattr(Accelerator, "is_main_process", property(lambda self: False))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="the data set has a column|row 5 of the data set|the chat template")
        LeashGRPOTrainer(tiny_model_path, parity_reward, make_args(), train_dataset=dataset, processing_class=closing)
        trainer = make_trainer()
        trainer.args.use_vllm, trainer.args.vllm_mode = True, "colocate"
        trainer._check_context(with_long_prompt(problems, tokenizer, CONTEXT - 11), trainer.length_control)
    with pytest.raises(ValueError, match=r"row 5 .* has a prompt of 3000 tokens"):
        trainer._check_context(dataset, trainer.length_control)


def test_a_limit_near_the_context_is_warned_about(make_trainer):
    with pytest.warns(UserWarning, match=r"max_completion_length is 2040.*the context of 2048 tokens"):
        make_trainer(max_completion_length=CONTEXT - 8)


def test_a_prompt_may_fill_the_context_up_to_the_limit_without_a_word(make_trainer, problems, tokenizer):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        make_trainer(dataset=with_long_prompt(problems, tokenizer, CONTEXT - 24))


@pytest.mark.parametrize(
    ("recipe", "context"),
    [
        *((RECIPES / "gym" / f"{name}.yaml", 1024) for name in ("leash", "leash_c", "none", "smoke")),
        *((path, 131072) for path in sorted(RECIPES.glob("leash*_1.5b_*.yaml"))),
        *((path, 262144) for path in sorted(RECIPES.glob("leash*_4b_*.yaml"))),
    ],
    ids=lambda value: value.stem if isinstance(value, Path) else None,
)
def test_our_recipes_leave_room_for_long_prompts(recipe, context, monkeypatch, tmp_path):
    """R1-Distill-Qwen has 131,072 positions, Qwen3-4B-Thinking 262,144, the gym's model 1,024."""
    from leash_trl.cli.train import parse

    monkeypatch.chdir(tmp_path)
    training_args = parse(["--config", str(recipe), "--use_cpu", "true", "--bf16", "false"])[1]
    assert training_args.max_completion_length <= context // 2


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, None),
        ({"max_position_embeddings": 131072}, 131072),
        (
            {
                "max_position_embeddings": 131072,
                "rope_parameters": {"factor": 8.0, "original_max_position_embeddings": 8192},
            },
            131072,
        ),
        ({"max_position_embeddings": 2048, "rope_parameters": {"rope_type": "dynamic", "factor": 3.0}}, 6144),
        (
            {
                "max_position_embeddings": 100,
                "rope_parameters": {"full_attention": {"factor": 8.0}, "sliding_attention": {"rope_type": "default"}},
            },
            800,
        ),
        ({"max_position_embeddings": 2048, "alibi": True}, None),
        ({"max_position_embeddings": 2048, "alibi": False}, 2048),
    ],
)
def test_the_context_is_what_the_positions_allow(config, expected):
    assert context_length(config) == expected


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (GPT2Config(n_positions=512), 512),
        (LlamaConfig(max_position_embeddings=512), 512),
        (FalconConfig(alibi=True), None),
        (FalconConfig(alibi=False, max_position_embeddings=512), 512),
        (MptConfig(), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_context_of_models_that_name_it_their_own_way(config, expected):
    assert context_length(context_settings(config)) == expected


@pytest.mark.parametrize(
    ("use_vllm", "positions", "served", "expected"),
    [
        (True, 4096, 2048, (2048, "vllm_max_model_length")),
        (True, None, 2048, (2048, "vllm_max_model_length")),
        (True, 4096, 8192, (4096, "max_position_embeddings of the model")),
        (False, 4096, 2048, (4096, "max_position_embeddings of the model")),
        (False, None, 2048, None),
    ],
)
def test_a_shorter_context_of_vllm_counts(use_vllm, positions, served, expected, make_args):
    args = make_args(use_vllm=use_vllm, vllm_max_model_length=served)
    assert context_of({"max_position_embeddings": positions}, args) == expected


@pytest.mark.skipif(bool(__import__("importlib.util").util.find_spec("vllm")), reason="vLLM is here")
def test_a_missing_vllm_is_named_before_the_model_is_loaded(make_args, problems, capsys, tmp_path):
    with pytest.raises(
        ImportError, match=r"use_vllm is True, but vLLM is not installed: pip install 'leash-trl\[vllm\]'"
    ):
        LeashGRPOTrainer(NOWHERE, parity_reward, make_args(use_vllm=True), train_dataset=problems)
    assert "vLLM is not installed" in fails_in_one_line(["train", *GYM, "--use_vllm", "true"], capsys)
    arguments = ["eval", "--model", "gym", "--benchmarks", "gym_test", "--engine", "vllm", "--limit", "1"]
    line = fails_in_one_line([*arguments, "--output_dir", str(tmp_path / "eval")], capsys)
    assert "needs vLLM, which cannot be imported" in line
    assert 'pip install "leash-trl[vllm]", or use the engine "transformers"' in line


FULL = [
    OSError(errno.ENOSPC, "No space left on device"),
    OSError(errno.EDQUOT, "Disk quota exceeded"),
    RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 1093120 vs 1093008"),
    RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed"),
]


@pytest.mark.parametrize("error", FULL, ids=str)
def test_what_writers_raise_on_a_full_disk_is_known(error):
    assert is_out_of_space(error)
    assert not is_out_of_space(OSError(errno.EACCES, "Permission denied"))
    assert not is_out_of_space(RuntimeError("shape mismatch"))
    assert not is_out_of_space(TypeError("Unexpected positional argument: 'x'"))


def test_a_full_disk_names_what_is_free_the_last_checkpoint_and_how_to_go_on(make_trainer, monkeypatch):
    trainer = make_trainer(save_strategy="steps", save_steps=1)
    output_dir = Path(trainer.args.output_dir)
    save = torch.save

    def full(content, path, *args, **kwargs):
        if "checkpoint-2" in str(path):
            raise RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed")
        save(content, path, *args, **kwargs)

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(RuntimeError, match="PytorchStreamWriter failed") as failure:
        trainer.train()
    text = advice_in(failure.value)
    assert f"No space was left for {output_dir / 'checkpoint-2'} (" in text
    assert "MiB are free): delete it" in text
    assert f"the last whole checkpoint is {output_dir / 'checkpoint-1'}, and resume_from_checkpoint: true" in text
    assert "save_total_limit (now None)" in text
    assert "save_only_model: true" in text


def test_weights_that_do_not_fit_get_the_same_advice_and_no_run_is_to_be_deleted(make_trainer, monkeypatch):
    from safetensors import SafetensorError

    def full(*args, **kwargs):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("transformers.modeling_utils.safe_save_file", full)
    trainer = make_trainer()
    with pytest.raises(SafetensorError) as failure:
        trainer.save_model()
    text = advice_in(failure.value)
    assert f"No space was left for {trainer.args.output_dir} (" in text
    assert "delete" not in text
    assert "holds no whole checkpoint" in text


def test_a_checkpoint_that_will_not_fit_is_announced_before_training(make_trainer, monkeypatch):
    trainer = make_trainer(save_strategy="steps")
    weights = sum(p.numel() * p.element_size() for p in trainer.model.parameters())
    assert trainer._checkpoint_bytes() == 3 * weights
    monkeypatch.setattr("leash_trl.trainer.advice.free_bytes", lambda folder: 3 * weights - 1)
    with pytest.warns(UserWarning, match=rf"one checkpoint takes at least {3 * weights / MIB:.1f} MiB"):
        trainer.train()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="output_dir is")
        make_trainer(save_strategy="steps", save_only_model=True, max_steps=1).train()
        make_trainer(save_strategy="no", max_steps=1).train()


def test_of_adapters_only_adapters_are_saved(make_trainer):
    from peft import LoraConfig

    trainer = make_trainer(peft_config=LoraConfig(r=2, target_modules=["q_proj"]), save_strategy="steps")
    adapters = sum(p.numel() * p.element_size() for p in trainer.model.parameters() if p.requires_grad)
    assert 0 < trainer._checkpoint_bytes() == 3 * adapters


def test_a_folder_that_is_not_there_yet_is_on_its_parents_disk(tmp_path):
    assert space_problem(tmp_path / "runs" / "new", 1) is None
    problem = space_problem(tmp_path / "runs" / "new", 2**80)
    assert f"output_dir is {tmp_path / 'runs' / 'new'}, where" in problem


def unknown(path):
    raise PermissionError(errno.EACCES, "Permission denied")


@pytest.mark.parametrize("usage", [unknown, lambda path: SimpleNamespace(total=0, free=0)], ids=["error", "nothing"])
def test_a_disk_of_unknown_size_is_no_problem(usage, tmp_path, monkeypatch, make_args):
    monkeypatch.setattr(shutil, "disk_usage", usage)
    assert space_problem(tmp_path, 2**80) is None
    text = advice(FULL[0], "saving", make_args(), tmp_path)
    assert f"No space was left for {tmp_path}: " in text


CUDA = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB"


def exhausted(*args, **kwargs):
    raise torch.OutOfMemoryError(CUDA)


def advice_of_training(trainer) -> str:
    with pytest.raises(torch.OutOfMemoryError) as failure:
        trainer.train()
    notes = failure.value.__notes__
    assert len(notes) == 1, "one phase gives advice, the innermost"
    return advice_in(failure.value)


def test_out_of_memory_while_generating_names_batch_and_limit(make_trainer, monkeypatch):
    trainer = make_trainer(steps_per_generation=2, gradient_accumulation_steps=2)
    monkeypatch.setattr(type(trainer.model), "generate", exhausted)
    text = advice_of_training(trainer)
    assert "Memory ran out while generating" in text
    assert "per_device_train_batch_size * steps_per_generation (now 8 * 2)" in text
    assert "max_completion_length (now 24)" in text
    assert "use_vllm: true" in text
    assert "leash plan --config" in text


def test_out_of_memory_in_the_loss_names_the_micro_batch(make_trainer, monkeypatch):
    trainer = make_trainer(gradient_accumulation_steps=2)
    monkeypatch.setattr(trainer.accelerator, "backward", exhausted)
    text = advice_of_training(trainer)
    assert "Memory ran out while computing the loss" in text
    assert "lower per_device_train_batch_size (now 8) and raise gradient_accumulation_steps (now 2)" in text
    assert "use_liger_kernel: true" in text
    assert "gradient_checkpointing" not in text, "it is on already"
    assert "use_peft: true" in text


def test_out_of_memory_in_the_optimizer_names_adapters_and_sharding(make_trainer, monkeypatch):
    trainer = make_trainer()
    monkeypatch.setattr(torch.optim.AdamW, "step", exhausted)
    text = advice_of_training(trainer)
    assert "Memory ran out while updating the weights" in text
    assert "use_peft: true" in text
    assert "recipes/accelerate" in text
    assert "optim is adamw_torch" in text


@pytest.mark.parametrize("optim", ["adamw_torch", OptimizerNames.ADAMW_TORCH])
def test_an_optimizer_that_was_set_later_is_named_too(optim, make_args):
    args = make_args()
    args.optim = optim
    with pytest.raises(torch.OutOfMemoryError) as failure, advise("saving", args):
        exhausted()
    assert "(optim is adamw_torch)" in advice_in(failure.value)


def test_out_of_memory_in_evaluation_names_its_batch(make_trainer, problems, monkeypatch):
    trainer = make_trainer(eval_dataset=problems.select(range(4)), per_device_eval_batch_size=4)
    monkeypatch.setattr(type(trainer.model), "generate", exhausted)
    with pytest.raises(torch.OutOfMemoryError) as failure:
        trainer.evaluate()
    assert "while evaluating: lower per_device_eval_batch_size (now 4)" in advice_in(failure.value)


def test_a_model_that_does_not_fit_gets_advice(make_args, problems, tiny_model_path, monkeypatch):
    monkeypatch.setattr("trl.trainer.grpo_trainer.create_model_from_path", exhausted)
    with pytest.raises(torch.OutOfMemoryError) as failure:
        LeashGRPOTrainer(tiny_model_path, parity_reward, make_args(), train_dataset=problems)
    assert "while starting: load a smaller model" in advice_in(failure.value)


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (
            ValueError("No available memory for the cache blocks. Try increasing `gpu_memory_utilization`"),
            "raise vllm_gpu_memory_utilization (now 0.3); or lower vllm_max_model_length (now that of the model)",
        ),
        (
            ValueError("To serve at least one request (9.1 GiB KV cache is needed, which is larger than (2 GiB)"),
            "raise vllm_gpu_memory_utilization (now 0.3)",
        ),
        (
            ValueError("Free memory on device (5/79 GiB) is less than desired GPU memory utilization (0.9, 71 GiB)"),
            "lower vllm_gpu_memory_utilization (now 0.3)",
        ),
        (torch.OutOfMemoryError(CUDA), "lower vllm_gpu_memory_utilization (now 0.3); or set vllm_enable_sleep_mode"),
    ],
    ids=["no blocks", "short cache", "taken", "weights"],
)
def test_vllm_that_cannot_start_says_which_way_to_turn_its_share(error, remedy, make_args):
    args = make_args(use_vllm=True, vllm_gpu_memory_utilization=0.3)
    assert remedy in advice(error, "starting", args)
    assert remedy not in (advice(error, "starting", make_args()) or "")


def test_a_vllm_that_shares_the_gpu_is_part_of_the_advice_on_the_loss(make_args):
    colocated = make_args(use_vllm=True, vllm_mode="colocate", vllm_enable_sleep_mode=True)
    text = advice(torch.OutOfMemoryError(CUDA), "computing the loss", colocated)
    assert "lower vllm_gpu_memory_utilization" in text
    assert "vllm_enable_sleep_mode" not in text, "it is on already"
    server = make_args(use_vllm=True, vllm_mode="server")
    assert "vllm" not in advice(torch.OutOfMemoryError(CUDA), "computing the loss", server)


def test_other_failures_pass_as_they_are(make_args):
    with pytest.raises(ValueError, match="a bug") as failure, advise("generating", make_args()):
        raise ValueError("a bug")
    assert advice_in(failure.value) is None


def test_a_failure_with_a_known_remedy_is_one_line_and_code_1(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(torch.optim.AdamW, "step", exhausted)
    arguments = ["train", *GYM, "--max_steps", "1", "--output_dir", str(tmp_path / "run")]
    line = fails_in_one_line(arguments, capsys, code=1)
    assert line.startswith("leash train: OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
    assert "Memory ran out while updating the weights: train adapters" in line
    with pytest.raises(torch.OutOfMemoryError):
        main([*arguments, "--log_level", "debug"])


def test_a_failure_to_start_that_is_a_value_error_keeps_its_advice():
    from leash_trl.cli.errors import UserError, user_errors

    error = ValueError("No available memory for the cache blocks.\nSee the manual")
    error.add_note("What to do: raise vllm_gpu_memory_utilization")
    with pytest.raises(UserError) as failure, user_errors():
        raise error
    assert str(failure.value) == (
        "ValueError: No available memory for the cache blocks. raise vllm_gpu_memory_utilization"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--lamda_lr", "0.1"], "unknown option --lamda_lr, did you mean --lambda_lr?"),
        (["--target_lenght=30"], "unknown option --target_lenght, did you mean --target_length?"),
        (["--zzz"], "unknown option --zzz, leash train --help-all lists all"),
        (["0.1"], "'0.1' belongs to no option"),
        (["--config=x.yaml"], "--config x.yaml: no such file"),
    ],
)
def test_misspelt_options_are_named(words, message, capsys):
    assert message in fails_in_one_line(["train", *GYM, *words], capsys)


def test_a_misspelt_option_is_named_before_what_it_leaves_out(capsys):
    arguments = ["train", "--model_name_or_path", "gym", "--dataset_name", "gym", "--target_lenght", "40"]
    assert "did you mean --target_length?" in fails_in_one_line(arguments, capsys)


def help_of(option: str, capsys) -> str:
    with pytest.raises(SystemExit) as stop:
        main(["train", option])
    assert stop.value.code == 0
    return capsys.readouterr().out


def test_the_short_help_shows_our_fields_and_the_long_one_everything(capsys):
    short, everything = help_of("--help", capsys), help_of("--help-all", capsys)
    for name in ("--target_length", "--lambda_lr", "--reward_funcs", "--num_generations", "--config", "--help-all"):
        assert f"{name} " in short
    assert "--adam_beta2 " not in short
    assert "--adam_beta2 " in everything
    assert len(short.splitlines()) < len(everything.splitlines()) / 4


def test_every_field_of_the_short_help_exists():
    from leash_trl.cli.train import DATACLASS_TYPES
    from leash_trl.cli.training_options import MOST_USED

    known = {name for dataclass_type in DATACLASS_TYPES for name in dataclass_type.__dataclass_fields__}
    assert known >= MOST_USED


@pytest.mark.parametrize("prompts", [[1, 2], [[1, 2], [3, 4]], [["a"], ["b"]], [{"content": "a"}, {"content": "b"}]])
def test_prompts_that_are_neither_text_nor_messages_are_named_before_the_model_is_loaded(prompts, make_args):
    with pytest.raises(ValueError, match=r"row 0 .*must be text or messages"):
        LeashGRPOTrainer(NOWHERE, parity_reward, make_args(), train_dataset=Dataset.from_dict({"prompt": prompts}))
