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
from leash_trl.length_control.rollouts import joined
from leash_trl.trainer.callbacks import run_settings
from leash_trl.trainer.length_controlled_reward import RunSettings
from leash_trl.trainer.shared_state import _remove


END, PAD = 2, 0
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
    return RunSettings("GRPOConfig", size, size_eval, limit, frozenset([END]), PAD, advantage)


def observed(reward):
    """What the callback would show the method."""
    return joined([scored.rollouts for scored in reward.pop_scored()])


def make(method="leash", functions=plus_one, target=10, limit=100.0, size=2, advantage=None, weights=None, **knobs):
    method = METHODS[method](**knobs) if isinstance(method, str) else method
    reward = LengthControlledReward(functions, method, target, weights)
    reward.begin(settings(size, 1, limit, advantage), 1)
    return reward


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


HIGH, LOW = partial(constant, value=0.5), partial(constant, value=-1.0)  # of one name


@pytest.mark.parametrize(("chosen", "share"), [(HIGH, 1.0), (LOW, 2 / 3), ("constant", 1.0)])
def test_one_of_several_functions_says_what_is_correct(chosen, share):
    """Where it has no reward, it is not known what is correct, whatever the others say."""
    reward = LengthControlledReward([constant, HIGH, LOW], "leash", 10, correctness_func=chosen)
    reward.begin(settings(), 1)
    call(reward, 3, 3, 3, 3, log_metric=(logged := {}).__setitem__)
    assert logged["leash/accuracy"] == pytest.approx(share)


def test_with_several_functions_none_of_which_decides_accuracy_is_neither_logged_nor_guessed():
    with pytest.warns(UserWarning, match="correctness_func") as caught:
        reward = make(functions=[plus_one, constant])
    assert "\n" not in str(caught[0].message)
    call(reward, 3, 3, log_metric=(logged := {}).__setitem__)
    assert "leash/mean_length" in logged
    assert "leash/accuracy" not in logged
    for method, given in (("leash", "other"), ("alp", None)):
        with pytest.raises(ValueError, match=f"correctness_func is {given!r}.*plus_one, constant"):
            LengthControlledReward([plus_one, constant], method, 10, correctness_func=given)


@pytest.mark.filterwarnings("ignore:correctness_func:UserWarning")
def test_async_functions_are_awaited_together_and_always_in_the_same_loop():
    loops, asked = [], []

    async def first(completions, **kwargs):
        loops.append(asyncio.get_running_loop())
        asked.append(asyncio.Event())
        await asked[-1].wait()
        return [0.5] * len(completions)

    class Second:
        async def __call__(self, completions, **kwargs):
            asked[-1].set()
            return [0.25] * len(completions)

    reward = make("none", [first, plus_one, partial(Second())])

    async def inside_a_loop():
        return call(reward, 3, 3)

    assert call(reward, 3, 3) == asyncio.run(inside_a_loop()) == [1.75, 1.75]
    assert len(loops) == 2
    assert loops[0] is loops[1]


def test_what_the_trainer_gives_reaches_the_functions():
    seen, metrics, table = {}, {}, {}

    def reward_func(prompts, completions, completion_ids, **kwargs):
        seen.update(kwargs)
        return [1.0] * len(prompts)

    columns = {"solution": ["1", "2"], "environments": ["a", "b"], "trainer_state": TrainerState()}
    columns |= {"log_metric": metrics.__setitem__, "log_extra": table.__setitem__}
    call(make(functions=reward_func), 3, 12, **columns)
    assert columns == seen
    assert {"leash/lambda": 0.1, "leash/mean_length": 7.5, "leash/version": 0}.items() <= metrics.items()
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


VARIANTS = [
    *((name, {}) for name in sorted(METHODS.keys() - {"nemo_rl"})),
    ("gfpo", {"metric": "token_efficiency"}),
    ("leash_predictive", {"multiplier_per": "level"}),
]


