"""What survives: lambda, loss and data order over kill and resume; never a silent reset."""

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import killable_run
import killed_command
import pytest
from conftest import parity_reward
from datasets import Dataset
from peft import LoraConfig
from transformers import LlamaForCausalLM, TrainerCallback

from leash_trl import LeashGRPOTrainer
from leash_trl.checkpoints.completeness import LOCK_FILE, is_whole, last_whole_checkpoint
from leash_trl.checkpoints.fingerprint import PIECE_BYTES, PIECES, files_fingerprint
from leash_trl.checkpoints.state_file import STATE_FILE, read_state, write_state
from leash_trl.cli.main import main
from leash_trl.gym.dataset import gym_problems
from leash_trl.hub.checkpoint_files import model_files
from leash_trl.trainer.run_settings import base_settings, differences
from leash_trl.trainer.starting_point import agreed


def exit_code(work: Callable[[], object]) -> int:
    """The exit code of a process that does the work; a fork, which does not import everything again."""
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join()
    return process.exitcode


def curves(trainer, first=1):
    rows = [row for row in trainer.state.log_history if "loss" in row and row["step"] >= first]
    return [(row["step"], row["loss"], row["grad_norm"], row.get("leash/lambda")) for row in rows]


def checkpoint(output_dir, step) -> str:
    return str(Path(output_dir) / f"checkpoint-{step}")


@pytest.mark.parametrize(
    ("batching", "save_steps", "steps", "num_problems"),
    [
        pytest.param({}, 2, 4, 64, id="plain"),
        pytest.param({"gradient_accumulation_steps": 2, "steps_per_generation": 2}, 2, 4, 64, id="accumulation"),
        pytest.param({"num_iterations": 2}, 2, 5, 64, id="iterations"),
        pytest.param({"steps_per_generation": 4}, 3, 6, 64, id="inside-a-window"),
        pytest.param(
            {"gradient_accumulation_steps": 2, "steps_per_generation": 2, "num_iterations": 2},
            3,
            5,
            64,
            id="inside-a-window-of-iterations",
        ),
        pytest.param({}, 5, 9, 8, id="later-epoch"),  # 8 problems of 4 completions, 8 a step: 4 steps an epoch
        pytest.param({}, 4, 6, 8, id="at-the-end-of-an-epoch"),
    ],
)
def test_resumed_run_equals_uninterrupted_run(
    make_trainer, problems, tmp_path, batching, save_steps, steps, num_problems
):
    settings = {
        **batching,
        "dataset": problems.select(range(num_problems)),
        "max_steps": steps,
        "target_length": 6,
        "max_completion_length": 12,
        "save_strategy": "steps",
        "save_steps": save_steps,
    }
    whole = make_trainer(output_dir=str(tmp_path / "whole"), **settings)
    whole.train()
    resumed = make_trainer(output_dir=str(tmp_path / "resumed"), **settings)
    resumed.train(resume_from_checkpoint=checkpoint(tmp_path / "whole", save_steps))
    assert curves(resumed, save_steps + 1) == curves(whole, save_steps + 1)
    assert resumed.length_control.lam == whole.length_control.lam
    assert len(curves(whole)) == steps


def test_killed_run_repeats_the_uninterrupted_run(tmp_path, tiny_model_path):
    """SIGKILL of another program in the middle of a step, then resume from its last checkpoint."""
    program = killable_run.__file__
    command = [sys.executable, program, tiny_model_path, str(tmp_path / "killed"), "--kill_in_step", "6"]
    killed = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert sorted(p.name for p in (tmp_path / "killed").glob("checkpoint-*")) == ["checkpoint-2", "checkpoint-4"]

    whole = killable_run.make_trainer(tiny_model_path, str(tmp_path / "whole"))
    whole.train()
    resumed = killable_run.make_trainer(tiny_model_path, str(tmp_path / "killed"))
    resumed.train(resume_from_checkpoint=True)
    assert curves(resumed, 1) == curves(whole, 1)
    assert resumed.length_control.lam == whole.length_control.lam != 0.1


def test_checkpoint_holds_the_lambda_after_its_step(make_trainer, tmp_path):
    trainer = make_trainer(max_steps=2, save_strategy="steps", save_steps=1)
    trainer.train()
    saved = read_state(checkpoint(tmp_path / "run", 1))
    assert saved["controller"]["lambda"] == trainer.state.log_history[1]["leash/lambda"]
    assert saved["target_length"] == 12


def test_resuming_without_the_optimizer_warns_and_restores_lambda(make_trainer, tmp_path):
    first = make_trainer(max_steps=2, save_strategy="steps", save_steps=2, save_only_model=True)
    first.train()
    second = make_trainer(max_steps=3)
    with pytest.warns(UserWarning, match="no optimizer state"):
        second.train(resume_from_checkpoint=checkpoint(tmp_path / "run", 2))
    assert curves(second, 3)[0][3] == first.length_control.lam


