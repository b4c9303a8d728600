"""A resumed run repeats the uninterrupted one to the last bit, from the newest checkpoint that is whole."""

import importlib
import json
import math
import os
import shutil
import signal
import sys
from functools import partial
from pathlib import Path

import killable_run
import pytest
import torch
from conftest import log_rows, parity_reward
from processes import exit_code
from safetensors.torch import load_file
from stock_run import stock_trainer
from transformers import TrainerCallback

from leash_trl import LengthControlledReward
from leash_trl.length_control import LengthControl, state_field
from leash_trl.run_folder import TRAINER_STATE_FILE, complete_checkpoints, length_control_state, lock_folder
from leash_trl.trainer.finite import check_finite_gradients, check_finite_weights
from leash_trl.trainer.resume import folder_to_resume


SHORT = {"target_length": 6, "max_completion_length": 12, "save_strategy": "steps"}
METRICS = ("loss", "grad_norm", "reward", "kl", "entropy")


def log(trainer, first=1):
    """What each step logged, but the times that it took."""
    rows = []
    for row in log_rows(trainer):
        if row["step"] >= first:
            rows.append({key: value for key, value in row.items() if key in METRICS or key.startswith("leash/")})
    return rows


def assert_same_weights(trainer, other):
    assert all(map(torch.equal, trainer.model.parameters(), other.model.parameters()))


def assert_same(resumed, whole, first):
    assert log(resumed, first) == log(whole, first) != []
    assert resumed.length_control.state_dict() == whole.length_control.state_dict()
    assert resumed.state.stateful_callbacks["LengthControl"] == whole.state.stateful_callbacks["LengthControl"]
    assert_same_weights(resumed, whole)


def lines_with(caplog, *parts):
    """How many messages of one line hold all of these."""
    lines = [record.getMessage() for record in caplog.records if "\n" not in record.getMessage()]
    return sum(all(str(part) in line for part in parts) for line in lines)


@pytest.mark.parametrize(
    ("batching", "save_steps", "saved", "num_problems"),
    [
        pytest.param({"gradient_accumulation_steps": 2, "steps_per_generation": 2}, 2, [2, 4], 64, id="accumulation"),
        pytest.param(
            {"gradient_accumulation_steps": 2, "steps_per_generation": 4, "num_iterations": 2},
            3,
            [4, 7],  # 4 is the end of a window; 7 ends the run
            64,
            id="inside a window of iterations",
        ),
        # 8 problems of 4 completions, 8 a step: 4 steps an epoch
        pytest.param({}, 5, [5, 6], 8, id="later epoch"),
        pytest.param({}, 4, [4, 6], 8, id="end of an epoch"),
        pytest.param({"steps_per_generation": 4}, 6, [8, 10], 16, id="window of a later epoch"),
    ],
)
def test_a_resumed_run_repeats_the_uninterrupted_one(
    batching, save_steps, saved, num_problems, make_trainer, problems, tmp_path
):
    first, last = saved
    settings = SHORT | batching | {"save_steps": save_steps, "max_steps": last}
    data = problems.select(range(num_problems))
    whole = make_trainer(output_dir=str(tmp_path / "whole"), dataset=data, **settings)
    whole.train()
    assert [path.name for path in complete_checkpoints(tmp_path / "whole")] == [
        f"checkpoint-{last}",
        f"checkpoint-{first}",
    ]
    resumed = make_trainer(output_dir=str(tmp_path / "resumed"), dataset=data, **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{first}"))
    assert_same(resumed, whole, first + 1)
    assert len(log(whole)) == last


def test_the_interrupted_trainer_itself_can_be_resumed(make_trainer, tmp_path):
    """Stopped inside a window of two updates, between two rows of the log."""
    settings = SHORT | {"steps_per_generation": 2, "max_steps": 6, "save_steps": 2, "logging_steps": 2}
    whole = make_trainer(output_dir=str(tmp_path / "whole"), **settings)
    whole.train()
    interrupted = make_trainer(**settings)
    compute_loss = interrupted.compute_loss

    def interrupt(*args, **kwargs):
        if interrupted.state.global_step == 5:
            raise RuntimeError("stopped")
        return compute_loss(*args, **kwargs)

    interrupted.compute_loss = interrupt
    with pytest.raises(RuntimeError, match="stopped"):
        interrupted.train()
    interrupted.compute_loss = compute_loss
    shutil.rmtree(tmp_path / "run" / "checkpoint-4")
    interrupted.train(resume_from_checkpoint=True)
    assert_same(interrupted, whole, 3)
    assert {path.name[-1] for path in complete_checkpoints(tmp_path / "run")} == {"2", "4", "6"}


def test_a_run_that_was_extended_inside_a_window_saves_where_it_can_be_resumed(make_trainer, problems, tmp_path):
    """Two updates a window and eight an epoch: from update 3 on, windows begin at odd ones, also in the next epoch."""
    settings = SHORT | {"steps_per_generation": 2, "save_steps": 4, "dataset": problems.select(range(16))}
    make_trainer(output_dir=str(tmp_path / "short"), max_steps=3, **settings).train()
    extended = make_trainer(output_dir=str(tmp_path / "extended"), max_steps=12, **settings)
    extended.train(resume_from_checkpoint=str(tmp_path / "short" / "checkpoint-3"))
    resumed = make_trainer(output_dir=str(tmp_path / "resumed"), max_steps=12, **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "extended" / "checkpoint-9"))
    assert_same(resumed, extended, 10)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, tiny_model_path):
    """A run of six steps with checkpoints at 2, 4 and 6; its folder is to be copied before it is used."""
    trainer = killable_run.make_trainer(tiny_model_path, str(tmp_path_factory.mktemp("whole") / "run"), max_steps=6)
    trainer.train()
    return trainer


