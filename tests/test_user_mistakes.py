"""Mistakes that people make: each has one clear message, in Python and from `leash train`, as early as possible."""

import functools
import importlib.util
import inspect
import json
import shutil
import warnings
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from conftest import ROOT, parity_reward
from datasets import Dataset
from peft import LoraConfig
from safetensors import SafetensorError
from transformers import LlamaConfig, MptConfig
from trl import GRPOTrainer

from leash_trl import LeashGRPOTrainer
from leash_trl.cli.main import main
from leash_trl.engines.shrinking_batch import shrinking_rollout
from leash_trl.gym.tokenizer import build_tokenizer
from leash_trl.rewards import get_math_reward, math_reward
from leash_trl.trainer import checks
from leash_trl.trainer.advice import MIB
from leash_trl.trainer.checks import (
    MOST_MEASURED,
    after,
    before,
    closed_thinking_problem,
    context_problem,
    longest_prompts,
    required_columns,
    space_problem,
)


RECIPES = ROOT / "recipes"
NOWHERE = "a-model/that-nobody-can-load"
GYM = ["--model_name_or_path", "gym", "--dataset_name", "gym", "--use_cpu", "true", "--bf16", "false"]
GYM += ["--target_length", "40", "--max_completion_length", "64", "--gradient_checkpointing", "false"]
GYM += ["--report_to", "none", "--disable_tqdm", "true"]
CONTEXT = 2048  # of the tiny model
CLOSING = "{% if add_generation_prompt and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"


@pytest.fixture
def make_with_tokenizer(make_args, tiny_model_path, problems):
    """Factory of trainers whose tokenizer lacks something, or writes prompts otherwise."""

    def make(attributes, args=None, dataset=problems, **options):
        tokenizer = build_tokenizer()
        for name, value in attributes.items():
            setattr(tokenizer, name, value)
        options |= {"args": args or make_args(), "train_dataset": dataset, "processing_class": tokenizer}
        return LeashGRPOTrainer(tiny_model_path, parity_reward, **options)

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
        ([12.0], r"target_length=\[12.0\]"),
    ],
)
def test_a_rows_own_target_is_held_to_the_limit_before_the_model_is_loaded(value, message, make_args, problems):
    dataset = problems.add_column("target_length", [None, None, value, *[None] * (len(problems) - 3)])
    with pytest.raises(ValueError, match=f"row 2 of the data set, column target_length: .*{message}"):
        LeashGRPOTrainer(NOWHERE, parity_reward, make_args(), train_dataset=dataset)


def test_columns_that_a_reward_needs_are_named_before_the_model_is_loaded(make_args, problems):
    renamed = problems.rename_column("solution", "answer")
    for reward in (math_reward, get_math_reward(opens_thinking=True), [parity_reward, math_reward]):
        with pytest.raises(ValueError, match="columns prompt, answer, level, but solution is missing"):
            LeashGRPOTrainer(NOWHERE, reward, make_args(), train_dataset=renamed)
    with pytest.raises(ValueError, match="columns question, solution, level, but prompt is missing"):
        before(NOWHERE, parity_reward, make_args(), problems.rename_column("prompt", "question"))


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


def test_what_rollout_functions_and_environments_give_is_not_missed(make_args, problems):
    nameless, args = problems.rename_column("prompt", "question"), make_args()
    assert before(NOWHERE, needs_gold, args, problems, rollout_func=print) == NOWHERE
    assert before(NOWHERE, parity_reward, args, nameless, environment_factory=dict) == NOWHERE
    with pytest.raises(ValueError, match="but gold is missing"):
        before(NOWHERE, needs_gold, args, problems, rollout_func=shrinking_rollout)
    with pytest.raises(ValueError, match="but prompt is missing"):
        before(NOWHERE, parity_reward, args, nameless, rollout_func=print)
    with pytest.raises(ValueError, match="but gold is missing"):
        before(NOWHERE, needs_gold, args, nameless, environment_factory=dict)


@pytest.mark.parametrize("columns", [["level"], ["level", "prompt"]])
def test_columns_that_a_transform_makes_are_not_missed(columns, make_trainer, problems):
    def ask(batch):
        return {
            "prompt": [[{"role": "user", "content": "?"}] for _ in batch["level"]],
            "gold": ["4" for _ in batch["level"]],
        }

    make_trainer(needs_gold, dataset=problems.select_columns(columns).with_transform(ask))


