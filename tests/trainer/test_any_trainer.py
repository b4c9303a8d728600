"""Length control in TRL's own trainers: lambda is the paper's, whatever the batching, and survives a restart."""

import re
from functools import partial

import pytest
import stock_run
import torch
from conftest import ROOT, log_rows, parity_reward
from processes import in_two_processes
from stock_run import Calls, States, lambdas_by_hand, stock_trainer
from transformers import AutoModelForCausalLM, TrainerCallback
from trl import GRPOConfig, RLOOConfig
from trl.experimental import async_grpo
from trl.experimental.async_grpo import AsyncGRPOConfig

from leash_trl import LengthControlCallback, LengthControlledReward
from leash_trl.length_control.advantages import AdvantageRule
from leash_trl.length_control.leash import Leash
from leash_trl.length_control.methods import METHODS


BATCHINGS = {
    "one batch an update": {},
    "evaluation between": {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 8},
    "accumulation": {"gradient_accumulation_steps": 2},
    "several windows an update": {"gradient_accumulation_steps": 4, "steps_per_generation": 2},
    "several updates a window": {"steps_per_generation": 3},
    "two iterations": {"num_iterations": 2},
}
NEED_THE_GROUP = {"laser_d", "laser_de", "kimi", "efficient", "alp", "mai", "grlc", "shorter_better", "toggle"}
AS_ADVANTAGES = {"leash_predictive", "gfpo", "prime_rl", "gr3", "drpo", "dler"}
ONLY_THE_SUBCLASS = {"grpo_lead", "lead", "dot"}
CONFIGS = {
    "GRPO": (GRPOConfig, {}),
    "GRPO, scale_rewards none": (GRPOConfig, {"scale_rewards": "none"}),
    "GRPO, objectives apart": (
        *(GRPOConfig, {"scale_rewards": "none", "multi_objective_aggregation": "normalize_then_sum"}),
    ),
    "RLOO": (RLOOConfig, {}),
    "RLOO, normalised": (RLOOConfig, {"normalize_advantages": True}),
    "asynchronous GRPO": (AsyncGRPOConfig, {}),
}
pytestmark = pytest.mark.filterwarnings("ignore:.*which a reward function cannot:UserWarning")


@pytest.fixture(scope="module")
def tiny_model(tiny_model_path):
    return AutoModelForCausalLM.from_pretrained(tiny_model_path)


@pytest.mark.parametrize("kind", ["GRPO", "RLOO"])
@pytest.mark.parametrize("batching", BATCHINGS)
def test_lambda_is_that_of_the_paper(kind, batching, tiny_model_path, tmp_path):
    calls, states = Calls(), States()
    trainer = stock_trainer(
        kind, tiny_model_path, tmp_path, callbacks=[states], reward_func=calls, **BATCHINGS[batching]
    )
    trainer.train()
    by_hand = lambdas_by_hand(calls.lengths, 5)
    assert states.lambdas == pytest.approx(by_hand, abs=1e-12)
    assert len(set(states.lambdas)) > 1
    assert ("eval" in {split for split, _, _ in calls.lengths}) == (batching == "evaluation between")
    rows = [row for row in trainer.state.log_history if "leash/lambda" in row]
    in_force = [[0.1, *by_hand][row["step"] - 1] for row in rows]
    assert [row["leash/lambda"] for row in rows] == pytest.approx(in_force, rel=1e-6)
    assert {row["leash/lag"] for row in rows} == {0}


@pytest.mark.parametrize("name", ["leash", "laser_d", "toggle", "hapo", "leash_predictive"])
def test_the_log_is_that_of_our_own_trainer(name, make_trainer, tiny_model_path, tmp_path):
    """Without learning, both sample the same completions."""
    settings = {"learning_rate": 0.0, "max_steps": 3, "scale_rewards": "none"}
    stock = stock_trainer("GRPO", tiny_model_path, tmp_path, METHODS[name](), reward_func=parity_reward, **settings)
    stock.train()
    ours = make_trainer(length_control=name, target_length=6, max_completion_length=12, lambda_lr=None, **settings)
    ours.train()
    for theirs, row in zip(stock.state.log_history[:3], ours.state.log_history[:3], strict=True):
        expected = {key: value for key, value in row.items() if key.startswith("leash/")}
        del expected["leash/zero_signal_share"], expected["leash/generated_tokens"]
        assert {key: theirs[key] for key in expected} == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("kind", ["GRPO", "RLOO"])