@pytest.fixture
def run(whole, tmp_path):
    """A copy of `whole` as it was after step 4."""
    return Path(shutil.copytree(whole.args.output_dir, tmp_path / "run", ignore=shutil.ignore_patterns("*-6")))


@pytest.fixture
def resumable(run, tiny_model_path):
    """Factory of trainers in that folder, with changes to their configuration."""

    def make(max_steps=6, **changes):
        return killable_run.make_trainer(tiny_model_path, str(run), max_steps=max_steps, **changes)

    return make


def test_a_checkpoint_killed_while_it_is_saved_over_another_is_not_whole(whole, run, resumable):
    """New weights beside the old optimizer."""
    work = resumable(learning_rate=1e-2, save_steps=4)
    work._save_optimizer_and_scheduler = lambda folder: os.kill(os.getpid(), signal.SIGKILL)
    assert exit_code(work.train) == -signal.SIGKILL
    name = "checkpoint-4/model.safetensors"
    assert (run / name).read_bytes() != Path(whole.args.output_dir, name).read_bytes()
    assert next(complete_checkpoints(run)).name == "checkpoint-2"


def test_a_torn_checkpoint_is_passed_over_but_refused_by_name(whole, run, resumable):
    state = run / "checkpoint-4" / TRAINER_STATE_FILE
    os.truncate(state, state.stat().st_size // 2)
    trainer = resumable()
    with pytest.raises(ValueError, match="checkpoint-4"):
        trainer.train(resume_from_checkpoint=state.parent)
    trainer.train(resume_from_checkpoint=True)
    assert_same(trainer, whole, 3)


@pytest.mark.parametrize("requested", [None, False])
def test_a_new_run_in_a_folder_in_use_is_warned_of(requested, run, resumable, caplog):
    args = resumable().args
    caplog.clear()
    assert folder_to_resume(requested, args, {}) is None
    assert lines_with(caplog, "output_dir", run, "checkpoint-4") == len(caplog.records) == 1


def test_training_does_not_begin_without_a_checkpoint_of_length_control(run, resumable):
    args = resumable().args
    state = json.loads((run / "checkpoint-4" / TRAINER_STATE_FILE).read_text())
    del state["stateful_callbacks"]["LengthControl"]  # a checkpoint of TRL's own trainer
    (run / "checkpoint-4" / TRAINER_STATE_FILE).write_text(json.dumps(state))
    with pytest.raises(ValueError, match="checkpoint-4"):
        folder_to_resume(run / "checkpoint-4", args, {})
    shutil.rmtree(run)
    with pytest.raises(ValueError, match="resume_from_checkpoint"):
        folder_to_resume(True, args, {})


def test_a_checkpoint_of_another_method_is_refused_before_training(resumable):
    other = resumable(length_control="laser", lambda_lr=None)
    with pytest.raises(ValueError, match=r"'leash'.*'laser'"):
        other.train(resume_from_checkpoint=True)
    assert other.state.global_step == 4


def test_other_settings_are_said_and_gone_on_with(run, resumable, caplog):
    resumed = resumable(max_steps=5, learning_rate=2e-3, target_length=10, run_name="x")
    resumed.train(resume_from_checkpoint=True)
    assert lines_with(caplog, "checkpoint-4", "learning_rate", 0.001, 0.002, "target_length") == 1
    assert lines_with(caplog, "run_name") == 0
    saved = length_control_state(run / "checkpoint-4")["state"]["multipliers"]
    assert [row["leash/lambda"] for row in log(resumed, 5)] == [saved[""]["lam"]]


COST_REWARD_AND_METHOD = """
from leash_trl.length_control.leash import Leash


class OwnMethod(Leash):
    name = "own"


def num_lines(completions, **columns):
    return [1.0 for _ in completions]


def parity(completion_ids, **columns):
    return [float(sum(ids) % 2) for ids in completion_ids]
"""


@pytest.mark.parametrize(
    ("kind", "changed"),
    [("LeashGRPO", "changed_costs"), ("LeashGRPO", "changed_methods"), ("GRPO", "changed_rewards"), ("GRPO", None)],
)
def test_code_that_changed_since_the_checkpoint_is_said_in_one_line(
    kind, changed, make_trainer, tiny_model_path, tmp_path, monkeypatch, caplog
):
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("changed_costs", "changed_methods", "changed_rewards"):
        (tmp_path / f"{name}.py").write_text(COST_REWARD_AND_METHOD)
        monkeypatch.delitem(sys.modules, name, raising=False)
    reward_func = importlib.import_module("changed_rewards").parity
    cost = {"length_of": f"{tmp_path}/changed_costs.py:num_lines"}
    fields = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1}

    def run():
        if kind == "LeashGRPO":
            method = f"{tmp_path}/changed_methods.py:OwnMethod"
            return make_trainer(reward_func, length_control=method, target_length=6, **cost, **fields)
        reward = LengthControlledReward(reward_func, "leash", 6, **cost)
        return stock_trainer(kind, tiny_model_path, tmp_path / "run", reward=reward, **fields)

    run().train()
    assert lines_with(caplog, "code") == 0
    if changed is not None:
        with open(tmp_path / f"{changed}.py", "a") as file:
            file.write("# another line\n")
    run().train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-1"))
    assert lines_with(caplog, "code") == lines_with(caplog, "code", changed) == (changed is not None)


