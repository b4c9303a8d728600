"""Callbacks: when the method's state moves, in any trainer of TRL, and where its curves and numbers show up."""

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal

from accelerate.optimizer import AcceleratedOptimizer
from accelerate.utils import gather_object
from transformers import ProgressCallback, Trainer, TrainerCallback
from transformers.integrations import TensorBoardCallback
from trl import GRPOConfig, RLOOConfig

from leash_trl.engines.eos import eos_token_ids
from leash_trl.length_control.method import LengthControl
from leash_trl.trainer.length_controlled_reward import (
    RULE,
    LengthControlledReward,
    RunSettings,
    Scored,
    logged,
    pooled,
)


STATE_ENTRY = "LengthControl"  # in `state.stateful_callbacks`

SHOWN_BESIDE_THE_BAR = {
    "lambda": "leash/lambda",
    "length": "leash/mean_length",
    "accuracy": "leash/accuracy",
    "satisfied": "leash/satisfaction_rate",
}


class DualStepCallback(TrainerCallback):
    """Moves the method's state after each policy update, before anything is logged, evaluated or saved: the dual step.

    LEASH ignores updates without new completions, so lambda moves once per generation batch, even if several updates
    share the batch (`steps_per_generation`, `num_iterations`). If mixed precision skips an update because gradients
    overflowed, the dual step waits for the next. The state lies in `state.stateful_callbacks["LengthControl"]`, which
    transformers saves in `trainer_state.json`, and comes back from there when a run is resumed.

    Args:
        method (`LengthControl`):
            The method.
        target_length (`float`, *optional*):
            The configured target in tokens, which a resumed run should share.
        extra (`Callable[[], dict]`, *optional*):
            Gives what else to save, in types of JSON.
    """

    def __init__(
        self,
        method: LengthControl,
        target_length: float | None = None,
        extra: Callable[[], dict[str, Any]] = dict,
    ):
        self.method = method
        self.version = 0
        self._target_length = target_length
        self._extra = extra
        self._loss_scale = 1.0

    def restore(self, entry: Mapping[str, Any]) -> None:
        """Takes the state that a checkpoint has under `stateful_callbacks["LengthControl"]`.

        Raises:
            `ValueError`: If it is of another method.
        """
        if entry["method"] != self.method.name:
            raise ValueError(
                f"the checkpoint's length control is {entry['method']!r}, but this run has {self.method.name!r}; go "
                "on with the former, or start a run of its own from the weights"
            )
        if entry["target_length"] != self._target_length:
            warnings.warn(
                f"target_length was {entry['target_length']} and is {self._target_length} from here on; the state of "
                f"{self.method.name} goes on from what it was",
                stacklevel=2,
            )
        self.method.load_state_dict(entry["state"])
        self.version = entry["version"]

    def on_train_begin(self, args, state, control, **kwargs):
        """Restores the state if a checkpoint was resumed."""
        if (entry := state.stateful_callbacks.get(STATE_ENTRY)) is not None:
            self.restore(entry)
        elif state.global_step > 0:
            warnings.warn(
                f"the checkpoint has no state of length control; {self.method.name} starts anew", stacklevel=2
            )

    def on_pre_optimizer_step(self, args, state, control, optimizer, **kwargs):
        """Notes the loss scale."""
        self._loss_scale = _loss_scale(optimizer)

    def on_step_end(self, args, state, control, optimizer, **kwargs):
        """Moves the state unless the update was skipped."""
        # accelerate does not see that a fused optimizer skips by itself; the falling scale shows it
        has_overflowed = _loss_scale(optimizer) < self._loss_scale
        if not (has_overflowed or optimizer.step_was_skipped):
            self.method.step()
            self.version += 1
        state.stateful_callbacks[STATE_ENTRY] = {
            "method": self.method.name,
            "state": self.method.state_dict(),
            "version": self.version,
            "target_length": self._target_length,
            **self._extra(),
        }


def _loss_scale(optimizer: AcceleratedOptimizer) -> float:
    return 1.0 if optimizer.scaler is None else optimizer.scaler.get_scale()


