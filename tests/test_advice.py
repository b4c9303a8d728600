"""What to turn when something runs out: which phase an exception comes from, and the knobs with their values."""

import errno
import shutil
import traceback
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import parity_reward
from safetensors import SafetensorError
from transformers import Trainer
from transformers.training_args import OptimizerNames
from trl import GRPOTrainer

from leash_trl import LeashGRPOTrainer
from leash_trl.cli.errors import UserError, user_errors
from leash_trl.trainer.advice import PHASES, advice, advice_in, advise, free_bytes, is_out_of_space


CUDA = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB"
OUT_OF_MEMORY = torch.OutOfMemoryError(CUDA)
FULL = OSError(errno.ENOSPC, "No space left on device")
SHORT = {"max_completion_length": 4, "target_length": 2}


def exhausted(*args, **kwargs):
    raise torch.OutOfMemoryError(CUDA)


def advice_of(action, error=torch.OutOfMemoryError) -> str:
    with pytest.raises(error) as failure:
        action()
    assert len(failure.value.__notes__) == 1
    return advice_in(failure.value)


@pytest.mark.parametrize("name", PHASES)
def test_functions_that_tell_the_phase_are_there(name):
    owner, function = name.split(".")
    function = getattr({cls.__name__: cls for cls in (GRPOTrainer, Trainer, LeashGRPOTrainer)}[owner], function)
    assert function.__code__.co_qualname == name


def test_what_runs_out_outside_a_trainer_gets_no_advice(make_args):
    with pytest.raises(MemoryError) as failure, advise(make_args()):
        raise MemoryError
    assert advice_in(failure.value) is None


@pytest.mark.parametrize(
    ("message", "remedy"),
    [
        ("No available memory for the cache blocks", "raise vllm_gpu_memory_utilization (now 0.25)"),
        ("Free memory is less than desired GPU memory utilization", "lower vllm_gpu_memory_utilization (now 0.25)"),
    ],
)
def test_what_vllm_lacks_when_it_starts_names_its_share(make_args, message, remedy):
    args = make_args(vllm_gpu_memory_utilization=0.25)
    assert remedy in advice(ValueError(message), "starting", args)


def test_out_of_memory_while_generating_names_batch_and_limit(make_trainer, monkeypatch):
    trainer = make_trainer(steps_per_generation=2, gradient_accumulation_steps=2)
    monkeypatch.setattr(type(trainer.model), "generate", exhausted)
    text = advice_of(trainer.train)
    assert "Memory ran out while generating" in text
    assert "per_device_train_batch_size * steps_per_generation (now 8 * 2)" in text
    assert "max_completion_length (now 24)" in text
    assert "use_vllm: true" in text
    assert "leash plan --config" in text


def test_out_of_memory_in_the_loss_names_the_micro_batch(make_trainer, monkeypatch):
    trainer = make_trainer(gradient_accumulation_steps=2, **SHORT)
    monkeypatch.setattr(trainer.accelerator, "backward", exhausted)
    text = advice_of(trainer.train)
    assert "Memory ran out while computing the loss" in text
    assert "lower per_device_train_batch_size (now 8) and raise gradient_accumulation_steps (now 2)" in text
    assert "use_liger_kernel: true" in text
    assert "gradient_checkpointing" not in text, "it is on already"
    assert "use_peft: true" in text


def test_out_of_memory_in_the_optimizer_names_adapters_and_sharding(make_trainer, monkeypatch):
    trainer = make_trainer(**SHORT)
    monkeypatch.setattr(torch.optim.AdamW, "step", exhausted)
    text = advice_of(trainer.train)
    assert "Memory ran out while updating the weights" in text
    assert "use_peft: true" in text
    assert "recipes/accelerate" in text
    assert "optim is adamw_torch" in text


def test_out_of_memory_in_evaluation_names_its_batch(make_trainer, problems, monkeypatch):
    options = {"eval_strategy": "steps", "eval_on_start": True, "per_device_eval_batch_size": 4}
    trainer = make_trainer(eval_dataset=problems.select(range(4)), **options)
    monkeypatch.setattr(type(trainer.model), "generate", exhausted)
    assert "while evaluating: lower per_device_eval_batch_size (now 4)" in advice_of(trainer.train)


def test_out_of_memory_while_saving_is_no_matter_of_batches(make_trainer, monkeypatch):
    trainer = make_trainer(save_strategy="steps", save_steps=1, **SHORT)
    monkeypatch.setattr(type(trainer.model), "save_pretrained", exhausted)
    text = advice_of(trainer.train)
    assert "Memory ran out while saving" in text
    assert "batch" not in text