def test_a_reward_function_without_a_module_trains(make_trainer):
    names = {"__name__": "run_by_hand"}
    exec(COST_REWARD_AND_METHOD, names)
    make_trainer(names["parity"], max_steps=1).train()


def test_a_checkpoint_of_a_stock_trainer_can_be_resumed_from(make_trainer, tiny_model_path, tmp_path):
    fields = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1}
    reward = LengthControlledReward(parity_reward, "leash", 6)
    stock = stock_trainer("GRPO", tiny_model_path, tmp_path / "stock", reward=reward, **fields)
    stock.train()
    ours = make_trainer(target_length=6, **fields)
    ours.train(resume_from_checkpoint=str(tmp_path / "stock" / "checkpoint-1"))
    (ours_row,), (stock_row,) = log(ours, 2), log(stock, 2)
    assert ours_row["leash/lambda"] == pytest.approx(stock_row["leash/lambda"])


def test_what_a_resumed_run_cannot_repeat_is_said(run, resumable, caplog):
    def num_lines(**changes):
        trainer = resumable(**changes)
        caplog.clear()
        folder_to_resume(True, trainer.args, trainer.publisher.recipe)
        return lines_with(caplog, "checkpoint-4")

    assert num_lines() == 0
    # the settings, and that the reference has not been saved
    assert num_lines(beta=0.1, sync_ref_model=True) == 2
    (run / "checkpoint-4" / "optimizer.pt").unlink()
    assert num_lines() == 1


def test_the_final_folder_can_be_resumed_from(whole, resumable, tmp_path, caplog):
    """Weights, lambda and steps done; there is no optimizer, which is said."""
    whole.save_model(str(tmp_path / "final"))
    resumed = resumable(max_steps=7, learning_rate=0.0)
    resumed.train(resume_from_checkpoint=tmp_path / "final")
    assert lines_with(caplog, "final", "optimizer state") == 1
    assert [row["leash/lambda"] for row in log(resumed, 7)] == [whole.length_control.lam]
    assert_same_weights(resumed, whole)
    (tmp_path / "final" / "adapter_config.json").write_text("{}")
    with pytest.raises(ValueError, match="use_peft"):
        resumable().train(resume_from_checkpoint=tmp_path / "final")


@pytest.mark.parametrize(
    ("steps", "later", "last"),
    [
        ({"max_steps": 4}, {"max_steps": 2}, 4),
        ({"max_steps": -1, "num_train_epochs": 1.5}, {}, 6),
    ],
)
def test_a_finished_run_trains_no_step_more(make_trainer, problems, steps, later, last):
    fields = SHORT | steps | {"dataset": problems.select(range(8)), "save_steps": 2}
    whole = make_trainer(**fields)
    whole.train()
    finished = make_trainer(**fields | later)
    finished.train(resume_from_checkpoint=True)
    assert_same(finished, whole, 1)
    assert finished.state.global_step == last  # transformers would train one more


class ByQuestion(LengthControl):
    name = "by_question"
    seen: dict = state_field(dict)


def test_a_state_that_a_checkpoint_would_change_is_refused():
    """JSON makes text of whole numbers as keys."""
    method = ByQuestion()
    method.seen = {7: 1.0}
    with pytest.raises(ValueError, match="by_question"):
        method.state_dict()


