"""The reward function by itself: what it gives, what it passes on, and how its copies in other processes follow."""

import asyncio
import contextlib
import gc
import math
import os
import pickle
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from stock_run import TAKEN, lambda_in
from transformers import TrainerState
from trl import GRPOConfig, RLOOConfig
from trl.experimental.async_grpo import AsyncGRPOConfig

from leash_trl import LengthControlCallback, LengthControlledReward
from leash_trl.length_control.advantages import AdvantageRule
from leash_trl.length_control.leash import Leash
from leash_trl.length_control.methods import METHODS
from leash_trl.length_control.rollouts import concatenated, selected
from leash_trl.trainer.callbacks import run_settings
from leash_trl.trainer.length_controlled_reward import RunSettings
from leash_trl.trainer.shared_state import _remove


END = 2
PAD = 0
MODEL = SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=END))
pytestmark = pytest.mark.filterwarnings("ignore:.*which a reward function cannot:UserWarning")


def plus_one(completions, **kwargs) -> list[float]:
    return [1.0] * len(completions)


def call(reward, *lengths: int, prompts=None, **columns):
    """Scores completions of these lengths that end."""
    ids = [[7] * (length - 1) + [END] for length in lengths]
    prompts = prompts or ["question"] * len(lengths)
    return reward(prompts=prompts, completions=[""] * len(lengths), completion_ids=ids, **columns)


def settings(size=2, size_eval=2, limit=100.0, advantage=None) -> RunSettings:
    """Settings of a run with groups of this size, in training and in evaluation."""
    return RunSettings(
        config="GRPOConfig",
        num_generations=size,
        num_generations_eval=size_eval,
        max_completion_length=limit,
        end_ids=frozenset([END]),
        pad_id=PAD,
        advantage=advantage,
    )


def observed(reward):
    """What the callback would show the method."""
    return concatenated([scored.rollouts for scored in reward.pop_scored()])


def make(method="leash", functions=plus_one, target=10, weights=None, **hyperparameters):
    """A reward whose run has begun, in one process and with groups of two."""
    reward = LengthControlledReward(functions, METHODS[method](**hyperparameters), target, weights)
    reward.begin(settings(size_eval=1), num_processes=1)
    return reward


def metrics_of_call(reward, *lengths: int, **columns) -> dict[str, float]:
    """What a call logs."""
    metrics = {}
    call(reward, *lengths, log_metric=metrics.__setitem__, **columns)
    return metrics


def test_the_reward_is_the_methods_by_hand():
    reward = make(lambda_init=0.5)
    # a target of 10: 15 tokens are 0.5 over, 9 are within
    assert call(reward, 15, 9) == pytest.approx([1 - 0.5 * 0.5, 1.0], abs=1e-12)
    # the row's own target of 5: 2 and 0.8 over, and clipped at -1
    assert call(reward, 15, 9, target_length=[5, 5]) == pytest.approx([0.0, 1 - 0.5 * 0.8], abs=1e-12)


@pytest.mark.filterwarnings("ignore:correctness_func:UserWarning")
def test_functions_are_weighed_and_may_pass():
    def first(completions, **kwargs):
        return [0.5, None]

    logged = {}
    reward = make("none", [first, plus_one], weights=[1.0, 0.25])
    assert call(reward, 3, 3, log_metric=logged.__setitem__) == [0.75, 0.25]
    assert (logged["rewards/first"], logged["rewards/plus_one"]) == (0.5, 1.0)
    reward = make(functions=[first])
    assert call(reward, 3, 3) == [0.5, None]
    assert observed(reward).lengths.tolist() == [3, 3]  # lambda counts the length of what cannot be scored


def constant(completions, value=0.5, **kwargs):
    return [value, None, *[1.0] * (len(completions) - 2)]


# of one name
HIGH = partial(constant, value=0.5)
LOW = partial(constant, value=-1.0)


@pytest.mark.parametrize(("chosen", "share"), [(HIGH, 1.0), (LOW, 2 / 3), ("constant", 1.0)])
def test_one_of_several_functions_says_what_is_correct(chosen, share):
    """Where it has no reward, it is not known what is correct, whatever the others say."""
    reward = LengthControlledReward([constant, HIGH, LOW], "leash", 10, correctness_func=chosen)
    reward.begin(settings(), num_processes=1)
    assert metrics_of_call(reward, 3, 3, 3, 3)["leash/accuracy"] == pytest.approx(share)


def test_with_several_functions_none_of_which_decides_accuracy_is_neither_logged_nor_guessed():
    with pytest.warns(UserWarning, match="correctness_func") as caught:
        reward = make(functions=[plus_one, constant])
    assert "\n" not in str(caught[0].message)
    metrics = metrics_of_call(reward, 3, 3)
    assert "leash/mean_length" in metrics
    assert "leash/accuracy" not in metrics


