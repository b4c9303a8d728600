"""What reward functions may return, and the one message about what they may not."""

import numpy as np
import pytest
import torch
from conftest import parity_reward
from transformers import LlamaConfig, LlamaForSequenceClassification

from leash_trl.trainer.checked_rewards import RewardError, checked


FORMS = {
    "integers": lambda values: [int(value) for value in values],
    "signs": lambda values: [value > 0 for value in values],
    "tuple": tuple,
    "generator": iter,
    "array": np.array,
    "tensor": torch.tensor,
    "whole_tensor": lambda values: torch.tensor(values).long(),
    "numpy_scalars": lambda values: [np.float32(value) for value in values],
    "numpy_signs": lambda values: list(np.array(values) > 0),
    "torch_scalars": lambda values: [torch.tensor(value) for value in values],
    "with_gradient": lambda values: torch.tensor(values, requires_grad=True),
    "some_none": lambda values: [None if value < 0 else value for value in values],
    "all_nan": lambda values: [float("nan")] * len(values),
}


def in_form(name):
    def reward(completion_ids, **kwargs):
        return FORMS[name](parity_reward(completion_ids))

    reward.__name__ = name
    return reward


class AsyncReward:
    """An instance whose call is async."""

    __name__ = "async_instance"

    async def __call__(self, completion_ids, **kwargs):
        return parity_reward(completion_ids)


async def async_reward(completion_ids, **kwargs):
    return np.array(parity_reward(completion_ids))


def test_what_trl_takes_trains(make_trainer, tokenizer, tmp_path):
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_labels=1,
        pad_token_id=tokenizer.pad_token_id,
    )
    LlamaForSequenceClassification(config).save_pretrained(tmp_path / "reward-model")
    tokenizer.save_pretrained(tmp_path / "reward-model")
    funcs = [parity_reward, *(in_form(name) for name in FORMS), AsyncReward(), async_reward]
    trainer = make_trainer([*funcs, str(tmp_path / "reward-model")], max_steps=1)
    seen = []
    inner = trainer._calculate_rewards
    trainer._calculate_rewards = lambda *args: seen.append(inner(*args)) or seen[-1]
    trainer.train()
    rewards = dict(zip(trainer.reward_func_names, seen[0].T, strict=True))
    expected = rewards.pop("parity_reward")
    assert rewards.pop("reward-model").isfinite().all()
    assert rewards.pop("all_nan").isnan().all()
    for name in ("signs", "numpy_signs"):
        assert rewards.pop(name).equal((expected > 0).float())
    assert rewards.pop("some_none").nan_to_num(-1).equal(expected)
    for values in rewards.values():
        assert values.equal(expected)


@pytest.mark.parametrize(
    "returned",
    [
        None,
        1.0,
        torch.tensor(1.0),
        "12345678",
        ["1.0"] * 8,
        [[1.0]] * 8,
        torch.ones(8, 1),
        dict.fromkeys(range(8), 1.0),
        set(range(8)),
        [1.0],
        [1.0] * 9,
        [1j] * 8,
        [10**400] * 8,
        [float("inf"), *[1.0] * 7],
    ],
    ids=lambda returned: repr(returned)[:20],
)
def test_what_is_no_reward_a_completion_is_refused_by_name(returned):
    with pytest.raises(RewardError, match=r"reward function 'mine' returned .* a list of 8 finite numbers"):
        checked(lambda **kwargs: returned, "mine")(prompts=["?"] * 8)


def test_what_a_reward_function_raises_itself_passes():
    def generator(**kwargs):
        yield int("seven")

    with pytest.raises(ValueError, match="seven") as caught:
        checked(generator, "mine")(prompts=["?"])
    assert not isinstance(caught.value, RewardError)


async def async_keys(completions, **kwargs):
    return {completion[0]["content"]: 1.0 for completion in completions}


def test_training_stops_at_such_rewards(make_trainer):
    trainer = make_trainer(async_keys, max_completion_length=4, target_length=2)
    with pytest.raises(RewardError, match=r"reward function 'async_keys' returned \{"):
        trainer.train()
    assert trainer.reward_funcs == [async_keys]


def test_leash_train_says_it_in_one_line(tmp_path, monkeypatch, capsys):
    from leash_trl.cli.main import main

    (tmp_path / "my_short_reward.py").write_text("def short(completions, **kwargs):\n    return [1.0]\n")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "data.jsonl").write_text('{"prompt": "1 + 1 = ?", "solution": "2"}\n' * 8)
    words = ["train", "--model_name_or_path", "gym", "--dataset_name", str(tmp_path / "data.jsonl")]
    words += ["--use_cpu", "true", "--bf16", "false"]
    words += ["--target_length", "4", "--max_completion_length", "8", "--gradient_checkpointing", "false"]
    words += ["--report_to", "none", "--disable_tqdm", "true", "--max_steps", "1", "--output_dir", str(tmp_path / "o")]
    assert main([*words, "--reward_funcs", "my_short_reward.short"]) != 0
    said = [line for line in capsys.readouterr().err.splitlines() if "short" in line]
    assert len(said) == 1
    assert said[0].startswith("leash")


def test_a_reward_too_large_for_float32_is_refused(make_trainer):
    trainer = make_trainer(lambda completion_ids, **kwargs: [1e39] * len(completion_ids), max_steps=1)
    with pytest.raises(RewardError, match="infinite in float32"):
        trainer.train()
