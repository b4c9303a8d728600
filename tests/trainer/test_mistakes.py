"""What would go wrong without a word: each mistake is one line that names field and value, as early as can be."""

import warnings
from functools import partial

import pytest
import yaml
from conftest import ROOT, gym_tokenizer, parity_reward
from datasets import Dataset
from gradient_run import scripted_rollout
from transformers import TrainingArguments
from trl import GRPOConfig

from leash_trl import LeashGRPOTrainer, LengthControlledReward
from leash_trl.data import as_conversation
from leash_trl.length_control.leash import Leash
from leash_trl.rewards import math_reward
from leash_trl.trainer import checks
from leash_trl.trainer.checks import check_first_batch


CONFIG = yaml.safe_load((ROOT / "tests" / "fixtures" / "mistakes.yaml").read_text(encoding="utf-8"))


def one_line(text: str, field: str, value: str) -> None:
    assert "\n" not in text
    assert field in text
    assert value in text


@pytest.mark.parametrize(("fields", "field", "value"), CONFIG, ids=str)
def test_a_field_that_would_be_wrong_in_silence_is_refused(fields, field, value, make_args, monkeypatch):
    processes = (fields := {**fields}).pop("world", 1)
    monkeypatch.setattr(GRPOConfig, "world_size", property(lambda self: processes))
    with pytest.raises(ValueError) as failure:  # noqa: PT011  # the wording is free
        make_args(**fields)
    one_line(str(failure.value), field, value)
    assert "hf_x" not in str(failure.value)


ASKING = [{"role": "user", "content": "?"}]
TWO = {"reward_funcs": [parity_reward, math_reward], "length_control": "alp", "lambda_lr": None}
CONTROLLED = LengthControlledReward(parity_reward, "leash", target_length=12)
ROWS = [
    ({"prompt": [{"role": "user", "content": " "}]}, {}, "prompt", "row 5"),
    ({"prompt": []}, {}, "prompt", "[]"),
    ({"target_length": -3.0}, {}, "target_length", "-3.0"),
    ({"target_length": 24.0}, {}, "target_length", "24"),
    ({}, {"length_control_kwargs": {"multiplier_per": "levle"}}, "columns", "levle"),
    ({}, TWO, "correctness_func", "None"),
    ({}, TWO | {"correctness_func": "right"}, "correctness_func", "'right'"),
    ({}, {"reward_funcs": CONTROLLED}, "reward_funcs", "LengthControlledReward"),
]


NO_PROMPT = Dataset.from_dict({"question": ["1 + 1 = ?"] * 8})


@pytest.mark.parametrize("dataset", [NO_PROMPT, NO_PROMPT.to_iterable_dataset()], ids=["rows", "stream"])
def test_data_without_prompts_are_refused_as_the_trainer_is_made(dataset, make_trainer):
    with pytest.raises(ValueError) as failure:  # noqa: PT011
        make_trainer(dataset=dataset)
    one_line(str(failure.value), "prompt", "question")


def without_the_others(prompts, completions):
    return [1.0] * len(prompts)


def with_an_answer(completions, answer, **kwargs):
    return [1.0] * len(completions)


async def asynchronous_with_an_answer(completions, answer, **kwargs):
    return [1.0] * len(completions)


class Judge:
    def __call__(self, completions, answer, **kwargs):
        return [1.0] * len(completions)


@pytest.mark.parametrize(
    ("reward", "missing"),
    [
        (without_the_others, "completion_ids"),
        (with_an_answer, "answer"),
        (asynchronous_with_an_answer, "answer"),
        (partial(with_an_answer, extra=1), "answer"),
        (Judge(), "answer"),
    ],
    ids=["no keywords", "a column", "asynchronous", "partial", "object"],
)
def test_a_reward_that_does_not_take_what_it_gets_is_refused_before_a_batch_is_generated(
    reward, missing, make_trainer, problems
):
    with pytest.raises(ValueError) as failure:  # noqa: PT011
        make_trainer(reward)
    one_line(str(failure.value), "reward", missing)
    assert missing != "answer" or make_trainer(reward, dataset=problems.map(lambda row: {"answer": row["solution"]}))


def test_a_reward_may_take_what_only_a_rollout_function_or_a_transform_adds(make_trainer, problems, tokenizer):
    adding = problems.with_transform(lambda rows: {**rows, "answer": rows["solution"]})
    assert make_trainer(with_an_answer, dataset=adding)
    assert make_trainer(with_an_answer, dataset=problems.to_iterable_dataset().map(dict))  # its columns are not known
    assert make_trainer(
        with_an_answer, rollout_func=scripted_rollout(tokenizer, lambda *place: [tokenizer.eos_token_id])
    )
    with pytest.raises(ValueError, match="completion_ids"):
        make_trainer(without_the_others, dataset=adding)