@pytest.mark.parametrize(
    ("method", "chosen"),
    [
        ("leash", "other"),  # which is none of them
        ("alp", None),  # which needs to know what is correct
    ],
)
def test_with_several_functions_a_method_that_must_know_asks_for_one_of_them(method, chosen):
    with pytest.raises(ValueError, match=f"correctness_func is {chosen!r}.*plus_one, constant"):
        LengthControlledReward([plus_one, constant], method, 10, correctness_func=chosen)


@pytest.mark.filterwarnings("ignore:correctness_func:UserWarning")
def test_async_functions_are_awaited_together_and_always_in_the_same_loop():
    loops = []
    events = []  # one for each call, for which the first function waits until the second sets it

    async def first(completions, **kwargs):
        loops.append(asyncio.get_running_loop())
        events.append(asyncio.Event())
        await events[-1].wait()
        return [0.5] * len(completions)

    class Second:
        async def __call__(self, completions, **kwargs):
            events[-1].set()
            return [0.25] * len(completions)

    reward = make("none", [first, plus_one, partial(Second())])

    async def inside_a_loop():
        return call(reward, 3, 3)

    assert call(reward, 3, 3) == asyncio.run(inside_a_loop()) == [1.75, 1.75]
    assert len(loops) == 2
    assert loops[0] is loops[1]


def test_what_the_trainer_gives_reaches_the_functions():
    received = {}

    def reward_func(prompts, completions, completion_ids, **kwargs):
        received.update(kwargs)
        return [1.0] * len(prompts)

    columns = {
        "solution": ["1", "2"],
        "environments": ["a", "b"],
        "trainer_state": TrainerState(),
        "log_metric": {}.__setitem__,
        "log_extra": {}.__setitem__,
    }
    call(make(functions=reward_func), 3, 12, **columns)
    assert received == columns


def test_metrics_and_columns_of_the_completions_table_are_logged():
    table = {}
    # the second completion is 0.2 over its target of 10
    metrics = metrics_of_call(make(), 3, 12, log_extra=table.__setitem__)
    assert metrics["leash/lambda"] == 0.1
    assert metrics["leash/mean_length"] == 7.5
    assert metrics["leash/version"] == 0
    assert table["length"] == [3, 12]
    assert table["penalty"] == pytest.approx([0.0, 0.1 * 0.2])


@pytest.mark.parametrize(
    ("ids", "length", "pad"),
    [
        ([7, 7, END], 3, PAD),
        ([7, 7, END, PAD, PAD], 3, PAD),
        ([7, 7, END, END, END], 3, END),
        ([7, 7, PAD, PAD], 4, PAD),  # cut off: the model itself wrote what also is padding
        ([7, END, 7, END, PAD], 4, PAD),  # two turns
    ],
)
def test_padding_behind_the_end_is_no_length(ids, length, pad):
    reward = make()
    reward.settings = replace(reward.settings, pad_id=pad)
    reward(prompts=["?"], completions=[""], completion_ids=[ids])
    assert observed(reward).lengths.tolist() == [length]


VARIANTS = [(name, {}) for name in sorted(METHODS.keys() - {"nemo_rl"})]
VARIANTS.append(("gfpo", {"metric": "token_efficiency"}))
VARIANTS.append(("leash_predictive", {"multiplier_per": "level"}))


