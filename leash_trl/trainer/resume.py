"""Makes a resumed run repeat the uninterrupted one: where it begins, its order of epochs, and where it may save."""

import os
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate.logging import get_logger
from transformers import TrainerCallback
from trl.trainer.utils import RepeatSampler

from leash_trl.engines.checkpoint_path import length_control_state, read_recipe, whole_checkpoints
from leash_trl.hub.recipe import portable
from leash_trl.trainer.checkpoints import CannotStartError
from leash_trl.trainer.leash_grpo_config import LeashGRPOConfig


logger = get_logger(__name__)  # of the main process


def starting_point(
    requested: str | os.PathLike | bool | None, args: LeashGRPOConfig, recipe: Mapping[str, Any]
) -> Path | None:
    """The folder from which training continues; `None` for a new run. Logs, once, what differs or is missing there.

    Args:
        requested (`str`, `os.PathLike` or `bool`): `True` for the newest whole checkpoint in `output_dir`, or a
            folder.
        args ([`LeashGRPOConfig`]): Configuration of this run.
        recipe (`Mapping`): Recipe of this run, which is compared with that of the checkpoint.

    Raises:
        `CannotStartError`: If there is no such folder, it is incomplete, or holds no state of length control.
    """
    newest = next(whole_checkpoints(args.output_dir), None)
    if requested is None or requested is False:
        if newest is not None:
            logger.warning(
                "output_dir %s holds %s of an earlier run, which a later resume may take for one of this run; choose "
                "another output_dir, or set resume_from_checkpoint to true to go on from it",
                args.output_dir,
                newest.name,
            )
        return None
    folder = newest if requested is True else Path(str(requested))
    if folder is None or length_control_state(folder) is None:
        raise CannotStartError(
            f"resume_from_checkpoint is {str(requested)!r}, but {folder or args.output_dir} holds no whole checkpoint "
            f"with a state of length control (the newest one is {newest}); name another folder, or start a new run: "
            "leave it out, or pass the folder as the model"
        )
    if newest not in (None, folder) and folder.parent == newest.parent:
        logger.warning("%s lies beside %s: a later resume with true would go on from the former", newest, folder)
    for problem in _differences(folder, args, recipe):
        logger.warning("resuming from %s: %s", folder, problem)
    return folder


def _differences(folder: Path, args: LeashGRPOConfig, recipe: Mapping[str, Any]) -> Iterator[str]:
    """Why the resumed run will not repeat the uninterrupted one."""
    saved, now = read_recipe(folder), portable(recipe)
    changed = [
        f"{name} {textwrap.shorten(str(saved.get(name, 'default')), 60)} -> "
        f"{textwrap.shorten(str(now.get(name, 'default')), 60)}"
        for name in sorted(saved.keys() | now.keys())
        if saved.get(name) != now.get(name)
    ]
    has_optimizer = any(folder.glob("optimizer*")) or any(folder.glob("global_step*"))
    if changed:
        kept = "; learning_rate and what else the optimizer holds stay the checkpoint's" if has_optimizer else ""
        yield f"settings differ: {', '.join(changed)}{kept}"
    if not has_optimizer:
        yield "it holds no optimizer, which starts afresh, as do the random generators"
    elif (length_control_state(folder) or {}).get("is_inside_window"):
        yield "it was saved inside a generation window, whose completions are generated anew"
    if args.sync_ref_model:
        yield "sync_ref_model is True, but TRL saves no reference model: it starts again as the base model"


class WindowEndCallback(TrainerCallback):
    """Moves saving to the end of the generation window, since what is left of a window is not saved; with
    `load_best_model_at_end` the evaluation that goes with it, too. The end of training saves where it is.

    Args:
        is_inside_window (`Callable[[], bool]`): Whether completions of the window are still to be trained on.
    """

    def __init__(self, is_inside_window: Callable[[], bool]) -> None:
        self._is_inside_window = is_inside_window
        self._is_save_due = self._is_evaluation_due = False

    def on_step_end(self, args, state, control, **kwargs):
        """Holds back what is due, or lets go what was held back."""
        if not self._is_inside_window() or control.should_training_stop:
            control.should_save |= self._is_save_due
            control.should_evaluate |= self._is_evaluation_due
            self._is_save_due = self._is_evaluation_due = False
        elif control.should_save:
            self._is_save_due, control.should_save = True, False
            if args.load_best_model_at_end and control.should_evaluate:
                self._is_evaluation_due, control.should_evaluate = True, False


class EpochShuffleCallback(TrainerCallback):
    """Moves the prompt sampler's generator to where it stands at the start of the current epoch.

    Without it, a run resumed in a later epoch replays the first epoch's order: TRL seeds its `RepeatSampler` once,
    when it is made. In an uninterrupted run this changes nothing.
    """

    def on_epoch_begin(self, args, state, control, train_dataloader=None, **kwargs):
        """Replays the permutations of the epochs before this one."""
        batches: Any = getattr(train_dataloader, "batch_sampler", None)
        while hasattr(batches, "batch_sampler"):  # accelerate wraps it if there are several processes
            batches = batches.batch_sampler
        sampler = getattr(batches, "sampler", None)
        if not isinstance(sampler, RepeatSampler) or not sampler.shuffle:
            return
        # TRL: RepeatSampler.__iter__ draws one permutation per epoch from this generator
        sampler.generator.manual_seed(sampler.seed)
        for _ in range(int(state.epoch or 0)):
            torch.randperm(sampler.num_samples, generator=sampler.generator)
