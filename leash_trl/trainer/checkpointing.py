"""Saves and restores what a checkpoint of `LeashGRPOTrainer` needs beyond TRL's files to resume a run exactly.

Beside the weights lie `leash_state.json` (state of length control, counters, settings of the run), the completions of
an unfinished generation window, one file per process, and the reference model if it moves.
"""

import dataclasses
import json
import logging
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from leash_trl.checkpoints.completeness import ENTROPY_FILE, REFERENCE_FILE, fault_of_checkpoint
from leash_trl.checkpoints.state_file import read_state, restore_method, write_state
from leash_trl.files import write_whole
from leash_trl.trainer.dynamic_sampling import StreamPosition
from leash_trl.trainer.starting_point import agreed


if TYPE_CHECKING:
    from leash_trl.trainer.leash_grpo_trainer import LeashGRPOTrainer


logger = logging.getLogger(__name__)

# these must be unchanged for a saved generation window to fit
BATCHING = ("per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation")


def state_record(trainer: "LeashGRPOTrainer") -> dict[str, Any]:
    """The content of `leash_state.json` for a trainer as it is now."""
    return {
        "method": trainer.length_control.name,
        "controller": trainer.length_control.state_dict(),
        "target_length": trainer.args.target_length,
        "global_step": trainer.state.global_step,
        "counters": {
            "generated_tokens": trainer.generated_tokens,
            "prompts_drawn": dataclasses.asdict(trainer.prompt_stream.position),
            **(
                {"signal_record": trainer.signal_record.state_dict()}
                if trainer.args.dynamic_sampling_oversample
                else {}
            ),
        },
        "micro_step": trainer._step,
        "batching": _batching(trainer),
        "settings": trainer.run_settings,
    }


def _batching(trainer: "LeashGRPOTrainer") -> dict[str, Any]:
    return {
        "num_processes": trainer.accelerator.num_processes,
        **{name: getattr(trainer.args, name) for name in BATCHING},
        "loss_type": trainer.loss_type,
        "has_reference": trainer.beta != 0.0,
        "num_iterations": trainer.num_iterations,
    }


def _is_window_used_up(trainer: "LeashGRPOTrainer") -> bool:
    # TRL: GRPOTrainer._prepare_inputs generates when this is 0 and reads its buffer otherwise
    return trainer._step % (trainer.args.steps_per_generation * trainer.num_iterations) == 0


def _window_file(process: int) -> str:
    return f"leash_rollouts_{process}.pt"


def is_sharded(trainer: "LeashGRPOTrainer") -> bool:
    """Whether DeepSpeed or FSDP share weights between processes."""
    return bool(trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled)


def save_beside_weights(
    trainer: "LeashGRPOTrainer", folder: Path, record: dict[str, Any], is_checkpoint: bool
) -> None:
    """Saves what transformers does not save, before it marks the checkpoint as complete and pushes it.

    Args:
        trainer ([`LeashGRPOTrainer`]):
            The trainer, on every process.
        folder (`Path`):
            Where the weights are.
        record (`dict`):
            From [`state_record`].
        is_checkpoint (`bool`):
            Whether training can resume from this folder; a model alone only gets the record.
    """
    files = []
    if is_checkpoint and not trainer.args.save_only_model:
        if not _is_window_used_up(trainer):
            folder.mkdir(parents=True, exist_ok=True)
            torch.save(trainer._buffered_inputs, folder / _window_file(trainer.accelerator.process_index))
        if trainer.use_adaptive_entropy:
            _save_entropy(trainer, folder)
            files.append(ENTROPY_FILE)
        if trainer.args.sync_ref_model and not is_sharded(trainer):
            if trainer.args.should_save:
                weights = trainer.accelerator.unwrap_model(trainer.ref_model).state_dict()
                torch.save(weights, folder / REFERENCE_FILE)
            files.append(REFERENCE_FILE)
    if trainer.args.should_save:
        write_state(folder, {**record, **({"files": files} if files else {})})


def _save_entropy(trainer: "LeashGRPOTrainer", folder: Path) -> None:
    # TRL: GRPOTrainer._save_checkpoint writes the same, but after the mark of completeness and after the push
    if trainer.args.should_save:
        state = {"entropy_coef": trainer.entropy_coef, "last_world_entropy": trainer._last_world_entropy}
        write_whole(folder / ENTROPY_FILE, json.dumps(state))


def restore(trainer: "LeashGRPOTrainer", folder: Path, is_checkpoint: bool) -> None:
    """Restores what [`save_beside_weights`] saved.

    Args:
        trainer ([`LeashGRPOTrainer`]):
            The trainer, on every process.
        folder (`Path`):
            Where it was saved.
        is_checkpoint (`bool`):
            Whether transformers loads the weights; those of a bare model folder are loaded here.

    Raises:
        `ValueError`: If the folder was saved by another method, or its state is missing or damaged.
    """
    _warn_without_optimizer(trainer, folder, is_checkpoint)
    record = read_state(folder)
    if "note" in record and trainer.accelerator.is_main_process:
        logger.warning("%s: %s", folder, record["note"])
    restore_method(trainer.length_control, record, folder)
    try:
        _restore_counters(trainer, record.get("counters", {}))
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"cannot resume from {folder}: the counters in its state are damaged ({error})") from error
    _warn_about_other_target(trainer, record)
    _restore_reference(trainer, folder)
    if is_checkpoint:
        _restore_window(trainer, folder, record)
    else:
        trainer._load_from_checkpoint(str(folder))