class LengthControlCallback(DualStepCallback):
    """The dual step of a [`LengthControlledReward`] in any TRL trainer.

    A trainer that scores within its own processes moves the method as [`~leash_trl.LeashGRPOTrainer`] does, by all
    that they scored since the last update. Where another process scores, as in asynchronous GRPO, which it does in
    bursts, each update moves it by the newest groups: all new ones, or as many as an update trains on. Groups count
    when they are scored, for the queue would delay them, and also where the trainer drops them as stale.

    Args:
        reward (`LengthControlledReward`):
            The trainer's reward function.
    """

    def __init__(self, reward: LengthControlledReward):
        super().__init__(reward.method, reward.target_length)
        self.reward = reward
        self._newest: list[Scored] = []
        self._logged: dict[str, float] = {}

    def on_init_end(self, args, state, control, **kwargs):
        """Says to the reward what the run is like, or refuses it."""
        self._begin(args, **kwargs)

    def on_train_begin(self, args, state, control, **kwargs):
        """The same for a callback that was added later; restores the state and drops what was evaluated before."""
        self._begin(args, **kwargs)
        super().on_train_begin(args, state, control, **kwargs)
        self.reward.take()
        self.reward.publish(self.version)

    def _begin(self, args, model, processing_class, **kwargs):
        self.reward.begin(run_settings(args, self.method, model, processing_class), args.world_size)

    def on_step_end(self, args, state, control, **kwargs):
        """Observes what was scored, moves the method, and shows copies of the reward its state."""
        scored = gather_object(self.reward.take())
        batch = [each for each in scored if not each["is_from_copy"]]
        from_copies = [each for each in scored if each["is_from_copy"]]
        rows_per_update = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
        at_least = max(1, rows_per_update // args.num_generations)
        self._newest = (self._newest + from_copies)[-max(len(from_copies), at_least) :]
        self._logged = {}
        if batch := batch + self._newest:
            rollouts = pooled(batch)
            self._logged = logged(self.method, rollouts, self.method.score(rollouts, RULE), self.version)
            self._logged["leash/lag"] = float(self.version - min(each["version"] for each in batch))
            self.method.observe(rollouts)
        super().on_step_end(args, state, control, **kwargs)
        self.reward.publish(self.version)

    def on_evaluate(self, args, state, control, **kwargs):
        """Drops what evaluation scored; nothing of training is left at this point."""
        self.reward.take()

    on_predict = on_evaluate

    def on_log(self, args, state, control, logs=None, **kwargs):
        """Adds what the reward could not log itself, for want of `log_metric`: the last update's groups, with the
        prices of the state before its step."""
        if "loss" in logs:
            for row in (logs, state.log_history[-1]):
                row.update(self._logged | row)


def run_settings(args, method: LengthControl, model, processing_class) -> RunSettings:
    """What the configuration of a stock trainer means for a reward function.

    Raises:
        `ValueError`: If the method needs whole groups and the reward function would get parts of them.
    """
    advantage: Literal["centred", "leave_one_out"] | None = None
    rows = None
    match args:
        case GRPOConfig():
            rows = args.per_device_train_batch_size * args.steps_per_generation
            if args.scale_rewards in ("none", False) and args.multi_objective_aggregation == "sum_then_normalize":
                advantage = "centred"
        case RLOOConfig():
            rows = args.per_device_train_batch_size * args.steps_per_generation
            advantage = None if args.normalize_advantages else "leave_one_out"
    if rows is not None and rows % args.num_generations and (method.needs_group or method.own_advantages):
        raise ValueError(
            f"{method.name} needs whole groups, but per_device_train_batch_size * steps_per_generation is {rows}, no "
            f"multiple of num_generations={args.num_generations}; change one of them, or train with LeashGRPOTrainer"
        )
    tokenizer = getattr(processing_class, "tokenizer", processing_class)
    return RunSettings(
        num_generations=args.num_generations,
        num_generations_eval=args.num_generations
        if rows is None
        else args.num_generations_eval or args.num_generations,
        max_completion_length=args.max_completion_length or math.inf,
        end_ids=[*eos_token_ids(model, tokenizer), tokenizer.pad_token_id],
        advantage=advantage,
    )


def group_tensorboard_curves(trainer: Trainer) -> None:
    """Replaces transformers' TensorBoard callback by `LeashTensorBoardCallback`; a user's subclass of it stays."""
    for callback in trainer.callback_handler.callbacks:
        if type(callback) is TensorBoardCallback:
            trainer.remove_callback(callback)
            trainer.add_callback(LeashTensorBoardCallback(callback.tb_writer))
            return


class LeashTensorBoardCallback(TensorBoardCallback):
    """TensorBoard as usual, with LEASH's curves in their own groups, `leash/...` and `eval_leash/...`."""

    def on_log(self, args, state, control, logs=None, **kwargs):
        """Writes LEASH's curves under their own names and hands the rest to transformers."""
        ours = {key: value for key, value in logs.items() if key.startswith(("leash/", "eval_leash/"))}
        super().on_log(args, state, control, {k: v for k, v in logs.items() if k not in ours}, **kwargs)
        if self.tb_writer is None or not state.is_world_process_zero:
            return
        for key, value in ours.items():
            if value is not None:
                self.tb_writer.add_scalar(key, value, state.global_step)
        self.tb_writer.flush()


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