@pytest.mark.parametrize("name", sorted(AS_ADVANTAGES))
def test_advantages_of_a_methods_own_arrive_in_the_trainer(kind, name, tiny_model_path, tmp_path):
    method, noted = METHODS[name](), []

    def reward(completion_ids, **kwargs):
        return [None, *parity_reward(completion_ids)[1:]]

    def noting(rollouts, observe=method.observe):
        noted.extend(method.score(rollouts, AdvantageRule()).advantages.tolist())
        observe(rollouts)

    fields = {
        "max_steps": 2,
        "num_generations": 8,
        "beta": 0.0,
        **({"scale_rewards": "none"} if kind == "GRPO" else {}),
    }
    trainer = stock_trainer(kind, tiny_model_path, tmp_path, method, reward_func=reward, **fields)
    method.observe = noting
    trainer.train()
    # of the last generation batch
    got = list(trainer._logs["advantages"])
    assert got == pytest.approx(noted[-len(got) :], abs=1e-6)
    assert max(map(abs, got)) > 0.01


def refusal(name, args, model, tokenizer) -> str | None:
    """Why a trainer with this configuration does not take a method, which is one line; `None` if it does."""
    method = METHODS[name](**({"profile_band": {"a": 100, "b": 200, "f": 0.5}} if name == "nemo_rl" else {}))
    try:
        callback = LengthControlCallback(LengthControlledReward(parity_reward, method, target_length=1000))
        callback.on_init_end(args, None, None, model=model, processing_class=tokenizer)
    except ValueError as error:
        text = str(error)
    else:
        return None
    assert "\n" not in text
    assert name in text
    return text


def quiet(folder) -> dict:
    return {"output_dir": str(folder), "use_cpu": True, "bf16": False, "max_completion_length": 32768}


@pytest.mark.parametrize("config", CONFIGS)
def test_which_methods_go_where(config, tiny_model, tokenizer, tmp_path):
    config_class, settings = CONFIGS[config]
    args = config_class(**quiet(tmp_path), **settings)
    accepted = {name for name in METHODS if refusal(name, args, tiny_model, tokenizer) is None}
    everywhere = METHODS.keys() - AS_ADVANTAGES - ONLY_THE_SUBCLASS
    assert len(everywhere) == 22
    takes_advantages = config in ("GRPO, scale_rewards none", "RLOO")
    assert accepted == (everywhere | AS_ADVANTAGES if takes_advantages else everywhere)


@pytest.mark.parametrize("config_class", [GRPOConfig, RLOOConfig])
def test_split_groups_are_refused_where_a_method_needs_the_group(
    config_class, tiny_model, tokenizer, tmp_path, monkeypatch
):
    monkeypatch.setattr(config_class, "world_size", 2)
    args = config_class(**quiet(tmp_path), per_device_train_batch_size=4, steps_per_generation=3, num_generations=8)
    said = {name: refusal(name, args, tiny_model, tokenizer) for name in METHODS.keys() - ONLY_THE_SUBCLASS}
    assert {name for name, text in said.items() if text is not None} - AS_ADVANTAGES == NEED_THE_GROUP
    assert all("num_generations=8" in said[name] for name in NEED_THE_GROUP)