def test_an_optimizer_that_only_deepspeed_reads_is_not_taken_for_restored(resumable, tmp_path):
    saved = Path(checkpoint(tmp_path / "run", 4))
    (saved / "global_step4").mkdir()
    for name in ("optimizer.pt", "scheduler.pt"):
        (saved / name).unlink()
    with pytest.warns(UserWarning, match="no optimizer state"):
        resumable(max_steps=5).train(resume_from_checkpoint=True)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.unlink(), "has no leash_state.json"),
        (lambda path: path.write_text(path.read_text()[:20]), "is damaged"),
        (
            lambda path: path.write_text(path.read_text().replace('"prompts_drawn": {', '"prompts_drawn": {"x": 1, ')),
            "counters",
        ),
        (lambda path: path.write_text("[]"), "holds no controller state"),
        (lambda path: path.write_text('{"controller": {"lambda": null}}'), "not a finite number"),
    ],
)
def test_missing_or_damaged_state_is_an_error(resumable, tmp_path, damage, message):
    damage(Path(checkpoint(tmp_path / "run", 4)) / STATE_FILE)
    with pytest.raises(ValueError, match=message):
        resumable().train(resume_from_checkpoint=checkpoint(tmp_path / "run", 4))


def test_the_remedy_for_a_missing_state_works(resumable, tmp_path):
    (Path(checkpoint(tmp_path / "run", 4)) / STATE_FILE).write_text('{"controller": {"lambda": 0.1}}')
    trainer = resumable(max_steps=5)
    trainer.train(resume_from_checkpoint=checkpoint(tmp_path / "run", 4))
    assert curves(trainer, 5)[0][3] == 0.1


def test_lost_window_is_a_warning(make_trainer, tmp_path):
    settings = {"steps_per_generation": 4, "save_strategy": "steps", "save_steps": 1}
    make_trainer(max_steps=1, **settings).train()
    (Path(checkpoint(tmp_path / "run", 1)) / "leash_rollouts_0.pt").unlink()
    with pytest.warns(UserWarning, match="does not fit here"):
        make_trainer(max_steps=2, **settings).train(resume_from_checkpoint=checkpoint(tmp_path / "run", 1))


def test_a_window_arranged_for_something_else_is_not_trained_on(make_trainer, tmp_path):
    settings = {"steps_per_generation": 4, "per_device_train_batch_size": 4, "save_strategy": "steps", "save_steps": 1}
    make_trainer(max_steps=1, **settings).train()
    settings["save_strategy"] = "no"
    for change in ({"gradient_accumulation_steps": 2}, {"loss_type": "grpo"}, {"beta": 0.1}):
        trainer = make_trainer(max_steps=2, **settings, **change)
        with pytest.warns(UserWarning, match="does not fit here"):
            trainer.train(resume_from_checkpoint=checkpoint(tmp_path / "run", 1))


def test_another_target_keeps_lambda_and_warns(resumable, tmp_path):
    trainer = resumable(max_steps=5, target_length=10)
    with pytest.warns(UserWarning, match="trained for 12"):
        trainer.train(resume_from_checkpoint=checkpoint(tmp_path / "run", 4))
    assert curves(trainer, 5)[0][3] == read_state(checkpoint(tmp_path / "run", 4))["controller"]["lambda"]


def test_final_model_carries_the_state(make_trainer, tmp_path):
    trainer = make_trainer(max_steps=1)
    trainer.train()
    trainer.save_model(str(tmp_path / "final"))
    assert read_state(tmp_path / "final")["controller"]["lambda"] == trainer.length_control.lam


def test_state_is_written_at_once_or_not_at_all(tmp_path, monkeypatch):
    write_state(tmp_path, {"controller": {"lambda": 0.25}})

    def power_cut(*args):
        raise OSError("power cut")

    monkeypatch.setattr(os, "replace", power_cut)
    with pytest.raises(OSError, match="power cut"):
        write_state(tmp_path, {"controller": {"lambda": 0.5}})
    assert json.loads((tmp_path / STATE_FILE).read_text()) == {"controller": {"lambda": 0.25}}


@pytest.mark.parametrize("kind", [str, Path])
def test_resuming_from_a_bare_model_folder_restores_lambda(make_trainer, tmp_path, kind):
    """What a clone of a Hub repository's root holds: model, tokenizer, lambda; no trainer state."""
    first = make_trainer(max_steps=1)
    first.train()
    first.save_model(str(tmp_path / "clone"))
    assert not (tmp_path / "clone" / "trainer_state.json").exists()
    second = make_trainer(max_steps=1)
    with pytest.warns(UserWarning, match="no optimizer state"):
        second.train(resume_from_checkpoint=kind(tmp_path / "clone"))
    assert curves(second)[0][3] == first.length_control.lam


