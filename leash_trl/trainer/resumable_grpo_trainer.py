"""`ResumableGRPOTrainer`: a `GRPOTrainer` whose runs resume exactly, with a controller's state in every checkpoint."""

import json
import logging
import os
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from leash_trl.checkpoints.completeness import (
    ENTROPY_FILE,
    REFERENCE_FILE,
    clear_checkpoint,
    fault_of_checkpoint,
    only_run_in,
)
from leash_trl.checkpoints.state_file import read_state, restore_method, write_state
from leash_trl.files import write_whole
from leash_trl.length_control.method import LengthControl
from leash_trl.microbatching.length_grouped_grpo_trainer import LengthGroupedGRPOTrainer
from leash_trl.trainer.callbacks import EpochShuffleCallback
from leash_trl.trainer.leash_grpo_config import LeashGRPOConfig
from leash_trl.trainer.run_settings import model_settings, run_settings
from leash_trl.trainer.starting_point import StartingPoint, agreed, starting_point


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
        self._record_of_weights: dict[str, Any] | None = None
        self._start = StartingPoint()
        self._model_settings = model_settings(self.accelerator.unwrap_model(self.model))

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
        folder = Path(output_dir or self.args.output_dir)
        is_step = folder.name == f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        is_checkpoint = _internal_call and is_step and folder != Path(self.args.output_dir)
        if is_checkpoint:
            if self.args.should_save:
                clear_checkpoint(folder)
            self.accelerator.wait_for_everyone()  # or a process would clear away what another has written
        super().save_model(output_dir, _internal_call)
        if is_checkpoint and not self.args.save_only_model:
            self._save_rollout_window(folder)
            self._save_entropy(folder)
            self._save_reference(folder)
        if self.args.should_save:
            names = (ENTROPY_FILE, REFERENCE_FILE) if is_checkpoint else ()
            files = [name for name in names if (folder / name).is_file()]
            write_state(folder, {**self._state_record(), **({"files": files} if files else {})})

    def _save_rng_state(self, output_dir):
        """Waits until all processes have saved their parts: transformers marks the checkpoint as whole next."""
        super()._save_rng_state(output_dir)
        self.accelerator.wait_for_everyone()

    def _save_entropy(self, folder: Path) -> None:
        # TRL: GRPOTrainer._save_checkpoint writes the same, but after the mark of wholeness and after the push
        if self.use_adaptive_entropy and self.args.should_save:
            state = {"entropy_coef": self.entropy_coef, "last_world_entropy": self._last_world_entropy}
            write_whole(folder / ENTROPY_FILE, json.dumps(state))

    def _save_reference(self, folder: Path) -> None:
        """Saves a reference model that moves (`sync_ref_model`), so that the KL term goes on from it."""
        if self.args.sync_ref_model and self.args.should_save and not self._is_sharded:
            torch.save(self.accelerator.unwrap_model(self.ref_model).state_dict(), folder / REFERENCE_FILE)

    def _restore_reference(self, folder: Path) -> None:
        if not self.args.sync_ref_model:
            return
        if not self._is_sharded and (folder / REFERENCE_FILE).is_file():
            weights = torch.load(folder / REFERENCE_FILE, map_location="cpu", weights_only=True)
            self.accelerator.unwrap_model(self.ref_model).load_state_dict(weights)
        elif self.accelerator.is_main_process:
            warnings.warn(
                f"sync_ref_model is True, but {folder} holds no {REFERENCE_FILE} that fits here (none is saved under "
                "DeepSpeed, FSDP and save_only_model): the reference starts again as the base model, so the KL term "
                "differs from an uninterrupted run's",
                UserWarning,
                stacklevel=2,
            )

    @property
    def _is_sharded(self) -> bool:
        return bool(self.is_deepspeed_enabled or self.is_fsdp_enabled)

    def _load_best_model(self):
        """Loads the state that belongs to the best weights too, so that what is saved at the end is of one step."""
        best, last_step = Path(self.state.best_model_checkpoint), self.state.global_step
        if (fault := agreed(self.accelerator, lambda: fault_of_checkpoint(best))) is not None:
            logger.warning("load_best_model_at_end: %s is not whole (%s); the last weights are kept", best, fault)
            if not best.is_dir():  # transformers compares it with other folders
                self.state.best_model_checkpoint = None
            return
        super()._load_best_model()
        try:
            record = read_state(best)
            restore_method(self.length_control, record, best)
        except ValueError as error:
            note = f"the weights are those of {best}, but the state of length control is that of step {last_step}"
            self._record_of_weights = {**self._state_record(), "note": note}
            logger.warning("load_best_model_at_end: %s (%s)", note, error)
            return
        self._record_of_weights = {name: value for name, value in record.items() if name != "files"}
        if self.accelerator.is_main_process and record.get("global_step") != last_step:
            logger.warning(
                "load_best_model_at_end: weights and state of length control are those of step %s (%s), not of step "
                "%s, the last",
                record.get("global_step"),
                best,
                last_step,
            )

    def _state_record(self) -> dict[str, Any]:
        if self._record_of_weights is not None:
            return self._record_of_weights
        return {
            "method": self.length_control.name,
            "controller": self.length_control.state_dict(),
            "target_length": self.args.target_length,
            "global_step": self.state.global_step,
            "counters": self._extra_state(),
            "micro_step": self._step,
            "batching": self._batching(),
            "settings": self._settings(),
        }

    def _settings(self) -> dict[str, Any]:
        return run_settings(self.args, self._model_settings, self.reward_func_names, self.train_dataset)

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
            self._restore_reference(Path(checkpoint))
            self._restore_rollout_window(Path(checkpoint), self._restore_controller(Path(checkpoint)))

    def train(self, resume_from_checkpoint: str | os.PathLike | bool | None = None, *args, **kwargs):
        """Resumes from the last checkpoint that is whole, and from a bare model folder such as a Hub root.

        See [`~leash_trl.trainer.starting_point.starting_point`]. No other run may use `output_dir` meanwhile.
        """
        self._record_of_weights = None
        with ExitStack() as stack:
            agreed(self.accelerator, lambda: stack.enter_context(only_run_in(self.args.output_dir)))
            self._start = agreed(
                self.accelerator,
                lambda: starting_point(resume_from_checkpoint, self.args, self._settings(), self._is_sharded),
            )
            folder = self._start.folder
            if folder is not None and not self._start.is_checkpoint:
                self._restore_bare_model(Path(folder))
                folder = None
            return super().train(folder, *args, **kwargs)

    def set_initial_training_values(self, *args, **kwargs):
        """Leaves no epoch to train where the checkpoint is the run's last, of which transformers would train a step
        more: only what comes at the end of training is left."""
        num_epochs, updates_per_epoch, *others, max_steps = super().set_initial_training_values(*args, **kwargs)
        if self._start.is_end(self.args, max_steps):
            num_epochs = max_steps // updates_per_epoch
        return num_epochs, updates_per_epoch, *others, max_steps

    def _restore_bare_model(self, folder: Path) -> None:
        """Weights and lambda of a folder without trainer state, which transformers would refuse."""
        self._restore_controller(folder)
        self._restore_reference(folder)
        self._load_from_checkpoint(str(folder))

    def _restore_controller(self, checkpoint: Path) -> dict[str, Any]:
        self._warn_about_partial_checkpoint(checkpoint)
        record = read_state(checkpoint)
        if "note" in record and self.accelerator.is_main_process:
            logger.warning("%s: %s", checkpoint, record["note"])
        restore_method(self.length_control, record, checkpoint)
        self._load_extra_state(record.get("counters", {}))
        self._check_resumed_target(record)
        return record

    def _warn_about_partial_checkpoint(self, checkpoint: Path) -> None:
        # DeepSpeed keeps its optimizer in global_step*/, FSDP in optimizer_*/ or optimizer.bin; none reads another's
        plain = "optimizer*" if self.is_fsdp_enabled else "optimizer.pt*"
        if not any(checkpoint.glob("global_step*" if self.is_deepspeed_enabled else plain)):
            warnings.warn(
                f"{checkpoint} holds no optimizer state that this run can read (saved with save_only_model, with "
                "DeepSpeed or FSDP where this run has neither, or the root of a Hub repository): weights and the "
                "state of length control are restored, the optimizer and the random generators start afresh"
                + ("" if self._start.is_checkpoint else ", and so do the steps and the schedule"),
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
