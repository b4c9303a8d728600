"""A folder that cannot be locked, and no weights that are not finite over those that are."""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import TrainerCallback

from leash_trl.engines.checkpoint_path import read_trainer_state
from leash_trl.trainer.checkpoints import check_finite, only_run_in


def test_a_folder_that_cannot_be_locked_is_used_with_a_warning(tmp_path, monkeypatch, caplog):
    def no_locks(*arguments):
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    with only_run_in(tmp_path):
        pass
    assert str(tmp_path) in caplog.text


def test_weights_that_are_not_finite_are_named_with_what_is_left(tmp_path):
    model = torch.nn.Linear(2, 2)
    check_finite(model, 3, tmp_path)
    with torch.no_grad():
        model.weight[1, 1] = -float("inf")
    with pytest.raises(FloatingPointError, match="update 3"):
        check_finite(model, 3, tmp_path)
    (tmp_path / "checkpoint-2").mkdir()
    (tmp_path / "checkpoint-2" / "trainer_state.json").write_text(json.dumps({"global_step": 2}), encoding="utf-8")
    with pytest.raises(FloatingPointError, match="checkpoint-2"):
        check_finite(model, 3, tmp_path)
    model.weight.requires_grad = False  # not this run's doing
    check_finite(model, 3, tmp_path)


def test_one_bad_gradient_does_not_cost_the_last_good_checkpoint(make_trainer, tmp_path):
    class Spoiler(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
            if state.global_step == 2:
                next(model.parameters()).grad.fill_(float("nan"))

    saving = {"save_strategy": "steps", "save_steps": 1, "save_total_limit": 1, "max_grad_norm": 0.0}
    trainer = make_trainer(max_steps=4, callbacks=[Spoiler()], **saving)
    with pytest.raises(FloatingPointError, match="update 3"):
        trainer.train()
    folder = tmp_path / "run" / "checkpoint-2"
    assert all(weights.isfinite().all() for weights in load_file(folder / "model.safetensors").values())
    assert not (tmp_path / "run" / "checkpoint-3" / "trainer_state.json").exists()


def test_a_final_save_that_is_killed_leaves_no_state_of_older_weights(make_trainer, tmp_path, monkeypatch):
    trainer = make_trainer(max_steps=1)
    trainer.train()
    trainer.save_model()
    assert read_trainer_state(tmp_path / "run") is not None
    monkeypatch.setattr(trainer, "_save", lambda *args, **kwargs: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        trainer.save_model()
    assert read_trainer_state(tmp_path / "run") is None