def test_a_checkpoint_that_was_being_saved_is_passed_over(resumable, tmp_path):
    (Path(checkpoint(tmp_path / "run", 4)) / "trainer_state.json").write_text('{"log_hist')
    whole = read_state(checkpoint(tmp_path / "run", 2))
    resumed = resumable(max_steps=3)
    resumed.train(resume_from_checkpoint=True)
    assert curves(resumed, 3)[0][3] == whole["controller"]["lambda"]


def test_resuming_from_a_checkpoint_that_was_being_saved_is_an_error(resumable, tmp_path):
    shutil.rmtree(checkpoint(tmp_path / "run", 2))
    half = Path(checkpoint(tmp_path / "run", 4))
    (half / "trainer_state.json").unlink()
    trainer = resumable()
    for folder in (half, str(half)):
        with pytest.raises(ValueError, match="is not complete"):
            trainer.train(resume_from_checkpoint=folder)
    with pytest.raises(ValueError, match="no checkpoint that is complete"):
        trainer.train(resume_from_checkpoint=True)


def test_a_window_of_another_shape_is_not_loaded(make_trainer, tmp_path):
    make_trainer(max_steps=1, steps_per_generation=2, save_strategy="steps", save_steps=1).train()
    resumed = make_trainer(max_steps=4, steps_per_generation=4)
    with pytest.warns(UserWarning, match="'steps_per_generation': 2"):
        resumed.train(resume_from_checkpoint=checkpoint(tmp_path / "run", 1))
    assert len(curves(resumed, 2)) == 3


class Interrupt(Exception):
    """What stops a run in a notebook."""


@pytest.mark.parametrize("batching", [{}, {"steps_per_generation": 3}])
def test_resuming_on_the_interrupted_trainer_equals_resuming_on_a_new_one(make_trainer, tmp_path, batching):
    settings = {**batching, "max_steps": 7, "save_strategy": "steps", "save_steps": 4}
    settings |= {"target_length": 6, "max_completion_length": 12}
    interrupted = make_trainer(**settings)
    compute_loss, stopped = interrupted.compute_loss, []

    def interrupt_once(*args, **kwargs):
        if interrupted.state.global_step == 6 and not stopped:
            stopped.append(True)
            raise Interrupt
        return compute_loss(*args, **kwargs)

    interrupted.compute_loss = interrupt_once
    with pytest.raises(Interrupt):
        interrupted.train()
    fresh = make_trainer(**settings)
    fresh.train(resume_from_checkpoint=checkpoint(tmp_path / "run", 4))
    interrupted.train(resume_from_checkpoint=checkpoint(tmp_path / "run", 4))
    assert curves(interrupted, 5) == curves(fresh, 5)
    assert interrupted.length_control.lam == fresh.length_control.lam


def test_state_of_another_method_is_an_error(resumable, tmp_path):
    write_state(checkpoint(tmp_path / "run", 4), {"method": "laser", "controller": {"lambda": 0.1}})
    with pytest.raises(ValueError, match="length control 'laser'"):
        resumable().train(resume_from_checkpoint=checkpoint(tmp_path / "run", 4))


def test_rollouts_are_not_left_where_they_would_be_pushed(make_trainer, tmp_path):
    trainer = make_trainer(max_steps=1, steps_per_generation=4, save_strategy="steps", save_steps=1)
    trainer.train()
    trainer.save_model(_internal_call=True)  # as push_to_hub does
    assert not list((tmp_path / "run").glob("leash_rollouts*"))
    assert list((tmp_path / "run" / "checkpoint-1").glob("leash_rollouts*"))


@pytest.mark.parametrize("name", ["checkpoint-mine", "checkpoint-1"])
def test_a_run_in_a_folder_called_checkpoint_keeps_its_files(make_trainer, tmp_path, name):
    trainer = make_trainer(max_steps=1, output_dir=str(tmp_path / name))
    trainer.train()
    trainer.save_state()
    trainer.save_model(_internal_call=True)  # as push_to_hub does
    assert (tmp_path / name / "trainer_state.json").is_file()
    assert (tmp_path / name / "model.safetensors").is_file()