class Adder:
    """An environment, as the trainer takes it."""

    def reset(self, **kwargs):
        return "1 + 1 = ?"


@pytest.mark.parametrize("columns", [["prompt", "solution"], ["solution"]], ids=["prompts", "no prompts"])
def test_environments_do_with_and_without_prompts(columns, make_with_tokenizer, problems):
    template = "{% for m in messages %}{{ m.content }}{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}"
    make_with_tokenizer(
        {"chat_template": template + "{% endfor %}"},
        dataset=problems.select_columns(columns),
        environment_factory=Adder,
    )


ASKING = [{"role": "user", "content": "?"}]


@pytest.mark.parametrize("blank", [None, [], [{"role": "user", "content": " "}]], ids=repr)
def test_a_prompt_that_asks_nothing_is_named_with_its_row_before_the_model_is_loaded(blank, make_args):
    dataset = Dataset.from_dict({"prompt": [*[ASKING] * 5, blank, ASKING, ASKING]})
    with pytest.raises(ValueError, match=r"row 5 .*must be text or messages with something in it"):
        LeashGRPOTrainer(NOWHERE, parity_reward, make_args(), train_dataset=dataset)


@pytest.mark.parametrize("prompt", [" ", 1, [1, 2], ["a"], {"content": "a"}], ids=repr)
def test_prompts_that_are_neither_text_nor_messages_are_named(prompt, make_args):
    with pytest.raises(ValueError, match=r"row 0 .*must be text or messages"):
        before(NOWHERE, parity_reward, make_args(), Dataset.from_dict({"prompt": [prompt] * 8}))


def test_a_tokenizer_without_end_token_is_refused(make_with_tokenizer):
    with pytest.raises(ValueError, match=r"the tokenizer has no eos_token \(its pad_token is '<\|pad\|>'\)"):
        make_with_tokenizer({"eos_token": None})


def test_an_end_token_that_the_model_does_not_know_is_refused(make_args, problems, tiny_model_path, tmp_path):
    folder = Path(shutil.copytree(tiny_model_path, tmp_path / "model"))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "eos_token": "<|nope|>"}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 1}))
    LeashGRPOTrainer(folder, parity_reward, make_args(), train_dataset=problems)  # the model's own ends completions
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 500}))
    with pytest.raises(ValueError, match=r"eos_token '<\|nope\|>' has the id 122, .* the ids 0 to 121, "):
        LeashGRPOTrainer(folder, parity_reward, make_args(), train_dataset=problems)


def test_a_tokenizer_without_pad_token_changes_nothing(make_args, make_with_tokenizer):
    logs = []
    for attributes in ({}, {"pad_token": None}):
        options = {"max_completion_length": 12, "target_length": 6, "max_steps": 1}
        options["generation_kwargs"] = {"sequence_bias": [[[1], 2.0], [[0], -50.0]]}
        trainer = make_with_tokenizer(attributes, make_args(**options))
        trainer.train()
        logs.append({key: value for key, value in trainer.state.log_history[0].items() if key != "step_time"})
    assert logs[0] == logs[1]
    assert 0 < logs[0]["leash/truncated_share"] < 1


def test_a_template_that_fails_on_a_prompt_lets_the_trainer_be_made(make_with_tokenizer):
    make_with_tokenizer({"chat_template": "{{ 1 + messages[0].content }}"})


def test_a_template_that_closes_the_thinking_is_warned_about(make_args, make_with_tokenizer):
    template = {"chat_template": build_tokenizer().chat_template.replace("<think>", "") + CLOSING}
    with pytest.warns(UserWarning, match=r"closes the thinking.*chat_template_kwargs is \{'enable_thinking': False\}"):
        make_with_tokenizer(template, make_args(chat_template_kwargs={"enable_thinking": False}))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="the chat template closes")
        make_with_tokenizer(template, make_args(chat_template_kwargs={"enable_thinking": True}))


def test_an_earlier_answer_without_thinking_is_no_closed_thinking():
    assert closed_thinking_problem("<think>\n\n</think>4<|user|>?<|assistant|><think>", {}) is None


