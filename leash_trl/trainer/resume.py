"""Makes a resumed run equal the uninterrupted one: its checkpoint, its order of prompts, and the times of saves."""

import os
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate.logging import get_logger
from transformers import TrainerCallback
from trl.trainer.utils import RepeatSampler

from leash_trl.errors import TrainingError
from leash_trl.paths import existing_path
from leash_trl.run_folder import complete_checkpoints, length_control_state, read_saved_recipe
from leash_trl.saved_recipe import differing_names, portable_recipe
from leash_trl.trainer.leash_grpo_config import LeashGRPOConfig


logger = get_logger(__name__)  # logs on the main process only


def folder_to_resume(
    requested: str | os.PathLike | bool | None, args: LeashGRPOConfig, recipe: Mapping[str, Any]
) -> Path | None:
    """Returns the folder from which training resumes, or `None` for a new run, and warns of settings that differ from
    the checkpoint's and of state that it lacks.

    Args:
        requested (`str`, `os.PathLike` or `bool`): `True` for the newest complete checkpoint in `output_dir`, or the
            path of a folder; `None` or `False` for a new run.
        args ([`LeashGRPOConfig`]): Configuration of this run.
        recipe (`Mapping`): Recipe of this run, to compare with the checkpoint's.

    Raises:
        `ValueError`: If there is no such folder.
        `TrainingError`: If there is no complete checkpoint, or the folder holds no state of length control.
    """
    newest = next(complete_checkpoints(args.output_dir), None)  # they come with the newest first
    if requested is None or requested is False:
        if newest is not None:
            _warn_of_earlier_run(newest)
        return None
    folder = newest if requested is True else Path(existing_path(requested, "resume_from_checkpoint"))
    # There is no checkpoint at all, or one whose trainer state was not written by length control.
    if folder is None or length_control_state(folder) is None:
        raise TrainingError(
            f"resume_from_checkpoint is {str(requested)!r}, but {folder or args.output_dir} holds no complete "
            "checkpoint of a run with length control; name the folder of another checkpoint, or remove "
            "resume_from_checkpoint to start a new run"
        )
    for difference in _difference_messages(folder, args, recipe):
        logger.warning("resuming from %s: %s", folder, difference)
    return folder


def _warn_of_earlier_run(checkpoint: Path) -> None:
    """Warns that a new run begins in a folder that holds this checkpoint of another one."""
    logger.warning(
        "output_dir %s holds %s of an earlier run, which resume_from_checkpoint=true may later confuse with those of "
        "this run; choose another output_dir, or set resume_from_checkpoint=true now to resume it",
        checkpoint.parent,
        checkpoint.name,
    )


def _difference_messages(folder: Path, args: LeashGRPOConfig, recipe: Mapping[str, Any]) -> list[str]:
    """Returns the reasons why the resumed run will not equal the uninterrupted one."""
    differences = []
    # transformers and accelerate save optimizer.pt or optimizer.bin, DeepSpeed a folder such as global_step100.
    has_optimizer = any(folder.glob("optimizer*")) or any(folder.glob("global_step*"))
    settings = ", ".join(_changed_settings(read_saved_recipe(folder), portable_recipe(recipe)))
    if settings:
        differences.append(
            f"settings differ: {settings}; learning_rate and other settings of an optimizer that the checkpoint holds "
            "stay as they were"
        )
    if not has_optimizer:
        differences.append("it holds no optimizer state, so the optimizer and the random generators start anew")
    if args.sync_ref_model:
        differences.append(
            "sync_ref_model is True, but TRL saves no reference model, so the base model becomes the reference again"
        )
    return differences


def _changed_settings(saved: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """Returns the settings that differ between two recipes, with both values, shortened to 60 characters."""
    changed = []
    # A recipe leaves out the settings that have their default.
    for name in differing_names(saved, current):
        before = textwrap.shorten(str(saved.get(name, "default")), 60)
        after = textwrap.shorten(str(current.get(name, "default")), 60)
        changed.append(f"{name} {before} -> {after}")
    return changed


class WindowEndCallback(TrainerCallback):
    """Postpones saving until all updates on a generation batch are done.

    Checkpoints do not contain completions that are still to be trained on, so a run resumed from one saved earlier
    would differ. With `load_best_model_at_end`, the evaluation is postponed too. When training ends, the checkpoint is
    saved at once.

    Args:
        has_untrained_completions (`Callable[[], bool]`): Returns whether completions of the generation batch are still
            to be trained on.
    """

    def __init__(self, has_untrained_completions: Callable[[], bool]) -> None:
        self._has_untrained_completions = has_untrained_completions
        self._is_save_due = False
        self._is_evaluation_due = False

    def on_step_end(self, args, state, control, **kwargs):
        """Postpones a save that is due, or makes a postponed one due."""
        # Postponed saves and evaluations are added to what transformers itself wants to do at this step.
        if not self._has_untrained_completions() or control.should_training_stop:
            control.should_save |= self._is_save_due
            control.should_evaluate |= self._is_evaluation_due
            self._is_save_due = False
            self._is_evaluation_due = False
        elif control.should_save:
            control.should_save = False
            self._is_save_due = True
            # transformers finds the best checkpoint only if it was saved at the step of its evaluation.
            if args.load_best_model_at_end and control.should_evaluate:
                control.should_evaluate = False
                self._is_evaluation_due = True


class EpochShuffleCallback(TrainerCallback):
    """Sets the random generator of the prompt sampler to its state at the start of the current epoch.

    Without this callback, a run resumed in a later epoch would use the first epoch's order again, since TRL seeds its
    `RepeatSampler` only when it is created. In an uninterrupted run, the callback changes nothing.
    """

    def on_epoch_begin(self, args, state, control, train_dataloader=None, **kwargs):
        """Draws again the permutations of all earlier epochs."""
        # With several processes, accelerate wraps the batch sampler, which has TRL's sampler of prompts.
        batches: Any = getattr(train_dataloader, "batch_sampler", None)
        while hasattr(batches, "batch_sampler"):
            batches = batches.batch_sampler
        sampler = getattr(batches, "sampler", None)
        if not isinstance(sampler, RepeatSampler) or not sampler.shuffle:
            return
        # TRL: RepeatSampler.__iter__ draws one permutation per epoch from this generator; those of the past epochs are
        # drawn again, only to bring the generator to where it was
        sampler.generator.manual_seed(sampler.seed)
        num_past_epochs = int(state.epoch or 0)  # state.epoch is a float, and None before training
        for _ in range(num_past_epochs):
            torch.randperm(sampler.num_samples, generator=sampler.generator)