def test_a_model_that_does_not_fit_gets_advice(make_args, problems, tiny_model_path, monkeypatch):
    monkeypatch.setattr("trl.trainer.grpo_trainer.create_model_from_path", exhausted)
    text = advice_of(lambda: LeashGRPOTrainer(tiny_model_path, parity_reward, make_args(), train_dataset=problems))
    assert "while starting: load a smaller model" in text


def test_a_vllm_that_shares_the_gpu_is_part_of_the_advice(make_args):
    shared = make_args(use_vllm=True, vllm_mode="colocate", vllm_gpu_memory_utilization=0.3)
    knob = "lower vllm_gpu_memory_utilization (now 0.3); or set vllm_enable_sleep_mode: true"
    for phase in ("starting", "generating", "computing the loss"):
        assert knob in advice(OUT_OF_MEMORY, phase, shared)
    resting = make_args(use_vllm=True, vllm_mode="colocate", vllm_enable_sleep_mode=True)
    assert "vllm_enable_sleep_mode" not in advice(OUT_OF_MEMORY, "computing the loss", resting), "it is on already"
    server = make_args(use_vllm=True, vllm_mode="server")
    assert "vllm" not in advice(OUT_OF_MEMORY, "computing the loss", server)


@pytest.mark.parametrize("optim", ["adamw_torch", OptimizerNames.ADAMW_TORCH])
def test_an_optimizer_that_was_set_later_is_named_too(optim, make_args):
    args = make_args()
    args.optim = optim
    assert "(optim is adamw_torch)" in advice(MemoryError(), "saving", args)


def test_other_failures_pass_as_they_are_and_advice_is_given_once(make_args, make_trainer, monkeypatch):
    with pytest.raises(ValueError, match="a bug") as failure, advise(make_args()):
        raise ValueError("a bug")
    assert advice_in(failure.value) is None

    trainer = make_trainer(**SHORT)
    monkeypatch.setattr(torch.optim.AdamW, "step", exhausted)

    def nested():
        with advise(trainer.args):
            trainer.train()

    assert "while updating the weights" in advice_of(nested)


@pytest.mark.parametrize(
    "error",
    [
        FULL,
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 1093120 vs 1093008"),
        RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed"),
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
    ids=str,
)
def test_what_writers_raise_on_a_full_disk_is_known(error):
    assert is_out_of_space(error)
    assert not is_out_of_space(OSError(errno.EACCES, "Permission denied"))
    assert not is_out_of_space(RuntimeError("shape mismatch"))
    assert not is_out_of_space(TypeError("Unexpected positional argument: 'x'"))


def test_a_full_disk_names_what_is_free_the_last_checkpoint_and_how_to_go_on(make_trainer, monkeypatch):
    trainer = make_trainer(save_strategy="steps", save_steps=1, **SHORT)
    output_dir = Path(trainer.args.output_dir)
    save = torch.save

    def full(content, path, *args, **kwargs):
        if "checkpoint-2" in str(path):
            raise RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed")
        save(content, path, *args, **kwargs)

    monkeypatch.setattr(torch, "save", full)
    text = advice_of(trainer.train, RuntimeError)
    assert f"No space was left for output_dir {output_dir}, where " in text
    assert "MiB are free: delete what is not complete (checkpoint-2)" in text
    assert f"the last complete checkpoint is {output_dir / 'checkpoint-1'}, and resume_from_checkpoint: true" in text
    assert "save_total_limit (now None)" in text
    assert "save_only_model: true" in text


def test_without_checkpoints_nothing_is_to_be_deleted(make_args):
    text = advice(FULL, "saving", make_args(save_only_model=True))
    assert "holds no complete checkpoint" in text
    assert "delete" not in text
    assert "save_only_model" not in text, "it is set already"


def unknown(path):
    raise PermissionError(errno.EACCES, "Permission denied")


@pytest.mark.parametrize("usage", [unknown, lambda path: SimpleNamespace(total=0, free=0)], ids=["error", "nothing"])
def test_a_disk_of_unknown_size_has_no_free_bytes(usage, tmp_path, monkeypatch, make_args):
    assert free_bytes(tmp_path / "not" / "yet") > 0
    monkeypatch.setattr(shutil, "disk_usage", usage)
    assert free_bytes(tmp_path) is None
    assert "MiB are free" not in advice(FULL, "saving", make_args())


def test_advice_ends_a_traceback_and_is_one_line_on_the_command_line():
    error = ValueError("No available memory for the cache blocks.\nSee the manual")
    error.add_note("What to do: raise vllm_gpu_memory_utilization")
    assert traceback.format_exception(error)[-1].startswith("What to do: ")
    with pytest.raises(UserError) as failure, user_errors():
        raise error
    assert str(failure.value) == (
        "ValueError: No available memory for the cache blocks. raise vllm_gpu_memory_utilization"
    )