def _restore_counters(trainer: "LeashGRPOTrainer", counters: dict[str, Any]) -> None:
    trainer.generated_tokens = int(counters.get("generated_tokens", 0))
    drawn = counters.get("prompts_drawn", 0)
    # earlier versions counted the prompts drawn from the end of the first epoch
    position = drawn if isinstance(drawn, dict) else {"from_end": drawn}
    trainer.prompt_stream.position = StreamPosition(**{name: int(count) for name, count in position.items()})
    trainer.signal_record.load_state_dict(counters.get("signal_record", {}))


def _warn_without_optimizer(trainer: "LeashGRPOTrainer", folder: Path, is_checkpoint: bool) -> None:
    # DeepSpeed keeps its optimizer in global_step*/, FSDP in optimizer_*/ or optimizer.bin; none reads another's
    plain = "optimizer*" if trainer.is_fsdp_enabled else "optimizer.pt*"
    if not any(folder.glob("global_step*" if trainer.is_deepspeed_enabled else plain)):
        warnings.warn(
            f"{folder} holds no optimizer state that this run can read (saved with save_only_model, with DeepSpeed or "
            "FSDP where this run has neither, or the root of a Hub repository): weights and the state of length "
            "control are restored, the optimizer and the random generators start afresh"
            + ("" if is_checkpoint else ", and so do the steps and the schedule"),
            UserWarning,
            stacklevel=2,
        )


def _warn_about_other_target(trainer: "LeashGRPOTrainer", record: dict[str, Any]) -> None:
    if (saved := record.get("target_length")) not in (None, trainer.args.target_length):
        warnings.warn(
            f"resuming with target_length={trainer.args.target_length}, but the checkpoint was trained for {saved}; "
            "the state of length control is kept",
            UserWarning,
            stacklevel=2,
        )


def _restore_reference(trainer: "LeashGRPOTrainer", folder: Path) -> None:
    if not trainer.args.sync_ref_model:
        return
    if not is_sharded(trainer) and (folder / REFERENCE_FILE).is_file():
        weights = torch.load(folder / REFERENCE_FILE, map_location="cpu", weights_only=True)
        trainer.accelerator.unwrap_model(trainer.ref_model).load_state_dict(weights)
    elif trainer.accelerator.is_main_process:
        warnings.warn(
            f"sync_ref_model is True, but {folder} holds no {REFERENCE_FILE} that fits here (none is saved under "
            "DeepSpeed, FSDP and save_only_model): the reference starts again as the base model, so the KL term "
            "differs from an uninterrupted run's",
            UserWarning,
            stacklevel=2,
        )


def _restore_window(trainer: "LeashGRPOTrainer", folder: Path, record: dict[str, Any]) -> None:
    # Do not train on what an interrupted call of `train` on this trainer left behind.
    trainer._step, trainer._buffered_inputs = record.get("micro_step", 0), None
    trainer._metrics["train"].clear()
    if _is_window_used_up(trainer):
        return
    path = folder / _window_file(trainer.accelerator.process_index)
    fits = path.is_file() and record.get("batching") == _batching(trainer)
    # All processes decide alike: one that generates while the others do not would wait for them for ever.
    if trainer.accelerator.gather(torch.tensor([fits], device=trainer.accelerator.device)).all():
        # not accelerator.device: with several CPU processes it is cpu:0, which torch.load rejects
        device = "cpu" if trainer.accelerator.device.type == "cpu" else trainer.accelerator.device
        trainer._buffered_inputs = torch.load(path, map_location=device, weights_only=True)
        return
    trainer._step = 0
    warnings.warn(
        f"{folder} was saved inside a generation window that does not fit here (it was made with "
        f"{record.get('batching')}, this run has {_batching(trainer)}, or files are missing): completions are "
        "generated anew, so the run differs from an uninterrupted one. Save at multiples of steps_per_generation "
        "* num_iterations / gradient_accumulation_steps to avoid this.",
        UserWarning,
        stacklevel=2,
    )


def is_best_loadable(trainer: "LeashGRPOTrainer") -> bool:
    """Whether the best model's checkpoint is complete; if not, the last weights are kept, and a warning says so."""
    best = Path(trainer.state.best_model_checkpoint)
    if (fault := agreed(trainer.accelerator, lambda: fault_of_checkpoint(best))) is None:
        return True
    logger.warning("load_best_model_at_end: %s is not complete (%s); the last weights are kept", best, fault)
    if not best.is_dir():  # transformers compares it with other folders
        trainer.state.best_model_checkpoint = None
    return False


def record_of_best(trainer: "LeashGRPOTrainer") -> dict[str, Any]:
    """Restores length control to its state at the best weights, which are loaded.

    Returns:
        `dict`: The content of `leash_state.json` for these weights; with a note if their state is not known.
    """
    best, last_step = Path(trainer.state.best_model_checkpoint), trainer.state.global_step
    try:
        record = read_state(best)
        restore_method(trainer.length_control, record, best)
    except ValueError as error:
        note = f"the weights are those of {best}, but the state of length control is that of step {last_step}"
        logger.warning("load_best_model_at_end: %s (%s)", note, error)
        return {**state_record(trainer), "note": note}
    if trainer.accelerator.is_main_process and record.get("global_step") != last_step:
        logger.warning(
            "load_best_model_at_end: weights and state of length control are those of step %s (%s), not of step %s, "
            "the last",
            record.get("global_step"),
            best,
            last_step,
        )
    return {name: value for name, value in record.items() if name != "files"}