def with_long_prompt(problems, tokenizer, size: int):
    """The problems, the prompt of row 5 of so many tokens."""
    rows = problems.to_list()
    empty = tokenizer.apply_chat_template([{"role": "user", "content": ""}], add_generation_prompt=True)["input_ids"]
    rows[5]["prompt"] = [{"role": "user", "content": "?" * (size - len(empty))}]
    return Dataset.from_list(rows)


def test_a_prompt_that_leaves_no_room_for_the_limit_is_warned_about(make_trainer, problems, tokenizer):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        make_trainer(dataset=with_long_prompt(problems, tokenizer, CONTEXT - 24))
        make_trainer(dataset=with_long_prompt(problems, tokenizer, 3000), rollout_func=lambda prompts, trainer: {})
    with pytest.warns(UserWarning, match=r"24 tokens \(max_completion_length\).*row 5 .*2025 tokens.* holds 23:"):
        make_trainer(dataset=with_long_prompt(problems, tokenizer, CONTEXT - 23))


def test_a_suffix_counts_and_so_do_targets_in_it(make_args, problems):
    args = make_args(length_control="l1_exact", length_control_kwargs={"budget_range": [4, 8]}, lambda_lr=None)
    dataset = problems.add_column("target_length", [7, *[None] * (len(problems) - 1)])
    rows, prompts = longest_prompts(dataset, args)
    assert "7 tokens" in prompts[rows.index(0)][-1]["content"]


@pytest.mark.parametrize(
    ("use_vllm", "mode", "is_refused"), [(True, "colocate", True), (True, "server", False), (False, "colocate", False)]
)
def test_only_a_vllm_of_this_process_refuses_prompts_that_leave_no_token(use_vllm, mode, is_refused, make_args):
    args, config = make_args(use_vllm=use_vllm, vllm_mode=mode), LlamaConfig(max_position_embeddings=100)
    assert "holds 1:" in context_problem(5, 99, config, args)
    if is_refused:
        with pytest.raises(ValueError, match=r"row 5 .* 100 tokens.*drop the longest prompts"):
            context_problem(5, 100, config, args)
    else:
        assert "holds 0:" in context_problem(5, 100, config, args)


@pytest.mark.parametrize(
    ("use_vllm", "config", "served", "context"),
    [
        (True, LlamaConfig(max_position_embeddings=40), 30, "30 tokens (vllm_max_model_length)"),
        (True, MptConfig(), 30, "30 tokens (vllm_max_model_length)"),
        (True, LlamaConfig(max_position_embeddings=30), 40, "30 tokens (max_position_embeddings of the model)"),
        (False, LlamaConfig(max_position_embeddings=40), 30, "40 tokens (max_position_embeddings of the model)"),
        (False, MptConfig(), 30, "None"),
    ],
)
def test_a_shorter_context_of_vllm_counts(use_vllm, config, served, context, make_args):
    args = make_args(use_vllm=use_vllm, vllm_mode="server", vllm_max_model_length=served)
    assert context in str(context_problem(0, 25, config, args))


def test_of_many_prompts_the_longest_are_measured(make_args):
    sizes = [*range(1, MOST_MEASURED + 1), 5000, 1]
    rows = [{"prompt": [{"role": "user", "content": "+" * size}]} for size in sizes]
    found, _ = longest_prompts(Dataset.from_list(rows), make_args())
    assert len(found) == MOST_MEASURED
    assert found[0] == MOST_MEASURED
    assert {*found}.isdisjoint({0, MOST_MEASURED + 1})


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
    from leash_trl.cli.training_arguments import parse

    monkeypatch.chdir(tmp_path)
    training_args = parse(["--config", str(recipe), "--use_cpu", "true", "--bf16", "false"])[1]
    assert training_args.max_completion_length <= context // 2


