"""What survives: lambda, loss and data order over kill and resume; never a silent reset."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from datasets import Dataset

from leash_trl.controller_state import STATE_FILE, read_state, write_state


KILLABLE_RUN = Path(__file__).parent / "killable_run.py"


def curves(trainer, first=1):
    rows = [row for row in trainer.state.log_history if "loss" in row and row["step"] >= first]
    return [(row["step"], row["loss"], row["grad_norm"], row.get("leash/lambda")) for row in rows]


def checkpoint(output_dir, step) -> str:
    return str(Path(output_dir) / f"checkpoint-{step}")


@pytest.mark.parametrize(
    ("batching", "save_steps", "num_problems"),
    [
        pytest.param({}, 3, 64, id="plain"),
        pytest.param({"gradient_accumulation_steps": 2, "steps_per_generation": 2}, 3, 64, id="accumulation"),
        pytest.param({"num_iterations": 2}, 4, 64, id="iterations"),
        pytest.param({"steps_per_generation": 4}, 3, 64, id="inside-a-window"),
        pytest.param(
            {"gradient_accumulation_steps": 2, "steps_per_generation": 2, "num_iterations": 2},
            3,
            64,
            id="inside-a-window-of-iterations",
        ),
        pytest.param({}, 5, 8, id="later-epoch"),  # 8 problems of 4 completions, 8 a step: 4 steps an epoch
        pytest.param({}, 4, 8, id="at-the-end-of-an-epoch"),
    ],
)
def test_resumed_run_equals_uninterrupted_run(make_trainer, problems, tmp_path, batching, save_steps, num_problems):
    settings = {
        **batching,
        "dataset": problems.select(range(num_problems)),
        "max_steps": 9,
        "save_strategy": "steps",
        "save_steps": save_steps,
    }
    whole = make_trainer(output_dir=str(tmp_path / "whole"), **settings)
    whole.train()
    resumed = make_trainer(output_dir=str(tmp_path / "resumed"), **settings)
    resumed.train(resume_from_checkpoint=checkpoint(tmp_path / "whole", save_steps))
    assert curves(resumed, save_steps + 1) == curves(whole, save_steps + 1)
    assert resumed.length_control.lam == whole.length_control.lam
    assert len(curves(whole)) == 9


def test_killed_run_repeats_the_uninterrupted_run(tmp_path, tiny_model_path):
    """SIGKILL in the middle of a step, then resume from the last checkpoint."""
    sys.path.insert(0, str(KILLABLE_RUN.parent))
    import killable_run

    command = [sys.executable, str(KILLABLE_RUN), tiny_model_path, str(tmp_path / "killed"), "--kill_in_step", "6"]
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


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.unlink(), "has no leash_state.json"),
        (lambda path: path.write_text(path.read_text()[:20]), "is damaged"),
        (lambda path: path.write_text("[]"), "holds no controller state"),
        (lambda path: path.write_text('{"controller": {"lambda": null}}'), "not a finite number"),
    ],
)
def test_missing_or_damaged_state_is_an_error(make_trainer, tmp_path, damage, message):
    make_trainer(max_steps=1, save_strategy="steps", save_steps=1).train()
    damage(Path(checkpoint(tmp_path / "run", 1)) / STATE_FILE)
    with pytest.raises(ValueError, match=message):
        make_trainer(max_steps=2).train(resume_from_checkpoint=checkpoint(tmp_path / "run", 1))


def test_the_remedy_for_a_missing_state_works(make_trainer, tmp_path):
    make_trainer(max_steps=1, save_strategy="steps", save_steps=1).train()
    (Path(checkpoint(tmp_path / "run", 1)) / STATE_FILE).write_text('{"controller": {"lambda": 0.1}}')
    trainer = make_trainer(max_steps=2)
    trainer.train(resume_from_checkpoint=checkpoint(tmp_path / "run", 1))
    assert curves(trainer, 2)[0][3] == 0.1


def test_lost_window_is_a_warning(make_trainer, tmp_path):
    settings = {"steps_per_generation": 4, "save_strategy": "steps", "save_steps": 1}
    make_trainer(max_steps=1, **settings).train()
    (Path(checkpoint(tmp_path / "run", 1)) / "leash_rollouts_0.pt").unlink()
    with pytest.warns(UserWarning, match="does not fit here"):
        make_trainer(max_steps=2, **settings).train(resume_from_checkpoint=checkpoint(tmp_path / "run", 1))


@pytest.mark.parametrize(
    "change",
    [{"gradient_accumulation_steps": 2}, {"loss_type": "grpo"}, {"beta": 0.1}],
    ids=["windows", "loss", "reference"],
)
def test_a_window_arranged_for_something_else_is_not_trained_on(make_trainer, tmp_path, change):
    settings = {"steps_per_generation": 4, "per_device_train_batch_size": 4, "save_strategy": "steps", "save_steps": 1}
    make_trainer(max_steps=1, **settings).train()
    with pytest.warns(UserWarning, match="does not fit here"):
        make_trainer(max_steps=2, **settings, **change).train(resume_from_checkpoint=checkpoint(tmp_path / "run", 1))


def test_another_target_keeps_lambda_and_warns(make_trainer, tmp_path):
    first = make_trainer(max_steps=1, save_strategy="steps", save_steps=1)
    first.train()
    second = make_trainer(max_steps=2, target_length=10)
    with pytest.warns(UserWarning, match="trained for 12"):
        second.train(resume_from_checkpoint=checkpoint(tmp_path / "run", 1))
    assert curves(second, 2)[0][3] == first.length_control.lam


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


def test_resuming_from_a_bare_model_folder_restores_lambda(make_trainer, tmp_path):
    """What a clone of a Hub repository's root holds: model, tokenizer, lambda; no trainer state."""
    first = make_trainer(max_steps=1)
    first.train()
    first.save_model(str(tmp_path / "clone"))
    assert not (tmp_path / "clone" / "trainer_state.json").exists()
    second = make_trainer(max_steps=1)
    with pytest.warns(UserWarning, match="no optimizer state"):
        second.train(resume_from_checkpoint=str(tmp_path / "clone"))
    assert curves(second)[0][3] == first.length_control.lam