def test_only_the_model_of_a_checkpoint_is_at_the_root_of_a_repository(tmp_path):
    state = ("optimizer.pt", "entropy_ctrl_state.json", "leash_reference.pt", "leash_rollouts_0.pt")
    for name in (*state, "model.safetensors"):
        (tmp_path / name).touch()
    assert set(model_files(tmp_path)) == {"model.safetensors"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory, tiny_model_path) -> Path:
    """The folder of a run of four steps, with checkpoints at 2 and 4; to be copied before it is used."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    killable_run.make_trainer(tiny_model_path, str(folder), max_steps=4).train()
    return folder


@pytest.fixture
def resumable(trained, tmp_path, tiny_model_path):
    """Factory of trainers in a copy of `trained`, to be resumed up to step 6, with changes to their configuration."""
    shutil.copytree(trained, tmp_path / "run")

    def make(**changes):
        return killable_run.make_trainer(tiny_model_path, str(tmp_path / "run"), **{"max_steps": 6, **changes})

    return make


def train_to_the_best(make_trainer, best_step, at_the_end=lambda: None):
    """Four steps, of which the weights after `best_step` are loaded at the end."""
    trainer = make_trainer(
        max_steps=4,
        target_length=6,
        max_completion_length=12,
        save_strategy="steps",
        save_steps=1,
        eval_strategy="steps",
        eval_steps=1,
        eval_dataset=gym_problems("train", 8),
        load_best_model_at_end=True,
        metric_for_best_model="eval_score",
        greater_is_better=True,
    )

    def evaluate(*args, **kwargs):
        if trainer.state.global_step == 4:
            at_the_end()
        return {"eval_score": -abs(trainer.state.global_step - best_step)}

    trainer.evaluate = evaluate
    trainer.train()
    trainer.save_model()
    return trainer


def test_the_best_weights_are_saved_with_their_own_state(make_trainer, tmp_path, caplog):
    trainer = train_to_the_best(make_trainer, best_step=2)
    best = Path(checkpoint(tmp_path / "run", 2))
    last = read_state(checkpoint(tmp_path / "run", 4))
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == (best / "model.safetensors").read_bytes()
    saved = read_state(tmp_path / "run")
    assert (saved["controller"], saved["global_step"]) == (read_state(best)["controller"], 2)
    assert trainer.length_control.lam == saved["controller"]["lambda"] != last["controller"]["lambda"]
    assert "step 2" in caplog.text
    trainer.args.load_best_model_at_end = False
    trainer.train()
    assert trainer._state_record()["global_step"] == 4


def test_best_weights_without_a_state_are_marked(make_trainer, tmp_path, caplog):
    best = Path(checkpoint(tmp_path / "run", 2))
    train_to_the_best(make_trainer, best_step=2, at_the_end=lambda: (best / STATE_FILE).unlink(missing_ok=True))
    assert "checkpoint-2" in caplog.text
    assert "checkpoint-2" in read_state(tmp_path / "run")["note"]


@pytest.mark.parametrize("lost", ["model.safetensors", "the folder"])
def test_best_weights_that_are_lost_leave_the_last_with_their_own_state(make_trainer, tmp_path, caplog, lost):
    best = Path(checkpoint(tmp_path / "run", 2))

    def lose():
        if lost == "the folder":
            shutil.rmtree(best, ignore_errors=True)
        else:
            (best / lost).unlink(missing_ok=True)

    train_to_the_best(make_trainer, best_step=2, at_the_end=lose)
    assert "the last weights are kept" in caplog.text
    assert read_state(tmp_path / "run")["global_step"] == 4


def test_the_best_weights_of_the_last_step_need_no_word(make_trainer, caplog):
    train_to_the_best(make_trainer, best_step=4)
    assert "load_best_model_at_end" not in caplog.text


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"learning_rate": 2e-3}, "learning_rate 0.001 -> 0.002"),
        ({"seed": 7}, "seed 42 -> 7"),
        ({"lambda_lr": 0.2}, "lambda_lr 0.1 -> 0.2"),
        ({"gradient_accumulation_steps": 2}, "8 -> 16"),
        ({"target_length": 10}, "target_length 12 -> 10"),
    ],
)
def test_a_run_of_other_settings_is_not_gone_on_with(resumable, changes, difference):
    with pytest.raises(ValueError, match=difference) as refused:
        resumable(**changes).train(resume_from_checkpoint=True)
    assert "checkpoint-4" in str(refused.value)
    assert "output_dir" in str(refused.value)


def test_a_methods_own_lambda_may_be_named(make_trainer):
    settings = {"save_strategy": "steps", "save_steps": 1, "lambda_lr": None}
    make_trainer(max_steps=1, **settings).train()
    resumed = make_trainer(max_steps=2, **{**settings, "lambda_lr": 0.005})
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == 2


def test_a_folder_that_is_not_there_is_said(make_trainer, tmp_path):
    with pytest.raises(ValueError, match="no such folder"):
        make_trainer().train(resume_from_checkpoint=checkpoint(tmp_path / "run", 33))


def other_reward(completion_ids, **kwargs) -> list[float]:
    return [1.0 if len(ids) % 2 == 0 else -1.0 for ids in completion_ids]


def test_other_data_rewards_or_model_are_another_run(make_trainer, make_args, problems, tiny_model_path, tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 1}
    make_trainer(max_steps=1, **settings).train()
    other_rows = problems.select(range(1, 64))
    other_golds = problems.map(lambda row: {"solution": f"1{row['solution']}"})
    for difference, changes in (
        ("data", {"dataset": other_rows}),
        ("data", {"dataset": other_golds}),
        ("data", {"dataset": problems.add_column("target_length", [9] * len(problems))}),
        ("reward_funcs", {"reward_funcs": other_reward}),
    ):
        with pytest.raises(ValueError, match=difference):
            make_trainer(max_steps=2, **settings, **changes).train(resume_from_checkpoint=True)
    other_model = Path(shutil.copytree(tiny_model_path, tmp_path / "else"))
    config = json.loads((other_model / "config.json").read_text())
    (other_model / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 2}))
    with pytest.raises(ValueError, match="num_hidden_layers 1 -> 2"):
        LeashGRPOTrainer(other_model, parity_reward, make_args(max_steps=2), train_dataset=problems).train(True)


def test_a_model_of_another_name_is_gone_on_with_and_said(resumable, trained, tmp_path, tiny_model_path, caplog):
    """A Hub id, and its snapshot on disk, are one model."""
    snapshot = shutil.copytree(tiny_model_path, tmp_path / "snapshots" / "0a1b2c")
    trainer = killable_run.make_trainer(str(snapshot), resumable().args.output_dir, max_steps=5)
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == 5
    assert "-> 0a1b2c" in caplog.text


@pytest.fixture
def same_named(tmp_path, tiny_model_path) -> list[str]:
    """Three models whose folders end alike: the tiny one, its copy, and one with other weights."""
    folders = [str(shutil.copytree(tiny_model_path, tmp_path / place / "model")) for place in ("one", "copy", "other")]
    model = LlamaForCausalLM.from_pretrained(folders[2])
    model.model.layers[0].mlp.up_proj.weight.data += 0.1
    model.save_pretrained(folders[2])
    return folders


@pytest.mark.parametrize("keeps", ["adapter", "reference"])
def test_other_base_weights_are_another_run_and_the_same_elsewhere_are_not(
    make_args, problems, same_named, tmp_path, caplog, keeps
):
    def train(model, steps, resume):
        is_lora = keeps == "adapter"
        lora = LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM") if is_lora else None
        args = make_args(max_steps=steps, save_strategy="steps", save_steps=1, beta=0.0 if is_lora else 0.1)
        trainer = LeashGRPOTrainer(model, parity_reward, args, train_dataset=problems, peft_config=lora)
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    one, copy, other = same_named
    train(one, 1, False)
    with pytest.raises(ValueError, match=r"checkpoint-1 .*weights of the base model .* -> ") as refused:
        train(other, 2, True)
    assert "set them back" in str(refused.value)
    moved = str(Path(copy).rename(tmp_path / "copy" / "moved"))
    assert train(moved, 2, True).state.global_step == 2
    assert "other settings" not in caplog.text
    folder = checkpoint(tmp_path / "run", 2)
    state = read_state(folder)
    del state["settings"]["weights of the base model"]
    write_state(folder, state)  # as an older release left it
    assert train(other, 3, True).state.global_step == 3


def test_a_base_of_the_hub_is_its_snapshot_on_disk(make_args, same_named, tmp_path, monkeypatch):
    hub = tmp_path / "hub"
    repository = hub / "models--me--base"
    shutil.copytree(same_named[0], repository / "snapshots" / "0a1b2c")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0a1b2c")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(hub))
    args = make_args(beta=0.1)
    copy = base_settings(None, same_named[1], args)
    assert base_settings(None, "me/base", args) == copy != {}
    assert base_settings(None, "me/base", make_args(beta=0.1, model_init_kwargs={"revision": "0a1b2c"})) == copy
    assert base_settings(None, "me/nowhere", args) == {}
    assert base_settings(None, None, args) == base_settings(None, "me/base", make_args()) == {}


def test_a_change_between_the_ends_of_a_long_file_changes_the_fingerprint(tmp_path):
    path = tmp_path / "model.safetensors"
    size = 4 * PIECES * PIECE_BYTES
    path.write_bytes(bytes(size))
    before = files_fingerprint(tmp_path, ["*.safetensors"])
    with open(path, "r+b") as file:
        file.seek(size // 2)
        file.write(b"1" * 8 * PIECE_BYTES)
    assert files_fingerprint(tmp_path, ["*.safetensors"]) != before
    assert files_fingerprint(tmp_path, ["*.bin"]) is None


def test_an_adapter_is_known_by_what_both_versions_of_peft_know(make_trainer, tmp_path):
    def trainer(steps, **lora):
        config = LoraConfig(**{"r": 2, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM", **lora})
        return make_trainer(max_steps=steps, save_strategy="steps", save_steps=1, peft_config=config)

    trainer(1).train()
    folder = checkpoint(tmp_path / "run", 1)
    state = read_state(folder)
    older = {name: value for name, value in state["settings"].items() if name != "adapter.use_dora"}
    assert len(older) < len(state["settings"])
    assert not any("peft_version" in f"{name}{value}" for name, value in older.items())
    write_state(folder, {**state, "settings": older})
    for lora, difference in (
        ({"r": 4}, "adapter.r 2 -> 4"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save None"),
    ):
        with pytest.raises(ValueError, match=difference):
            trainer(2, **lora).train(resume_from_checkpoint=True)
    with pytest.raises(ValueError, match=r"adapter.* LORA -> None"):
        make_trainer(max_steps=2).train(resume_from_checkpoint=True)
    resumed = trainer(2)
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == 2


def test_the_difference_of_long_values_is_shown():
    long = {f"option_{number}": number for number in range(30)}
    (difference,) = differences(
        {"generation_kwargs": {**long, "z": 1}}, {"generation_kwargs": {**long, "z": 2}}
    ).values()
    assert "'z': 1" in difference
    assert "'z': 2" in difference
    assert len(difference) < 140


def test_naming_the_checkpoint_means_to_go_on_with_other_settings(resumable, tmp_path, caplog):
    trainer = resumable(learning_rate=2e-3)
    trainer.train(resume_from_checkpoint=checkpoint(tmp_path / "run", 4))
    assert "learning_rate 0.001 -> 0.002" in caplog.text
    assert trainer.state.global_step == 6


def test_what_does_not_change_training_may_differ(resumable, caplog):
    same = {"logging_steps": 2, "save_steps": 3, "save_total_limit": 1, "dataloader_num_workers": 0, "run_name": "x"}
    batch = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    trainer = resumable(**same, **batch, eval_strategy="no", skip_zero_signal=False)
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == 6
    assert "other settings" not in caplog.text


def test_checkpoints_that_do_not_know_their_settings_are_resumed(resumable, tmp_path):
    for step in (2, 4):
        folder = checkpoint(tmp_path / "run", step)
        state = read_state(folder)
        del state["settings"]
        write_state(folder, state)
    trainer = resumable(learning_rate=2e-3)
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == 6


def test_a_moving_reference_is_resumed(make_trainer, tmp_path):
    settings = {
        "max_steps": 4,
        "target_length": 6,
        "max_completion_length": 12,
        "beta": 0.1,
        "sync_ref_model": True,
        "ref_model_sync_steps": 1,
        "ref_model_mixup_alpha": 0.5,
        "learning_rate": 1e-2,
        "save_strategy": "steps",
        "save_steps": 2,
    }
    whole = make_trainer(**settings)
    whole.train()
    resumed = make_trainer(**settings)
    resumed.train(resume_from_checkpoint=checkpoint(tmp_path / "run", 2))

    def divergence(trainer):
        return [row["kl"] for row in trainer.state.log_history if row.get("step", 0) > 2 and "kl" in row]

    assert divergence(resumed) == divergence(whole) != [0.0] * 2
    for name, weights in whole.ref_model.state_dict().items():
        assert weights.equal(resumed.ref_model.state_dict()[name])
    saved = Path(checkpoint(tmp_path / "run", 2))
    (saved / "leash_reference.pt").unlink()
    with pytest.raises(ValueError, match=r"leash_reference\.pt is missing"):
        make_trainer(**settings).train(resume_from_checkpoint=saved)
    older = {name: value for name, value in read_state(saved).items() if name != "files"}
    write_state(saved, older)  # from before references were saved
    with pytest.warns(UserWarning, match="sync_ref_model"):
        make_trainer(**settings).train(resume_from_checkpoint=saved)


def test_a_checkpoint_killed_while_it_is_overwritten_is_passed_over(trained, tmp_path, tiny_model_path):
    """New weights beside the old optimizer and the old `trainer_state.json`."""
    shutil.copytree(trained, tmp_path / "run")
    run = killable_run.make_trainer(
        tiny_model_path, str(tmp_path / "run"), kill_in_saving=4, learning_rate=1e-2, max_steps=4, save_steps=4
    )
    assert exit_code(run.train) == -signal.SIGKILL
    name = "checkpoint-4/model.safetensors"
    assert (tmp_path / "run" / name).read_bytes() != (trained / name).read_bytes()
    assert last_whole_checkpoint(tmp_path / "run").name == "checkpoint-2"


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize(
    ("name", "damage", "fault"),
    [
        ("optimizer.pt", cut, "optimizer.pt is cut off"),
        ("optimizer.pt", Path.unlink, "optimizer is missing"),
        ("model.safetensors", cut, "model.safetensors is cut off"),
        ("model.safetensors", lambda path: path.write_text("version https://git-lfs"), "model.safetensors is cut off"),
        ("model.safetensors", lambda path: path.write_bytes(b"\xff" * 16), "model.safetensors is cut off"),
        ("model.safetensors", Path.unlink, "weights are missing"),
        ("rng_state.pth", Path.unlink, "rng_state is missing"),
        ("scheduler.pt", lambda path: os.truncate(path, 0), "scheduler.pt is cut off"),
        ("config.json", cut, "config.json is cut off"),
        (STATE_FILE, cut, f"{STATE_FILE} is cut off"),
        ("entropy_ctrl_state.json", Path.touch, "entropy_ctrl_state.json is cut off"),
        (
            "model.safetensors.index.json",
            lambda path: path.write_text('{"weight_map": {"a": "model-00002-of-00002.safetensors"}}'),
            "model-00002-of-00002.safetensors is missing",
        ),
    ],
)
def test_a_torn_checkpoint_is_passed_over_with_one_line(trained, tmp_path, caplog, name, damage, fault):
    shutil.copytree(trained, tmp_path / "run")
    assert last_whole_checkpoint(tmp_path / "run").name == "checkpoint-4"
    damage(Path(checkpoint(tmp_path / "run", 4), name))
    assert last_whole_checkpoint(tmp_path / "run").name == "checkpoint-2"
    (line,) = [record.message for record in caplog.records]
    assert fault in line


def test_all_processes_leave_when_the_main_one_fails(monkeypatch):
    sent = []
    broadcast = "leash_trl.trainer.starting_point.broadcast_object_list"
    monkeypatch.setattr(broadcast, lambda found: sent.append(found) or found)

    def fail():
        raise MemoryError

    with pytest.raises(ValueError, match="MemoryError"):
        agreed(SimpleNamespace(is_main_process=True), fail)
    (found,) = sent
    monkeypatch.setattr("leash_trl.trainer.starting_point.broadcast_object_list", lambda _: found)
    with pytest.raises(ValueError, match="MemoryError"):
        agreed(SimpleNamespace(is_main_process=False), fail)


@pytest.mark.parametrize("name", ["optimizer.pt", "trainer_state.json"])
def test_a_torn_checkpoint_of_another_name_is_no_bare_model(resumable, tmp_path, name):
    """What `hub_strategy=checkpoint` calls `last-checkpoint`."""
    renamed = Path(checkpoint(tmp_path / "run", 4)).rename(tmp_path / "last-checkpoint")
    cut(renamed / name)
    with pytest.raises(ValueError, match="last-checkpoint is not complete"):
        resumable().train(resume_from_checkpoint=renamed)


def test_a_run_goes_on_from_before_a_torn_checkpoint(resumable, tmp_path):
    torn = checkpoint(tmp_path / "run", 4)
    cut(Path(torn, "optimizer.pt"))
    with pytest.raises(ValueError, match="checkpoint-4 is not complete"):
        resumable().train(resume_from_checkpoint=torn)
    resumed = resumable()
    resumed.train(resume_from_checkpoint=True)
    assert [step for step, *_ in curves(resumed)] == [1, 2, 3, 4, 5, 6]
    assert is_whole(Path(torn))


def test_adaptive_entropy_is_in_every_whole_checkpoint(make_trainer, tmp_path, monkeypatch):
    """TRL writes its coefficient behind `trainer_state.json`, where a kill would leave a checkpoint without it."""
    trainer = make_trainer(max_steps=1, save_strategy="steps", save_steps=1, use_adaptive_entropy=True)
    seen = []
    save_to_json = type(trainer.state).save_to_json

    def spy(state, path):
        seen.append((Path(path).parent / "entropy_ctrl_state.json").read_text())
        save_to_json(state, path)

    monkeypatch.setattr(type(trainer.state), "save_to_json", spy)
    trainer.train()
    assert [json.loads(text)["entropy_coef"] for text in seen] == [trainer.entropy_coef]
    assert is_whole(Path(checkpoint(trainer.args.output_dir, 1)))
    Path(checkpoint(trainer.args.output_dir, 1), "entropy_ctrl_state.json").unlink()
    assert not is_whole(Path(checkpoint(trainer.args.output_dir, 1)))


def test_a_folder_is_used_by_one_run_at_a_time(make_trainer):
    class SecondRun(TrainerCallback):
        refusal = None

        def on_step_end(self, args, state, control, **kwargs):
            try:
                make_trainer(max_steps=1).train()
            except ValueError as error:
                self.refusal = str(error)

    second = SecondRun()
    first = make_trainer(max_steps=1, callbacks=[second])
    first.train()
    assert first.args.output_dir in second.refusal
    make_trainer(max_steps=1).train()


def test_a_killed_run_leaves_its_folder_free(make_trainer, tmp_path):
    held = f"from leash_trl.checkpoints.completeness import only_run_in as o\nwith o({str(tmp_path / 'run')!r}):\n "
    process = subprocess.Popen(
        [sys.executable, "-c", held + "print('held', flush=True); input()"], stdin=-1, stdout=-1
    )
    assert process.stdout.readline() == b"held\n"
    with pytest.raises(ValueError, match="another run"):
        make_trainer(max_steps=1).train()
    process.kill()
    process.communicate()
    make_trainer(max_steps=1).train()


def test_a_folder_that_cannot_be_locked_is_said_once_and_trained_in(make_trainer, tmp_path, caplog):
    (tmp_path / "run" / LOCK_FILE).mkdir(parents=True)
    trainer = make_trainer(max_steps=1)
    trainer.train()
    assert trainer.state.global_step == 1
    assert caplog.text.count("cannot be locked") == 1


def test_a_fresh_run_in_a_used_folder_says_so(resumable, tmp_path, caplog):
    resumable(max_steps=1).train()
    assert "checkpoint-4" in caplog.text


GYM = ["--model_name_or_path", "gym", "--dataset_name", "gym", "--target_length", "40", "--use_cpu", "true"]
GYM += ["--bf16", "false", "--per_device_train_batch_size", "4", "--num_generations", "2", "--report_to", "none"]
GYM += ["--max_completion_length", "48", "--max_steps", "2", "--save_steps", "1"]


def test_the_command_refuses_a_used_folder_and_other_settings(trained, tmp_path, capsys, caplog):
    shutil.copytree(trained, tmp_path / "run")
    command = ["train", *GYM, "--output_dir", str(tmp_path / "run")]
    assert main(command) == 2
    said = capsys.readouterr().err
    assert "checkpoint-4" in said
    assert "resume_from_checkpoint" in said
    cut(tmp_path / "run" / "checkpoint-4" / "optimizer.pt")
    assert main([*command, "--max_steps", "6", "--resume_from_checkpoint", "true"]) == 2
    said = capsys.readouterr().err
    assert "checkpoint-2 was trained with other settings" in said
    assert "learning_rate" in said
    assert caplog.text.count("is not complete") == 1
    assert "Traceback" not in said


def test_a_run_killed_before_its_final_save_is_finished(tmp_path, capsys):
    command = ["train", *GYM, "--output_dir", str(tmp_path / "run")]
    assert exit_code(partial(killed_command.run, "save_state", command)) == -signal.SIGKILL
    assert not (tmp_path / "run" / "model.safetensors").exists()
    assert main([*command, "--resume_from_checkpoint", "true"]) == 0
    last = tmp_path / "run" / "checkpoint-2"
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == (last / "model.safetensors").read_bytes()
    assert read_state(tmp_path / "run")["controller"] == read_state(last)["controller"]
    assert (tmp_path / "run" / "README.md").is_file()
    assert json.loads((tmp_path / "run" / "trainer_state.json").read_text())["global_step"] == 2
    assert main([*command, "--resume_from_checkpoint", "true", "--max_steps", "1"]) == 2
    assert "max_steps=1" in capsys.readouterr().err


@pytest.mark.parametrize(("epochs", "last"), [(1, 4), (1.5, 6)])
def test_a_finished_run_of_epochs_trains_no_step_more(make_trainer, problems, tmp_path, caplog, epochs, last):
    settings = {"dataset": problems.select(range(8)), "max_steps": -1, "save_strategy": "steps", "save_steps": 2}
    make_trainer(num_train_epochs=epochs, **settings).train()
    finished = make_trainer(num_train_epochs=epochs, **settings)
    finished.train(resume_from_checkpoint=True)
    assert finished.state.global_step == last
    assert "nothing is left to train" in caplog.text
    with pytest.raises(ValueError, match=r"num_train_epochs=0\.5"):
        make_trainer(num_train_epochs=0.5, **settings).train(resume_from_checkpoint=True)


@pytest.mark.parametrize(("rows", "message"), [(0, "is empty"), (1, "1 rows, but one generation batch takes 2")])
def test_data_for_no_step_are_an_error(make_trainer, problems, rows, message):
    data = problems.select(range(1)) if rows else Dataset.from_dict({"prompt": [], "solution": []})
    with pytest.raises(ValueError, match=message):
        make_trainer(dataset=data).train()