@pytest.fixture(scope="module")
def four_groups(make_rollouts):
    """Four groups of eight completions of any length; some cannot be scored, and the longest are truncated."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 30000, (32,), generator=generator).tolist()
    rewards = [1.0 if length % 3 else -1.0 for length in lengths]
    rewards[5::13] = [math.nan] * 3
    return make_rollouts(
        rewards,
        lengths,
        15000.0,
        num_generations=8,
        limit=32768,
        truncated=[length > 25000 for length in lengths],
        columns={"level": [row // 8 for row in range(32)]},
    )


@pytest.mark.parametrize(("name", "hyperparameters"), VARIANTS, ids=str)
def test_a_method_says_of_its_advantages_what_rollouts_say(name, hyperparameters, four_groups):
    """Whether the mean over a prompt is 0, and whether a prompt alone has the same ones."""
    method = METHODS[name](**hyperparameters)
    score = method.score(four_groups, AdvantageRule())
    rows_of_groups = torch.arange(32).view(4, 8)
    alone = concatenated([method.score(selected(four_groups, rows), AdvantageRule()) for rows in rows_of_groups])
    # what an asynchronous trainer scores, group by group, is what a synchronous one scores at once
    assert torch.allclose(score.shaped, alone.shaped, rtol=0, atol=1e-12, equal_nan=True)
    is_centered = score.advantages.view(4, 8).mean(dim=1).abs().max().item() < 1e-9
    is_of_group = torch.allclose(score.advantages, alone.advantages, rtol=0, atol=1e-12)
    if not method.own_advantages:
        assert is_centered
        assert is_of_group
    elif is_centered:
        assert method.own_advantages == ("group" if is_of_group else "batch")
    else:
        assert method.own_advantages is True


def test_a_target_at_the_generation_limit_is_refused():
    reward = LengthControlledReward(plus_one, "leash", target_length=100)
    with pytest.raises(ValueError, match="target_length is 100"):
        reward.begin(settings(limit=100), num_processes=1)


def test_weights_that_are_not_one_for_each_function_are_refused():
    with pytest.raises(ValueError, match="weights"):
        LengthControlledReward([plus_one, plus_one], "leash", target_length=10, weights=[1.0])


class Model(torch.nn.Module):
    def forward(self, **kwargs):
        return None


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"reward_funcs": "exact"}, "reward_funcs is 'exact'"),
        ({"reward_funcs": [plus_one, "owner/model"]}, "reward_funcs.*'owner/model'"),
        ({"reward_funcs": Model()}, "reward_funcs.*Model"),
        ({"reward_funcs": None}, "reward_funcs is None"),
        ({"reward_funcs": []}, r"reward_funcs is \[\]"),
        ({"method": Leash}, "method.*Leash"),
        ({"method": None}, "method.*None"),
    ],
)
def test_what_is_no_function_or_no_method_is_refused_as_the_reward_is_made(fields, named):
    arguments = {"reward_funcs": plus_one, "method": "leash", "target_length": 10, **fields}
    with pytest.raises(ValueError, match=named) as refused:
        LengthControlledReward(**arguments)
    assert "\n" not in str(refused.value)


def test_a_tuple_of_functions_is_several_functions():
    with pytest.warns(UserWarning, match="correctness_func"):
        assert call(make("none", (plus_one, plus_one)), 3, 3) == [2.0, 2.0]


@pytest.mark.parametrize("method", ["leash", "none"])
@pytest.mark.parametrize("target", ["16", True, [16], math.nan])
def test_a_target_that_is_no_number_is_refused_before_training(method, target):
    with pytest.raises(ValueError, match=r"target_length is .*tokens") as refused:
        LengthControlledReward(plus_one, method, target).begin(settings(), num_processes=1)
    assert "\n" not in str(refused.value)
    assert repr(target) in str(refused.value)


def test_a_call_with_parts_of_groups_is_refused_where_the_group_counts():
    """Three completions of one prompt and one of the next: as in an evaluation with an odd batch size."""
    reward = make("efficient", target=None)
    reward.settings = settings()
    with pytest.raises(ValueError, match="num_generations=2"):
        call(reward, 3, 4, 5, 6, prompts=["a", "a", "a", "b"])


def test_a_call_with_parts_of_groups_is_scored_where_the_group_does_not_count():
    assert len(call(make(), 3, 4, 5, prompts=["a", "a", "b"])) == 3


@pytest.mark.parametrize("name", ["l1_exact", "thinkprune", "dler"])
def test_what_a_reward_cannot_do_of_a_method_is_said(name):
    reward = LengthControlledReward(plus_one, name, target_length=10)
    with pytest.warns(UserWarning, match=name):
        reward.begin(settings(limit=32768.0, advantage="centered"), num_processes=1)


def test_a_copy_follows_its_owner_whichever_was_first():
    reward = LengthControlledReward(plus_one, Leash(lambda_init=0.5), target_length=10)
    copy = pickle.loads(pickle.dumps(reward))  # before the owner knows the run
    with pytest.raises(ValueError, match="LengthControlCallback"):
        call(copy, 15, 15)
    reward.begin(settings(), num_processes=1)
    assert call(copy, 15, 15) == [0.75, 0.75]
    reward.method.observe(observed(reward))
    reward.method.step()
    reward.publish(1)
    # 15 of 10 tokens: lambda rises by 0.005 * 0.5
    assert call(copy, 15, 15) == pytest.approx([1 - 0.5025 * 0.5] * 2)
    assert [scored.version for scored in reward.pop_scored()] == [1]
    assert reward.pop_scored() == []


def test_the_folder_goes_with_its_owner_and_not_with_a_fork_of_it():
    reward = make()
    folder = pickle.loads(pickle.dumps(reward))._shared.folder
    _remove(folder, os.getpid() + 1)
    assert folder.exists()
    del reward
    gc.collect()
    assert not folder.exists()


def test_a_write_that_is_killed_leaves_nothing_torn(monkeypatch):
    reward = make(lambda_init=0.5)
    copy = pickle.loads(pickle.dumps(reward))
    with monkeypatch.context() as killed:
        killed.setattr(Path, "write_bytes", lambda path, content: path.open("wb").write(content[:9]) / 0)
        for write in (lambda: reward.publish(1), lambda: call(copy, 15, 15)):
            with pytest.raises(ZeroDivisionError):
                write()
    assert reward.pop_scored() == []
    assert call(copy, 15, 15) == [0.75, 0.75]
    call(copy, 9, 9)
    assert [scored.rollouts.lengths.tolist() for scored in reward.pop_scored()] == [[15, 15], [9, 9]]


# lengths of the groups that a worker scores before an update, and of those by which lambda moves: all new ones, and at
# least two, since the update trains on two
BURSTS = [
    ([11, 12, 13], [11, 12, 13]),
    ([], [12, 13]),
    ([16], [13, 16]),
    ([4, 4, 4, 4, 4], [4, 4, 4, 4, 4]),
]


def test_groups_of_a_worker_move_lambda_once_an_update_by_the_newest(tmp_path, tokenizer):
    args = AsyncGRPOConfig(
        output_dir=str(tmp_path), use_cpu=True, bf16=False, num_generations=2, per_device_train_batch_size=4
    )
    reward = LengthControlledReward(plus_one, Leash(lambda_init=0.5, lambda_lr=0.1), target_length=10)
    callback = LengthControlCallback(reward)
    copy = pickle.loads(pickle.dumps(reward))
    state = TrainerState()
    run = {"model": MODEL, "processing_class": tokenizer, "optimizer": TAKEN}
    callback.on_train_begin(args, state, None, **run)
    lam = 0.5
    for new_lengths, newest_lengths in BURSTS:
        for length in new_lengths:
            excess = max(0, length / 10 - 1)
            assert call(copy, length, length) == pytest.approx([1 - lam * excess] * 2, abs=1e-12)
        callback.on_step_end(args, state, None, **run)
        mean_length = sum(newest_lengths) / len(newest_lengths)
        lam += 0.1 * (mean_length / 10 - 1)
        entry = state.stateful_callbacks["LengthControl"]
        assert lambda_in(entry) == pytest.approx(lam, abs=1e-12)
        logs = {"loss": 0.0}
        state.log_history.append({"loss": 0.0})
        callback.on_log(args, state, None, logs=logs)
        assert logs["leash/mean_length"] == mean_length
        assert state.log_history[-1] == logs
    assert entry["version"] == 4
    assert [row["leash/lag"] for row in state.log_history] == [0, 1, 1, 0]


@pytest.mark.parametrize("config", [GRPOConfig, RLOOConfig])
def test_a_limit_in_generation_kwargs_wins_as_in_trl(config, tmp_path, tokenizer):
    args = config(
        str(tmp_path),
        bf16=False,
        use_cpu=True,
        max_completion_length=24,
        generation_kwargs={"max_new_tokens": 12},
    )
    reward = LengthControlledReward(plus_one, Leash(), 10)
    assert run_settings(args, reward, MODEL, tokenizer).max_completion_length == 12


@pytest.fixture
def thinking_reward():
    """Lambda is 0.5, and the target 4 tokens of thinking."""
    return LengthControlledReward(plus_one, Leash(lambda_init=0.5), target_length=4, length_of="thinking")


@pytest.mark.parametrize("is_text", [True, False])
@pytest.mark.parametrize(
    ("opening", "lengths"),
    [
        ("", [6, 0]),  # the second completion does not think
        ("<think>\n", [6, 3]),  # the second completion never ends the thinking
    ],
)
def test_thinking_alone_counts_whether_the_completion_or_the_prompt_opens_it(
    opening, lengths, is_text, thinking_reward, tmp_path, tokenizer
):
    tokenizer = deepcopy(tokenizer)
    tokenizer.chat_template = "{{ messages[0].content }}<|assistant|>" + opening
    args = GRPOConfig(str(tmp_path), bf16=False, use_cpu=True, num_generations=2, generation_batch_size=8)
    thinking_reward.begin(run_settings(args, thinking_reward, MODEL, tokenizer), num_processes=1)
    start, end, seven = [tokenizer.encode(text)[0] for text in ("<think>", "</think>", "7")]
    completion_ids = [
        [start, seven, seven, seven, seven, end, seven],
        [seven, seven, END],
    ]
    prompt = "?<|assistant|>" + opening if is_text else [{"role": "user", "content": "?"}]
    all_think = contextlib.nullcontext() if all(lengths) else pytest.warns(UserWarning, match="length_of")
    with all_think:
        rewards = thinking_reward(prompts=[prompt] * 2, completions=["", ""], completion_ids=completion_ids)
    # 6 tokens are 0.5 over the target of 4
    assert rewards == [1 - 0.5 * 0.5, 1.0]
    rollouts = observed(thinking_reward)
    assert rollouts.lengths.tolist() == lengths
    assert rollouts.completion_lengths.tolist() == [7, 3]