def test_a_checkpoint_that_was_being_saved_is_passed_over(make_trainer, tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 1}
    make_trainer(max_steps=2, **settings).train()
    (Path(checkpoint(tmp_path / "run", 2)) / "trainer_state.json").write_text('{"log_hist')
    whole = read_state(checkpoint(tmp_path / "run", 1))
    resumed = make_trainer(max_steps=2, **settings)
    resumed.train(resume_from_checkpoint=True)
    assert curves(resumed, 2)[0][3] == whole["controller"]["lambda"]


def test_resuming_from_a_checkpoint_that_was_being_saved_is_an_error(make_trainer, tmp_path):
    make_trainer(max_steps=1, save_strategy="steps", save_steps=1).train()
    (Path(checkpoint(tmp_path / "run", 1)) / "trainer_state.json").unlink()
    with pytest.raises(ValueError, match="is not whole"):
        make_trainer(max_steps=2).train(resume_from_checkpoint=checkpoint(tmp_path / "run", 1))
    with pytest.raises(ValueError, match="no checkpoint that is whole"):
        make_trainer(max_steps=2).train(resume_from_checkpoint=True)


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
    settings = {**batching, "max_steps": 9, "save_strategy": "steps", "save_steps": 4}
    interrupted = make_trainer(**settings)
    compute_loss, stopped = interrupted.compute_loss, []

    def interrupt_once(*args, **kwargs):
        if interrupted.state.global_step == 7 and not stopped:
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


def test_state_of_another_method_is_an_error(make_trainer, tmp_path):
    make_trainer(max_steps=1, save_strategy="steps", save_steps=1).train()
    write_state(checkpoint(tmp_path / "run", 1), {"method": "laser", "controller": {"lambda": 0.1}})
    with pytest.raises(ValueError, match="length control 'laser'"):
        make_trainer(max_steps=2).train(resume_from_checkpoint=checkpoint(tmp_path / "run", 1))


def test_rollouts_are_not_left_where_they_would_be_pushed(make_trainer, tmp_path):
    trainer = make_trainer(max_steps=1, steps_per_generation=4, save_strategy="steps", save_steps=1)
    trainer.train()
    trainer.save_model(_internal_call=True)  # as push_to_hub does
    assert not list((tmp_path / "run").glob("leash_rollouts*"))
    assert list((tmp_path / "run" / "checkpoint-1").glob("leash_rollouts*"))


@pytest.mark.parametrize("rows", [0, 1])
def test_data_for_no_step_are_an_error(make_trainer, problems, rows):
    data = problems.select(range(1)) if rows else Dataset.from_dict({"prompt": [], "solution": []})
    with pytest.raises(ValueError, match=f"{rows} rows, but one generation batch takes 2 prompts"):
        make_trainer(dataset=data).train()
