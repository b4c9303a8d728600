"""What would go wrong without a word: each mistake is one line that names field and value, as early as can be."""

import pytest
import yaml
from conftest import ROOT, gym_tokenizer, parity_reward
from datasets import Dataset
from process_warnings import warnings_of
from toy_rollouts import toy_rollouts
from trl import GRPOConfig

from leash_trl.data import as_conversation
from leash_trl.length_control.leash import Leash
from leash_trl.rewards import math_reward
from leash_trl.trainer.batch_checks import check_first_batch


# fields of a configuration, the field that is named, and the value that is
WRONG_FIELDS = yaml.safe_load((ROOT / "tests" / "fixtures" / "mistakes.yaml").read_text(encoding="utf-8"))
QUESTION = [{"role": "user", "content": "?"}]


def assert_refused(named, make, *args, **fields):
    """That a call ends with a message of one line that names all of these; its wording is free."""
    with pytest.raises(ValueError) as failure:  # noqa: PT011
        make(*args, **fields)
    message = str(failure.value)
    assert "\n" not in message
    assert "hf_x" not in message  # a token of the Hub
    assert [part for part in named if part not in message] == []


@pytest.mark.parametrize(("fields", "field", "value"), WRONG_FIELDS, ids=str)
def test_a_field_that_would_be_wrong_in_silence_is_refused(fields, field, value, make_args):
    assert_refused([field, value], make_args, **fields)


def test_dynamic_sampling_refuses_a_group_that_processes_share(make_args, monkeypatch):
    monkeypatch.setattr(GRPOConfig, "world_size", 2)
    fields = {"dynamic_sampling_rounds": 1, "num_generations": 8, "per_device_train_batch_size": 4}
    assert_refused(["num_generations", "8"], make_args, **fields)


@pytest.mark.parametrize(
    ("column", "wrong", "named"),
    [
        ("prompt", [{"role": "user", "content": " "}], "row 5"),
        ("prompt", [], "[]"),
        ("target_length", -3.0, "-3.0"),
        ("target_length", 24.0, "24"),
    ],
)
def test_a_wrong_row_is_refused_before_training(column, wrong, named, make_trainer):
    rows = {"prompt": [QUESTION] * 8, "target_length": [None] * 8}
    rows[column][5] = wrong
    assert_refused([column, named], make_trainer, dataset=Dataset.from_dict(rows))


TWO_REWARDS = {"reward_funcs": [parity_reward, math_reward], "length_control": "alp", "lambda_lr": None}


@pytest.mark.parametrize(
    ("fields", "field", "value"),
    [
        ({"length_control_kwargs": {"multiplier_per": "levle"}}, "columns", "levle"),
        (TWO_REWARDS, "correctness_func", "None"),
        (TWO_REWARDS | {"correctness_func": "right"}, "correctness_func", "'right'"),
    ],
)
def test_what_does_not_fit_the_method_is_refused_before_training(fields, field, value, make_trainer):
    rows = Dataset.from_dict({"prompt": [QUESTION] * 8, "level": [1] * 8})
    assert_refused([field, value], make_trainer, dataset=rows, **fields)


STRINGS = Dataset.from_dict({"prompt": ["1 + 1 = ?"] * 8})
WRITTEN = gym_tokenizer().apply_chat_template(QUESTION, tokenize=False, add_generation_prompt=True)
TEMPLATED_STRINGS = Dataset.from_dict({"prompt": [WRITTEN] * 8})
REQUESTS = {"length_control": "l1_exact", "lambda_lr": None, "length_control_kwargs": {"budget_range": None}}


@pytest.mark.parametrize(
    ("dataset", "fields", "named"),
    [
        (None, {}, None),
        (STRINGS, {}, ["prompts", "chat_template"]),
        (STRINGS.map(as_conversation), {}, None),
        (TEMPLATED_STRINGS, {}, None),
        (TEMPLATED_STRINGS, REQUESTS, ["prompts", "Think for"]),
        (None, {"max_completion_length": 2047}, None),  # of a context of 2,048 tokens
        (None, {"max_completion_length": 2048}, ["max_completion_length", "2048"]),
    ],
)
def test_prompts_that_the_model_would_get_wrong_are_warned_of(dataset, fields, named, make_trainer):
    lines = warnings_of(lambda: make_trainer(dataset=dataset, **fields))
    assert len(lines) == (0 if named is None else 1)
    for line in lines:
        assert all(part in line for part in named)


@pytest.mark.parametrize(
    ("wrong", "num_warnings"),
    [
        (-1.0, 0),
        (0.0, 1),
    ],
)
def test_a_first_batch_of_rewards_on_another_scale_is_warned_of(wrong, num_warnings, make_args):
    rollouts = toy_rollouts([wrong, 1.0], [24, 24])
    lines = warnings_of(check_first_batch, rollouts, Leash(), make_args(), None)
    assert len(lines) == num_warnings
    assert all("task reward" in line and "0" in line for line in lines)
