"""Decides where training begins: at the start, at a checkpoint, or after the last step; refuses what cannot work."""

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from leash_trl.checkpoints.completeness import (
    TRAINER_STATE_FILE,
    CannotStartError,
    check_is_there,
    fault_of_checkpoint,
    is_bare,
    last_whole_checkpoint,
    problem_of_used_folder,
    read_trainer_state,
)
from leash_trl.checkpoints.state_file import read_state
from leash_trl.trainer.leash_grpo_config import LeashGRPOConfig
from leash_trl.trainer.run_settings import ONLY_SAID, differences


logger = logging.getLogger(__name__)
T = TypeVar("T")


class StartingPoint(NamedTuple):
    """Where training begins.

    Args:
        folder (`str`, *optional*):
            Checkpoint or model folder; `None` for a new run.
        is_checkpoint (`bool`, *optional*, defaults to `False`):
            Whether the folder also holds the trainer's state.
        steps (`int`, *optional*, defaults to 0):
            Policy updates done so far.
    """

    folder: str | None = None
    is_checkpoint: bool = False
    steps: int = 0

    def is_end(self, args: LeashGRPOConfig, max_steps: int) -> bool:
        """Whether nothing is left to train in a run of `max_steps` updates.

        Raises:
            `CannotStartError`: If the checkpoint has more updates than the run.
        """
        if not self.steps or self.steps < max_steps:
            return False
        field = "max_steps" if args.max_steps > 0 else "num_train_epochs"
        limit = f"{field}={getattr(args, field)}"
        if self.steps > max_steps:
            raise CannotStartError(f"{self.folder} is beyond {limit}, or {max_steps} steps; raise it to go on")
        if args.process_index == 0:
            logger.warning("%s has reached %s: nothing is left to train", self.folder, limit)
        return True


def agreed(accelerator: Accelerator, find: Callable[[], T]) -> T:
    """What the main process finds, on all processes, so that all go the same way and none waits for the others.

    Raises:
        `CannotStartError`: On all processes, if the main one raises anything.
    """
    found: list[Any] = [None, None]
    if accelerator.is_main_process:
        try:
            found[0] = find()
        except Exception as error:  # catch all: the other processes wait in the broadcast
            found[1] = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    result, problem = broadcast_object_list(found)
    if problem is not None:
        raise CannotStartError(problem)
    return result


def starting_point(
    requested: str | os.PathLike | bool | None, args: LeashGRPOConfig, settings: Mapping[str, Any], is_sharded: bool
) -> StartingPoint:
    """The place that `resume_from_checkpoint` means.

    `True` continues the run in `output_dir`, which must have the same settings. From a named checkpoint, training
    continues with the settings of this run, and a warning says what differs.

    Args:
        requested (`str`, `os.PathLike` or `bool`, *optional*):
            As for [`~transformers.Trainer.train`], or a bare model folder with the state of length control.
        args ([`LeashGRPOConfig`]):
            Configuration of this run.
        settings (`Mapping`):
            From [`~leash_trl.trainer.run_settings.run_settings`].
        is_sharded (`bool`):
            Whether DeepSpeed or FSDP share weights between processes; they cannot load a bare folder.

    Raises:
        `ValueError`: If there is no such place, it is incomplete, or it belongs to another run.
    """
    if requested is None or requested is False:
        if (problem := problem_of_used_folder(args.output_dir)) is not None:
            logger.warning("%s", problem)
        return StartingPoint()
    is_named = requested is not True
    folder = last_whole_checkpoint(args.output_dir) if requested is True else Path(requested)
    if is_named:
        check_is_there(folder, args.output_dir)
    if is_named and (fault := fault_of_checkpoint(folder)) is not None:
        if folder.name.startswith(PREFIX_CHECKPOINT_DIR) or not is_bare(folder):
            raise CannotStartError(f"{folder} is not complete ({fault}); take an earlier one")
        if is_sharded:
            raise CannotStartError(
                f"{folder} holds no {TRAINER_STATE_FILE}; under DeepSpeed and FSDP pass it as the model instead"
            )
        return StartingPoint(str(folder))
    _check_settings(folder, settings, is_named)
    steps = (read_trainer_state(folder) or {}).get("global_step", 0)
    return StartingPoint(str(folder), is_checkpoint=True, steps=steps)


def _check_settings(checkpoint: Path, settings: Mapping[str, Any], is_named: bool) -> None:
    saved = read_state(checkpoint).get("settings")  # older checkpoints have none
    if saved is None or not (found := differences(saved, settings)):
        return
    changed = ", ".join(f"{name} {change}" for name, change in found.items())
    if not is_named and found.keys() - ONLY_SAID:
        raise CannotStartError(
            f"cannot resume: {checkpoint} was trained with other settings: {changed}; set them back, choose another "
            f"output_dir for a run of its own, or name the checkpoint (resume_from_checkpoint: {checkpoint}) to go on "
            "from it with these"
        )
    logger.warning("%s was trained with other settings, and goes on with those of this run: %s", checkpoint, changed)