def test_only_the_main_process_warns_and_every_process_refuses(
    make_trainer, make_args, problems, tokenizer, monkeypatch
):
    dataset = with_long_prompt(problems, tokenizer, 3000)
    monkeypatch.setattr(Accelerator, "is_main_process", property(lambda self: False))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        trainer = make_trainer(dataset=dataset)
    trainer.args = make_args(use_vllm=True, vllm_mode="colocate")
    with pytest.raises(ValueError, match=r"row 5 .* 3000 tokens"):
        after(trainer)


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is here")
def test_a_missing_vllm_is_named_before_the_model_is_loaded(make_args, problems, capsys, tmp_path):
    with pytest.raises(ImportError, match=r"use_vllm is True, but vLLM is not installed: pip install .*\[vllm\]"):
        before(NOWHERE, parity_reward, make_args(use_vllm=True), problems)
    assert "vLLM is not installed" in fails_in_one_line(["train", *GYM, "--use_vllm", "true"], capsys)
    arguments = ["eval", "--model", "gym", "--benchmarks", "gym_test", "--engine", "vllm", "--limit", "1"]
    line = fails_in_one_line([*arguments, "--output_dir", str(tmp_path / "eval")], capsys)
    assert "needs vLLM, which cannot be imported" in line
    assert 'pip install "leash-trl[vllm]", or use the engine "transformers"' in line


def test_a_checkpoint_that_will_not_fit_is_announced(make_trainer, monkeypatch):
    trainer = make_trainer(save_strategy="steps")
    weights = sum(p.numel() * p.element_size() for p in trainer.model.parameters())
    monkeypatch.setattr(checks, "free_bytes", lambda folder: 3 * weights - 1)
    with pytest.warns(UserWarning, match=rf"one checkpoint takes at least {3 * weights / MIB:.1f} MiB"):
        checks.before_training(trainer)
    trainer.args.save_only_model = True
    assert space_problem(trainer) is None
    monkeypatch.setattr(checks, "free_bytes", lambda folder: 0)
    assert f"output_dir is {trainer.args.output_dir}, where 0.0 MiB are free" in space_problem(trainer)
    trainer.args.save_strategy = "no"
    assert space_problem(trainer) is None


def test_of_adapters_only_adapters_are_saved(make_trainer, monkeypatch):
    trainer = make_trainer(peft_config=LoraConfig(r=2, target_modules=["q_proj"]), save_strategy="steps")
    adapters = sum(p.numel() * p.element_size() for p in trainer.model.parameters() if p.requires_grad)
    monkeypatch.setattr(checks, "free_bytes", lambda folder: 3 * adapters)
    assert space_problem(trainer) is None
    monkeypatch.setattr(checks, "free_bytes", lambda folder: 3 * adapters - 1)
    assert space_problem(trainer) is not None


def exhausted(*args, **kwargs):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total of 79.15 GiB")


def full(*args, **kwargs):
    raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


@pytest.mark.parametrize(
    ("function", "failure", "said", "advice"),
    [
        ("generate", exhausted, "OutOfMemoryError: CUDA out of memory. ", "Memory ran out while generating: lower"),
        ("save_pretrained", full, "SafetensorError: Error while serializing: ", "No space was left for output_dir"),
    ],
    ids=["generating", "saving at the end"],
)
def test_a_failure_with_a_known_remedy_is_one_line_and_code_1(
    function, failure, said, advice, capsys, monkeypatch, tmp_path
):
    monkeypatch.setattr(f"transformers.LlamaForCausalLM.{function}", failure)
    data, output = tmp_path / "data.jsonl", tmp_path / "run"
    data.write_text('{"prompt": "1 + 1 = ?", "solution": "2"}\n' * 8)
    words = ["train", *GYM, "--dataset_name", str(data), "--output_dir", str(output), "--save_strategy", "no"]
    words += ["--target_length", "2", "--max_completion_length", "4", "--max_steps", "1"]
    line = fails_in_one_line(words, capsys, code=1)
    assert line.startswith(f"leash train: {said}")
    assert advice in line


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
    from leash_trl.cli.training_arguments import DATACLASS_TYPES, MOST_USED

    known = {name for dataclass_type in DATACLASS_TYPES for name in dataclass_type.__dataclass_fields__}
    assert known >= MOST_USED


def test_a_rollout_function_given_by_position_may_bring_what_rewards_need(make_args, tiny_model_path, problems):
    def needs_extra(completions, extra, **kwargs):
        return [0.0] * len(completions)

    def rollout(prompts, trainer):
        raise NotImplementedError

    parameters = inspect.signature(GRPOTrainer).parameters
    names = list(parameters)
    between = [
        parameters[name].default for name in names[names.index("train_dataset") + 1 : names.index("rollout_func")]
    ]
    LeashGRPOTrainer(tiny_model_path, needs_extra, make_args(), problems, *between, rollout)
