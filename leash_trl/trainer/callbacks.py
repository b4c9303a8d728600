"""Callbacks of `LeashGRPOTrainer`: when lambda moves, and where its curves and numbers show up."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from accelerate import Accelerator
from transformers import ProgressCallback, Trainer, TrainerCallback
from transformers.integrations import TensorBoardCallback
from trl.trainer.utils import RepeatSampler

from leash_trl.length_control.method import LengthControl
from leash_trl.trainer.completion_sample import completion_sample


SHOWN_BESIDE_THE_BAR = {
    "lambda": "leash/lambda",
    "length": "leash/mean_length",
    "accuracy": "leash/accuracy",
    "satisfied": "leash/satisfaction_rate",
}


class DualStepCallback(TrainerCallback):
    """Moves the method's state after the policy update, before anything is logged, evaluated or saved: the dual step.

    LEASH ignores steps without new completions, so lambda moves once per generation batch, even if several policy
    updates share the batch (`steps_per_generation`, `num_iterations`). If mixed precision skips a policy update
    because gradients overflowed, the dual step waits for the next update.

    Args:
        length_control (`LengthControl`):
            The method.
        accelerator (`Callable[[], Accelerator]`):
            Returns the trainer's accelerator, which knows whether the policy update was skipped.
    """

    def __init__(self, length_control: LengthControl, accelerator: Callable[[], Accelerator]):
        self._length_control = length_control
        self._accelerator = accelerator
        self._loss_scale = 1.0

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        """Notes the loss scale."""
        self._loss_scale = self._current_loss_scale()

    def on_step_end(self, args, state, control, **kwargs):
        """Moves the state unless the update was skipped."""
        # accelerate does not see that a fused optimizer skips by itself; the falling scale shows it
        has_overflowed = self._current_loss_scale() < self._loss_scale
        if not has_overflowed and not self._accelerator().optimizer_step_was_skipped:
            self._length_control.step()

    def _current_loss_scale(self) -> float:
        scaler = self._accelerator().scaler
        return 1.0 if scaler is None else scaler.get_scale()


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


class SamplerPlaceCallback(TrainerCallback):
    """Knows where the prompt sampler is: `epoch`, as [`EpochShuffleCallback`] reads it, and `micro_step` within it.

    TRL's own count of micro-steps does not say it: a second call of `train` starts the data anew but not the count,
    and a generation window that does not fit sets the count to 0 but not the data.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self.micro_step = 0
        self._num_skipped = 0

    def on_train_begin(self, args, state, control, train_dataloader=None, **kwargs):
        """Notes how many micro-steps of its first epoch a resumed run skips."""
        # TRL: transformers' Trainer._init_training_state counts them in the same way
        updates_per_epoch = max(1, math.ceil(len(train_dataloader) / args.gradient_accumulation_steps))
        num_updates = 0 if args.ignore_data_skip else state.global_step % updates_per_epoch
        self._num_skipped = num_updates * args.gradient_accumulation_steps

    def on_epoch_begin(self, args, state, control, **kwargs):
        """Starts to count anew."""
        self.epoch = int(state.epoch or 0)
        self.micro_step, self._num_skipped = self._num_skipped, 0

    def on_substep_end(self, args, state, control, **kwargs):
        """Counts a micro-step without a policy update."""
        self.micro_step += 1

    def on_step_end(self, args, state, control, **kwargs):
        """Counts a micro-step with a policy update."""
        self.micro_step += 1


def group_tensorboard_curves(trainer: Trainer) -> None:
    """Replaces transformers' TensorBoard callback by `LeashTensorBoardCallback`; a user's subclass of it stays."""
    for callback in trainer.callback_handler.callbacks:
        if type(callback) is TensorBoardCallback:
            trainer.remove_callback(callback)
            trainer.add_callback(LeashTensorBoardCallback(trainer._logs, callback.tb_writer))
            return


class LeashTensorBoardCallback(TensorBoardCallback):
    """TensorBoard as usual, with LEASH's curves in their own groups, `leash/...` and `eval_leash/...`. With
    `log_completions` it also shows a few completions of the last training batch as text, under `completions`.

    Args:
        completion_logs (`Mapping[str, Any]`):
            The completions that TRL logged, as [`completion_sample`] takes them.
        tb_writer (`torch.utils.tensorboard.SummaryWriter`, *optional*):
            As for [`~transformers.integrations.TensorBoardCallback`].
    """

    def __init__(self, completion_logs: Mapping[str, Any], tb_writer=None):
        super().__init__(tb_writer)
        self._completion_logs = completion_logs

    def on_log(self, args, state, control, logs=None, **kwargs):
        """Writes LEASH's curves under their own names and hands the rest to transformers."""
        ours = {key: value for key, value in logs.items() if key.startswith(("leash/", "eval_leash/"))}
        super().on_log(args, state, control, {k: v for k, v in logs.items() if k not in ours}, **kwargs)
        if self.tb_writer is None or not state.is_world_process_zero:
            return
        for key, value in ours.items():
            if value is not None:
                self.tb_writer.add_scalar(key, value, state.global_step)
        # only training rows have a loss: evaluation and the final summary have other keys
        if args.log_completions and "loss" in logs:
            self._add_completions(args.num_completions_to_print, state.global_step)
        self.tb_writer.flush()

    def _add_completions(self, count: int | None, step: int) -> None:
        if table := completion_sample(self._completion_logs, count):
            self.tb_writer.add_text("completions", table, step)


class LeashProgressCallback(ProgressCallback):
    """transformers' progress bar with lambda, mean length, accuracy and satisfaction rate beside it, in place of a
    dictionary of sixty numbers. `leash train` shows it; elsewhere `trainer.add_callback(LeashProgressCallback)` does,
    after `trainer.remove_callback(ProgressCallback)`.
    """

    def on_log(self, args, state, control, logs=None, **kwargs):
        """Shows the numbers beside the bar instead of printing the dictionary."""
        if not state.is_world_process_zero or self.training_bar is None:
            return
        values = {label: logs[key] for label, key in SHOWN_BESIDE_THE_BAR.items() if logs.get(key) is not None}
        if values:
            self.training_bar.set_postfix({label: f"{value:.4g}" for label, value in values.items()})
