"""`ResumableGRPOTrainer`: a `GRPOTrainer` whose runs resume exactly, with a controller's state in every checkpoint."""

import logging
import warnings
from pathlib import Path
from typing import Any

import torch
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from leash_trl.callbacks import EpochShuffleCallback
from leash_trl.controller_state import (
    TRAINER_STATE_FILE,
    is_whole,
    last_whole_checkpoint,
    read_state,
    restore_method,
    write_state,
)
from leash_trl.leash_grpo_config import LeashGRPOConfig
from leash_trl.length_control.method import LengthControl
from leash_trl.length_grouped_grpo_trainer import LengthGroupedGRPOTrainer


logger = logging.getLogger(__name__)


class ResumableGRPOTrainer(LengthGroupedGRPOTrainer):
    """`GRPOTrainer` that saves and restores what TRL does not: the state of length control, the completions of an
    unfinished generation window, and the order of later epochs.

    A run that is killed and resumed repeats the uninterrupted run to the last bit, with one process and transformers
    generation. Subclasses set `length_control` after `super().__init__`.
    """

    args: LeashGRPOConfig
    length_control: LengthControl

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._epoch_shuffle = EpochShuffleCallback()
        self.add_callback(self._epoch_shuffle)

    def _extra_state(self) -> dict[str, int]:
        """Further counters of a subclass that a checkpoint must hold."""
        return {}

    def _load_extra_state(self, state: dict[str, int]) -> None:
        """Takes over what `_extra_state` gave."""

    def _get_train_sampler(self, dataset=None):
        """Keeps hold of TRL's sampler, so that a resumed run can go on with its epoch's order."""
        sampler = super()._get_train_sampler(dataset)
        self._epoch_shuffle.sampler = sampler
        return sampler

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False):
        """Saves the controller's state beside the weights, before a checkpoint is pushed to the Hub."""
        super().save_model(output_dir, _internal_call)
        folder = Path(output_dir or self.args.output_dir)
        if _internal_call and folder.name.startswith(PREFIX_CHECKPOINT_DIR) and not self.args.save_only_model:
            self._save_rollout_window(folder)
        if self.args.should_save:
            write_state(folder, self._state_record())

    def _state_record(self) -> dict[str, Any]:
        return {
            "method": self.length_control.name,
            "controller": self.length_control.state_dict(),
            "target_length": self.args.target_length,
            "global_step": self.state.global_step,
            "counters": self._extra_state(),
            "micro_step": self._step,
            "batching": self._batching(),
        }

    def _batching(self) -> dict[str, Any]:
        """What must be unchanged for a saved generation window to fit."""
        return {
            "num_processes": self.accelerator.num_processes,
            "per_device_train_batch_size": self.args.per_device_train_batch_size,
            "gradient_accumulation_steps": self.args.gradient_accumulation_steps,
            "steps_per_generation": self.args.steps_per_generation,
            "loss_type": self.loss_type,
            "has_reference": self.beta != 0.0,
            "num_iterations": self.num_iterations,
        }

    def _rollout_window_path(self, folder: Path) -> Path:
        return folder / f"leash_rollouts_{self.accelerator.process_index}.pt"

    def _save_rollout_window(self, folder: Path) -> None:
        """Saves the completions that are still to be trained on, so that a resumed run need not generate others."""
        # TRL: GRPOTrainer._prepare_inputs generates when this is 0 and reads its buffer otherwise
        if self._step % (self.args.steps_per_generation * self.num_iterations) != 0:
            folder.mkdir(parents=True, exist_ok=True)
            torch.save(self._buffered_inputs, self._rollout_window_path(folder))

    def _load_optimizer_and_scheduler(self, checkpoint):
        """Restores the controller, and where in a generation window the checkpoint was taken."""
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            self._restore_rollout_window(Path(checkpoint), self._restore_controller(Path(checkpoint)))

    def train(self, resume_from_checkpoint: str | bool | None = None, *args, **kwargs):
        """Resumes from the last checkpoint that is whole, and from a bare model folder such as a Hub root."""
        if resume_from_checkpoint is True:
            resume_from_checkpoint = str(last_whole_checkpoint(self.args.output_dir))
        elif isinstance(resume_from_checkpoint, str) and not is_whole(folder := Path(resume_from_checkpoint)):
            self._restore_bare_model(folder)
            resume_from_checkpoint = None
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def _restore_bare_model(self, folder: Path) -> None:
        """Weights and lambda of a folder without trainer state, which transformers would refuse."""
        if folder.name.startswith(PREFIX_CHECKPOINT_DIR):
            raise ValueError(f"{folder} is not whole, its run was stopped while saving it; take an earlier one")
        if self.is_deepspeed_enabled or self.is_fsdp_enabled:
            raise ValueError(
                f"{folder} holds no {TRAINER_STATE_FILE}; under DeepSpeed and FSDP pass it as the model instead"
            )
        self._restore_controller(folder)
        self._load_from_checkpoint(str(folder))

    def _restore_controller(self, checkpoint: Path) -> dict[str, Any]:
        self._warn_about_partial_checkpoint(checkpoint)
        record = read_state(checkpoint)
        restore_method(self.length_control, record, checkpoint)
        self._load_extra_state(record.get("counters", {}))
        self._check_resumed_target(record)
        return record

    def _warn_about_partial_checkpoint(self, checkpoint: Path) -> None:
        # DeepSpeed keeps its optimizer in global_step*/, FSDP in optimizer_*/
        if not any([*checkpoint.glob("optimizer*"), *checkpoint.glob("global_step*")]):
            warnings.warn(
                f"{checkpoint} holds no optimizer state (saved with save_only_model, or the root of a Hub "
                "repository): weights and the state of length control are restored, the optimizer and the random "
                "generators start afresh" + ("" if is_whole(checkpoint) else ", and so do the steps and the schedule"),
                UserWarning,
                stacklevel=2,
            )

    def _check_resumed_target(self, record: dict[str, Any]) -> None:
        if (saved := record.get("target_length")) not in (None, self.args.target_length):
            warnings.warn(
                f"resuming with target_length={self.args.target_length}, but the checkpoint was trained for {saved}; "
                "the state of length control is kept",
                UserWarning,
                stacklevel=2,
            )

    def _restore_rollout_window(self, checkpoint: Path, record: dict[str, Any]) -> None:
        # What an interrupted call of `train` on this trainer has left must not be trained on.
        self._step, self._buffered_inputs = record.get("micro_step", 0), None
        self._metrics["train"].clear()
        if self._step % (self.args.steps_per_generation * self.num_iterations) == 0:
            return
        path = self._rollout_window_path(checkpoint)
        fits = path.is_file() and record.get("batching") == self._batching()
        # One process that generates while the others do not would wait for them for ever.
        if self.accelerator.gather(torch.tensor([fits], device=self.accelerator.device)).all():
            # not accelerator.device: with several CPU processes it is cpu:0, which torch.load does not know
            device = "cpu" if self.accelerator.device.type == "cpu" else self.accelerator.device
            self._buffered_inputs = torch.load(path, map_location=device, weights_only=True)
            return
        self._step = 0
        warnings.warn(
            f"{checkpoint} was saved inside a generation window that does not fit here (it was made with "
            f"{record.get('batching')}, this run has {self._batching()}, or files are missing): completions are "
            "generated anew, so the run differs from an uninterrupted one. Save at multiples of steps_per_generation "
            "* num_iterations / gradient_accumulation_steps to avoid this.",
            UserWarning,
            stacklevel=2,
        )