@pytest.mark.parametrize(("columns", "options", "field", "value"), ROWS)
def test_rows_are_refused_before_training(columns, options, field, value, make_trainer):
    rows = {"prompt": [ASKING] * 8, "level": [1] * 8}
    for name, wrong in columns.items():
        rows[name] = [*rows.get(name, [None] * 8)[:5], wrong, *rows.get(name, [None] * 8)[6:]]
    fields = {"reward_funcs": parity_reward, "dataset": Dataset.from_dict(rows), **options}
    with pytest.raises(ValueError) as failure:  # noqa: PT011
        make_trainer(**fields)
    one_line(str(failure.value), field, value)


CLOSING = "{% if add_generation_prompt and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
CLOSES = {"chat_template": gym_tokenizer().chat_template.replace("<think>", "") + CLOSING}
STRINGS = Dataset.from_dict({"prompt": ["1 + 1 = ?"] * 8})
WRITTEN = STRINGS.map(
    lambda row: {"prompt": gym_tokenizer().apply_chat_template(ASKING, tokenize=False, add_generation_prompt=True)}
)
REQUESTS = {"length_control": "l1_exact", "lambda_lr": None, "length_control_kwargs": {"budget_range": None}}


def long_prompts(size: int) -> Dataset:
    """Problems, of which one fills the context of 2,048 tokens up to so many."""
    empty = gym_tokenizer().apply_chat_template([{"role": "user", "content": ""}], add_generation_prompt=True)
    longest = [{"role": "user", "content": "?" * (2048 - size - len(empty["input_ids"]))}]
    return Dataset.from_dict({"prompt": [ASKING, longest] * 4})


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, None),
        ({"tokenizer": CLOSES, "chat_template_kwargs": {"enable_thinking": False}}, ("chat_template_kwargs", "False")),
        ({"tokenizer": CLOSES, "chat_template_kwargs": {"enable_thinking": True}}, None),
        ({"dataset": STRINGS}, ("prompts", "chat_template")),
        ({"dataset": STRINGS.map(as_conversation)}, None),
        ({"dataset": STRINGS, "tokenizer": {"chat_template": None}}, None),
        ({"dataset": WRITTEN}, None),
        ({"dataset": WRITTEN, **REQUESTS}, ("prompts", "Think for")),
        ({"dataset": long_prompts(24)}, None),
        ({"dataset": long_prompts(23)}, ("max_completion_length", "24")),
    ],
)
def test_prompts_that_the_model_would_get_wrong_are_warned_of(
    options, named, make_args, tiny_model_path, problems, monkeypatch
):
    fields, tokenizer = {**options}, gym_tokenizer()
    dataset = fields.pop("dataset", problems)
    for name, value in fields.pop("tokenizer", {}).items():
        setattr(tokenizer, name, value)
    for process, num_lines in ((0, int(named is not None)), (1, 0)):
        monkeypatch.setattr(TrainingArguments, "process_index", process)
        data = {"train_dataset": dataset, "processing_class": tokenizer}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            LeashGRPOTrainer(tiny_model_path, parity_reward, make_args(**fields), **data)
        lines = [str(warning.message) for warning in caught if warning.category is UserWarning]
        assert len(lines) == num_lines
        for line in lines:
            one_line(line, *named)


def test_too_few_rows_are_refused_before_training_in_vain(make_trainer, problems):
    trainer = make_trainer(dataset=problems.select(range(1)))
    with pytest.raises(ValueError, match="rows") as failure:
        trainer.train()
    one_line(str(failure.value), "data set", "1 rows")
    checks.check_size(problems.select(range(2)), trainer.args)  # of eight completions in groups of four


def test_a_method_that_cannot_act_says_so_before_training(make_trainer):
    trainer = make_trainer(lambda_init=0.0, lambda_lr=0.0)
    with pytest.warns(UserWarning, match="length_control") as caught:
        checks.before_training(trainer)
    one_line(str(caught[0].message), "length_control", "leash")


@pytest.mark.parametrize(
    ("wrong", "num_ended", "limit", "said"),
    [
        (-1.0, 1, 24, []),
        (-1.0, 0, 12, []),  # the method itself cuts
        (0.0, 1, 24, [("task reward", "0")]),
        (0.0, 0, 24, [("task reward", "0"), ("max_completion_length", "24")]),
    ],
)
def test_a_first_batch_that_never_ends_or_has_another_scale_is_warned_of(
    wrong, num_ended, limit, said, make_args, make_rollouts
):
    rollouts = make_rollouts([wrong, 1.0], [limit] * 2, truncated=[num_ended == 0, True], limit=limit)
    args = make_args()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_first_batch(rollouts, Leash(), args)
    for warning, (field, value) in zip(caught, said, strict=True):
        one_line(str(warning.message), field, value)