@pytest.mark.parametrize(("name", "knobs"), VARIANTS, ids=str)
def test_a_method_says_of_its_advantages_what_rollouts_say(name, knobs, make_rollouts):
    """Whether the mean over a prompt is 0, and whether a prompt alone has the same ones."""
    method, generator = METHODS[name](**knobs), torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 30000, (32,), generator=generator).tolist()
    rewards = [math.nan if i % 13 == 5 else 1.0 if lengths[i] % 3 else -1.0 for i in range(32)]
    rollouts = make_rollouts(
        *(rewards, lengths, 15000.0),
        **{"num_generations": 8, "limit": 32768, "truncated": [length > 25000 for length in lengths]},
        columns={"level": [i // 8 for i in range(32)]},
    )
    score = method.score(rollouts, AdvantageRule())
    groups = [method.score(joined([rollouts], rows), AdvantageRule()) for rows in torch.arange(32).view(4, 8)]
    alone = joined(groups)
    is_centered = score.advantages.view(4, 8).mean(dim=1).abs().max().item() < 1e-9
    is_of_group = torch.allclose(score.advantages, alone.advantages, rtol=0, atol=1e-12)
    # what an asynchronous trainer scores, group by group, is what a synchronous one scores at once
    assert torch.allclose(score.shaped, alone.shaped, rtol=0, atol=1e-12, equal_nan=True)
    kinds = {(True, True): "group", (True, False): "batch"}
    if method.own_advantages:
        assert method.own_advantages == kinds.get((is_centered, is_of_group), True)
    else:
        assert is_centered
        assert is_of_group


def test_targets_and_weights_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="target_length is 100"):
        LengthControlledReward(plus_one, "leash", target_length=100).begin(settings(limit=100), 1)
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
    with pytest.raises(ValueError, match=named) as refused:
        LengthControlledReward(**{"reward_funcs": plus_one, "method": "leash", "target_length": 10, **fields})
    assert "\n" not in str(refused.value)


def test_a_tuple_of_functions_is_several_functions():
    with pytest.warns(UserWarning, match="correctness_func"):
        assert call(make("none", (plus_one, plus_one)), 3, 3) == [2.0, 2.0]


@pytest.mark.parametrize("method", ["leash", "none"])
@pytest.mark.parametrize("target", ["16", True, [16], math.nan])
def test_a_target_that_is_no_number_is_refused_before_training(method, target):
    with pytest.raises(ValueError, match=r"target_length is .*tokens") as refused:
        LengthControlledReward(plus_one, method, target).begin(settings(), 1)
    assert "\n" not in str(refused.value)
    assert repr(target) in str(refused.value)


def test_a_call_with_parts_of_groups_is_refused_where_the_group_counts():
    """Three completions of one prompt and one of the next: as in an evaluation with an odd batch size."""
    reward = make("efficient", size=2, target=None)
    reward.settings = settings()
    prompts = ["a", "a", "a", "b"]
    with pytest.raises(ValueError, match="num_generations=2"):
        call(reward, 3, 4, 5, 6, prompts=prompts)
    assert len(call(make(), 3, 4, 5, prompts=prompts[1:])) == 3


@pytest.mark.parametrize("name", ["l1_exact", "thinkprune", "dler"])
def test_what_a_reward_cannot_do_of_a_method_is_said(name):
    reward = LengthControlledReward(plus_one, name, target_length=10)
    with pytest.warns(UserWarning, match=name):
        reward.begin(settings(limit=32768.0, advantage="centered"), 1)


def test_a_copy_follows_its_owner_whichever_was_first():
    reward = LengthControlledReward(plus_one, Leash(lambda_init=0.5), target_length=10)
    copy = pickle.loads(pickle.dumps(reward))  # before the owner knows the run
    with pytest.raises(ValueError, match="LengthControlCallback"):
        call(copy, 15, 15)
    reward.begin(settings(), 1)
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


def test_groups_of_a_worker_move_lambda_once_an_update_by_the_newest(tmp_path, tokenizer):
    """Bursts of 3, 0, 1 and 5 groups, where an update trains on two."""
    sizes = {"num_generations": 2, "per_device_train_batch_size": 4}
    args = AsyncGRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, **sizes)
    reward = LengthControlledReward(plus_one, Leash(lambda_init=0.5, lambda_lr=0.1), target_length=10)
    callback, copy, state = LengthControlCallback(reward), pickle.loads(pickle.dumps(reward)), TrainerState()
    run = {"model": MODEL, "processing_class": tokenizer, "optimizer": TAKEN}
    callback.on_train_begin(args, state, None, **run)
    lam = 0.5
    for new, newest in [([11, 12, 13], [11, 12, 13]), ([], [12, 13]), ([16], [13, 16]), ([4] * 5, [4] * 5)]:
        for length in new:
            assert call(copy, length, length) == pytest.approx([1 - lam * max(0, length / 10 - 1)] * 2, abs=1e-12)
        callback.on_step_end(args, state, None, **run)
        lam += 0.1 * (sum(newest) / len(newest) / 10 - 1)
        entry = state.stateful_callbacks["LengthControl"]
        assert lambda_in(entry) == pytest.approx(lam, abs=1e-12)
        logs = {"loss": 0.0}
        state.log_history.append({"loss": 0.0})
        callback.on_log(args, state, None, logs=logs)
        assert logs["leash/mean_length"] == sum(newest) / len(newest)
        assert state.log_history[-1] == logs
    assert entry["version"] == 4
    assert [row["leash/lag"] for row in state.log_history] == [0, 1, 1, 0]


@pytest.mark.parametrize("config", [GRPOConfig, RLOOConfig])
def test_a_limit_in_generation_kwargs_wins_as_in_trl(config, tmp_path, tokenizer):
    limits = {"max_completion_length": 24, "generation_kwargs": {"max_new_tokens": 12}}
    args = config(str(tmp_path), bf16=False, use_cpu=True, **limits)
    reward = LengthControlledReward(plus_one, Leash(), 10)
    assert run_settings(args, reward, MODEL, tokenizer).max_completion_length == 12


def test_thinking_alone_counts_whether_the_completion_or_the_prompt_opens_it(tmp_path, tokenizer):
    reward = LengthControlledReward(plus_one, Leash(lambda_init=0.5), target_length=4, length_of="thinking")
    tokenizer = deepcopy(tokenizer)
    args = GRPOConfig(str(tmp_path), bf16=False, use_cpu=True, num_generations=2, generation_batch_size=8)
    start, end, seven = (tokenizer.encode(text)[0] for text in ("<think>", "</think>", "7"))
    ids = [[start, seven, seven, seven, seven, end, seven], [seven, seven, END]]
    message = [{"role": "user", "content": "?"}]
    given = {"completions": ["", ""], "completion_ids": ids}
    template = "{{ messages[0].content }}<|assistant|>"
    for opening, paid, lengths in (("", 0.25, [6, 0]), ("<think>\n", 0.25, [6, 3])):
        tokenizer.chat_template = template + opening
        reward.begin(run_settings(args, reward, MODEL, tokenizer), 1)
        for prompt in (message, "?<|assistant|>" + opening):
            with contextlib.nullcontext() if all(lengths) else pytest.warns(UserWarning, match="length_of"):
                assert reward(prompts=[prompt] * 2, **given) == [1 - paid, 1.0]
            (scored,) = reward.pop_scored()
            assert scored.rollouts.lengths.tolist() == lengths
            assert scored.rollouts.completion_lengths.tolist() == [7, 3]