def test_a_method_of_the_whole_batch_is_refused_on_two_processes(tiny_model, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(RLOOConfig, "world_size", 2)
    args = RLOOConfig(**quiet(tmp_path))
    refused = {name for name in AS_ADVANTAGES if refusal(name, args, tiny_model, tokenizer) is not None}
    assert refused == {"dler"}


def test_two_processes_move_lambda_by_the_lengths_of_both(tiny_model_path, tmp_path):
    """LEASH with groups that two processes share."""
    first, second = in_two_processes(partial(stock_run.seen_by_one_of_two, tiny_model_path, tmp_path), tmp_path)
    assert first["world_size"] == second["world_size"] == 2
    assert first["lambdas"] == second["lambdas"]
    assert first["calls"] != second["calls"]
    by_hand = lambdas_by_hand([*first["calls"], *second["calls"]], 5)
    assert first["lambdas"] == pytest.approx(by_hand, abs=1e-12)


@pytest.mark.parametrize("kind", ["GRPO", "RLOO"])
@pytest.mark.parametrize("name", ["leash", "hapo"])
def test_a_resumed_run_repeats_the_uninterrupted_one_to_the_last_bit(kind, name, tiny_model_path, tmp_path):
    def run(folder, **settings):
        states = States()
        method = Leash(lambda_init=0.1, lambda_lr=0.05) if name == "leash" else METHODS[name]()
        trainer = stock_trainer(
            *(kind, tiny_model_path, tmp_path / folder, method, [states], parity_reward),
            save_strategy="steps",
            save_steps=2,
            max_steps=4,
            **settings,
        )
        return trainer, states

    whole, states = run("whole")
    whole.train()
    resumed, later_states = run("resumed")
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert later_states.entries == states.entries[2:]
    assert [entry["version"] for entry in states.entries] == [1, 2, 3, 4]
    rows, later = (
        [{key: value for key, value in row.items() if "time" not in key} for row in log_rows(trainer)]
        for trainer in (whole, resumed)
    )
    assert rows == later
    for ours, theirs in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_skipped_update_leaves_its_batch_to_the_next(tiny_model_path, tmp_path):
    class Overflow(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, model, **kwargs):
            if state.global_step == 1:
                next(p for p in model.parameters() if p.grad is not None).grad.fill_(torch.inf)

    calls, states = Calls(), States()
    trainer = stock_trainer("GRPO", tiny_model_path, tmp_path, callbacks=[Overflow(), states], reward_func=calls)
    trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    trainer.train()
    assert states.lambdas[1] == states.lambdas[0]
    waiting = [(split, max(step, 2) if step == 1 else step, lengths) for split, step, lengths in calls.lengths]
    assert states.lambdas == pytest.approx(lambdas_by_hand(waiting, 5), abs=1e-12)


def test_a_callback_added_later_does_as_well(tiny_model_path, tmp_path):
    trainer = stock_trainer("GRPO", tiny_model_path, tmp_path, reward_func=parity_reward, max_steps=1)
    callback = trainer.pop_callback(LengthControlCallback)
    late = LengthControlCallback(LengthControlledReward(parity_reward, "leash", target_length=6))
    trainer.reward_funcs = [late.reward]
    trainer.add_callback(late)
    trainer.train()
    assert late.method.lam != 0.1
    assert callback.method.lam == 0.1


def test_the_page_runs_as_printed_and_its_table_is_what_is_refused(tmp_path, monkeypatch):
    """A stand-in takes the place of the asynchronous trainer, which would ask for a server."""
    page = (ROOT / "recipes" / "any_trainer.md").read_text(encoding="utf-8")
    made, names = {}, {"problems": []}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(async_grpo, "AsyncGRPOConfig", partial(AsyncGRPOConfig, use_cpu=True, bf16=False))
    monkeypatch.setattr(async_grpo, "AsyncGRPOTrainer", lambda *args, **kwargs: made.update(kwargs))
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(block, "any_trainer.md", "exec"), names)
        if not made:
            assert [row["leash/version"] for row in log_rows(names["trainer"])] == [0, 1, 2]
            assert names["reward"].method.lam != names["reward"].method.lambda_init
    assert {path.name for path in (tmp_path / "runs" / "any_trainer").iterdir()} == {"grpo", "rloo"}
    assert made["reward_funcs"] is names["reward"]
    table = page.partition("## Which methods go where")[2].partition("\n## ")[0]
    cells = [row.split("|")[1].partition(";")[0] for row in table.splitlines() if row.startswith("| ")][1:]
    everywhere = METHODS.keys() - NEED_THE_GROUP - AS_ADVANTAGES - ONLY_THE_SUBCLASS
    expected = [everywhere, NEED_THE_GROUP, AS_ADVANTAGES, ONLY_THE_SUBCLASS]
    assert [{*re.findall(r"[a-z]\w+", cell)} for cell in cells] == expected