def test_the_best_weights_are_those_of_an_evaluation_also_inside_windows(make_trainer, problems, tmp_path):
    """Windows of two updates, of which the last evaluation is the worst."""
    trainer = make_trainer(
        eval_dataset=problems.select(range(8)),
        eval_strategy="steps",
        eval_steps=1,
        metric_for_best_model="eval_score",
        greater_is_better=False,
        load_best_model_at_end=True,
        steps_per_generation=2,
        max_steps=4,
        save_steps=1,
        **SHORT,
    )

    def evaluate(*args, **kwargs):
        trainer.control.should_evaluate = False
        return {"eval_score": trainer.state.global_step}

    trainer.evaluate = evaluate
    trainer.train()
    best = tmp_path / "run" / "checkpoint-2"
    assert trainer.state.best_model_checkpoint == str(best)
    best_weights = load_file(best / "model.safetensors")
    weights = trainer.model.state_dict()
    assert all(torch.equal(weights[name], values) for name, values in best_weights.items())


def test_a_folder_is_used_by_one_run_at_a_time(resumable, run):
    refusals = []

    class Second(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            with pytest.raises(ValueError, match=str(run)):
                resumable().train(resume_from_checkpoint=True)
            refusals.append(state.global_step)

    first = resumable(max_steps=5)
    first.add_callback(Second())
    first.train(resume_from_checkpoint=True)
    assert refusals == [5]
    resumable(max_steps=5).train(resume_from_checkpoint=True)


def test_a_folder_that_cannot_be_locked_is_used_with_a_warning(tmp_path, monkeypatch, caplog):
    def no_locks(*arguments):
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    with lock_folder(tmp_path):
        pass
    assert str(tmp_path) in caplog.text


def test_weights_that_are_not_this_runs_doing_need_not_be_finite(tmp_path):
    model = torch.nn.Linear(2, 2)
    check_finite_weights(model, 3, tmp_path)
    model.weight.data[1, 1] = -torch.inf
    with pytest.raises(FloatingPointError, match="update 3"):
        check_finite_weights(model, 3, tmp_path)
    model.weight.requires_grad = False
    check_finite_weights(model, 3, tmp_path)


class SpoiledGradient(TrainerCallback):
    """Puts a value into one gradient of one micro-batch of an update."""

    def __init__(self, update, value):
        self.update = update
        self.value = value

    def on_substep_end(self, args, state, control, model=None, **kwargs):
        if state.global_step + 1 == self.update:
            *_, last = model.parameters()
            last.grad.view(-1)[0] = self.value


@pytest.mark.parametrize(
    ("trainer_name", "value"),
    [
        ("LEASH", math.nan),
        ("LEASH", -math.inf),
        ("GRPO", math.inf),
    ],
)
def test_a_gradient_that_is_not_finite_never_reaches_the_weights(trainer_name, value, tiny_model_path, tmp_path):
    """In the trainer of ours and in one of TRL's, which then resume as if nothing had happened."""
    settings = {
        "gradient_accumulation_steps": 2,
        "max_steps": 4,
        "save_strategy": "steps",
        "save_steps": 1,
        "save_total_limit": 1,
    }
    make = killable_run.make_trainer if trainer_name == "LEASH" else partial(stock_trainer, trainer_name)
    whole = make(tiny_model_path, tmp_path / "whole", **settings)
    whole.train()
    spoiled = make(tiny_model_path, tmp_path / "run", **settings)
    spoiled.add_callback(SpoiledGradient(3, value))
    with pytest.raises(FloatingPointError) as stopped:
        spoiled.train()
    folder = tmp_path / "run" / "checkpoint-2"
    message = str(stopped.value)
    assert "\n" not in message
    assert "update 3" in message
    assert [*complete_checkpoints(tmp_path / "run")] == [folder]
    for saved in (load_file(folder / "model.safetensors").values(), spoiled.model.parameters()):
        assert all(weights.isfinite().all() for weights in saved)
    resumed = make(tiny_model_path, tmp_path / "run", **settings)
    resumed.train(resume_from_checkpoint=str(folder))
    assert log(resumed, 3) == log(whole, 3) != []
    assert_same_weights(resumed, whole)


def test_a_bad_gradient_behind_a_good_one_is_found_where_no_norm_has_spread_it(tmp_path):
    """transformers divides all gradients by their norm, but not in each way of sharding."""
    model = torch.nn.Linear(2, 2)
    model.weight.grad = torch.ones(2, 2)
    model.bias.grad = torch.tensor([1.0, math.nan])
    with pytest.raises(FloatingPointError, match="update 3"):
        check_finite_gradients(model, 3, tmp_path)
