"""Callbacks that update the method's state in any trainer of TRL, and that log and save its values."""

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from accelerate.logging import get_logger
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.utils import gather_object
from transformers import TrainerCallback, TrainerState, TrainingArguments

from leash_trl.completions.costs import Cost, name_without_path
from leash_trl.digests import code_digests
from leash_trl.engines.cudnn_attention import avoid_faulty_cudnn_attention
from leash_trl.errors import TrainingError
from leash_trl.length_control.advantages import DEFAULT_RULE
from leash_trl.length_control.method import LengthControl
from leash_trl.length_control.rollouts import Rollouts, concatenated
from leash_trl.length_control.statistics import log_entries
from leash_trl.run_folder import LENGTH_CONTROL_STATE_KEY
from leash_trl.saved_recipe import differing_names
from leash_trl.trainer.advice import repeat_all_advice, warn_of_new_advice
from leash_trl.trainer.batch_checks import check_correctness, check_first_batch
from leash_trl.trainer.finite import check_finite_gradients
from leash_trl.trainer.length_controlled_reward import LengthControlledReward


logger = get_logger(__name__)  # logs on the main process only

# keys under which TRL logs a reward function, such as rewards/math_reward/mean in GRPO and RLOO; the second form is
# SDPO's
REWARD_LOG_KEY = re.compile("rewards/(.+)/mean|self_distillation/rewards/(.+)")


class DualStepCallback(TrainerCallback):
    """Performs the dual step: updates the method's state after each policy update, before logging, evaluation and
    saving.

    LEASH ignores updates without new completions. If several updates share a generation batch (`steps_per_generation`,
    `num_iterations`), lambda changes after the first of them; if several batches make one update, lambda changes once,
    by the completions of all of them. A gradient that is not finite ends the run before the optimizer applies it. With
    a loss scale (fp16), the optimizer skips that update instead, and the dual step is postponed to the next update. A
    batch in which no completion of any process has a reward from which the method trains changes nothing. The state is
    kept in `state.stateful_callbacks`, which transformers saves in `trainer_state.json` and restores when a run is
    resumed. Advice on the run is kept there too.

    Args:
        method ([`~leash_trl.LengthControl`]), cost ([`Cost`]): The method, and the cost that it controls; a checkpoint
            of another method or cost raises an error.
        target_length (`float`): The configured target in the unit of the cost, or `None`, for the model card.
        reward_funcs (`Sequence[Callable]`): The reward functions. A resumed run warns if the code of these, of the
            method or of the cost has changed since the checkpoint.
        state_to_save (`Callable[[], dict]`): Returns what to save beside the state of the method, in types that JSON
            can hold.
        restore_state (`Callable[[Mapping], None]`): Restores from a checkpoint what `state_to_save` returned.
    """

    def __init__(
        self,
        method: LengthControl,
        cost: Cost,
        target_length: float | None,
        reward_funcs: Sequence[Callable[..., Any]],
        state_to_save: Callable[[], dict[str, Any]],
        restore_state: Callable[[Mapping[str, Any]], None],
    ):
        self.method = method
        self.version = 0
        self._length_of = cost.name
        self._target_length = target_length
        # A resumed run compares the digests of this code with those in its checkpoint.
        code = [type(method), *reward_funcs]
        if cost.function is not None:
            code.append(cost.function)
        self._code = code_digests(code)
        self._state_to_save = state_to_save
        self._restore_state = restore_state
        self._loss_scale = 1.0
        self._lacks_rewards = False  # whether the last generation batch has no reward to train from
        self._has_observed = False  # whether the method has observed a batch since its last dual step
        self._state = method.state_dict()  # of the method, after the last update
        self._entry: dict[str, Any] | None = None  # in the trainer state, after the last update

    def observe(self, parts: Sequence[Rollouts]) -> None:
        """Passes a generation batch of all processes to the method, unless no completion in it is trained on."""
        # With dynamic sampling, there is a part for each round of generation; otherwise there is one part.
        has_rewards = not all(part.task_rewards.isnan().all() for part in parts)
        knows_correctness = any(part.is_scorable.any() for part in parts)
        dependent = self.method.needs_correctness()  # such as "min_accuracy"
        if has_rewards and dependent and not knows_correctness:
            logger.warning_once(
                f"correctness_func returned None for every completion of a batch, so {dependent} has "
                "nothing to act on in the batch; return a number"
            )
        self._lacks_rewards = all(self.method.base_rewards(part).isnan().all() for part in parts)
        if self._lacks_rewards:
            return
        self._has_observed = True
        for part in parts:
            self.method.observe(part)

    def restore(self, entry: Mapping[str, Any]) -> None:
        """Restores the state from a checkpoint's entry. Raises `TrainingError` if the entry is of another method or of
        another cost, for which the same lambda has another meaning."""
        # The argument of the configuration, its key in the checkpoint, and its value in this run.
        expected = [("length_control", "method", self.method.name), ("length_of", "length_of", self._length_of)]
        for name, key, value in expected:
            # The name of a user's function or class includes its folder, whose path may be another one in a resumed
            # run.
            if name_without_path(entry[key]) != name_without_path(value):
                raise TrainingError(
                    f"the checkpoint's {name} is {entry[key]!r}, but this run has {value!r}; use the "
                    "checkpoint's value"
                )
        self._state = entry["state"]
        self.method.load_state_dict(self._state)
        self.version = entry["version"]
        self._restore_state(entry)

    def on_train_begin(self, args, state, control, **kwargs):
        """Restores the state of the checkpoint from which a run is resumed."""
        # An interrupted call of train may have ended after `observe`, so go back to the end of the last whole update.
        self.method.load_state_dict(self._state)
        self._has_observed = False
        self._lacks_rewards = False
        # transformers has read this entry from the checkpoint; a new run has none.
        entry = state.stateful_callbacks.get(LENGTH_CONTROL_STATE_KEY)
        self._entry = entry
        if entry is not None:
            self.restore(entry)
            changed_code = differing_names(entry["code"], self._code)
            if changed_code:
                logger.warning("the code of %s has changed since the checkpoint", ", ".join(changed_code))
        elif state.global_step > 0:
            warnings.warn(f"the checkpoint has no length control; {self.method.name} starts anew", stacklevel=2)
        self.method.begin_update(state.global_step, state.max_steps)

    def on_pre_optimizer_step(self, args, state, control, model, optimizer, **kwargs):
        """Ends the run if a gradient is not finite, unless a loss scale skips such updates."""
        self._loss_scale = _loss_scale(optimizer)
        # With a loss scale, infinite gradients are expected now and then: the update is skipped, the scale is lowered.
        if optimizer.scaler is None:
            check_finite_gradients(model, state.global_step + 1, args.output_dir)

    def on_step_end(self, args, state, control, optimizer, **kwargs):
        """Performs the dual step of an update that was taken, and keeps the new state for checkpoints."""
        # A batch in which no completion is trained on gets no dual step. A further update on an observed batch counts
        # as a dual step, although the method has no new completions to change lambda by.
        has_only_untrained = self._lacks_rewards and not self._has_observed
        if not has_only_untrained and not self._was_skipped(optimizer):
            self.method.step()
            self.version += 1
            self._has_observed = False
        self.method.begin_update(state.global_step, state.max_steps)
        self._write_entry(state)

    def _write_entry(self, state: TrainerState) -> None:
        """Writes the state of the method into that of the trainer."""
        self._check_no_other_callback(state)
        self._state = self.method.state_dict()
        self._entry = {
            "method": self.method.name,
            "state": self._state,
            "version": self.version,
            "length_of": self._length_of,
            "target_length": self._target_length,
            "code": self._code,
            **self._state_to_save(),
        }
        state.stateful_callbacks[LENGTH_CONTROL_STATE_KEY] = self._entry

    def _check_no_other_callback(self, state: TrainerState) -> None:
        """Raises `TrainingError` if another callback of length control has written its entry."""
        # All such callbacks write their entry under the same key. Without another one, it is the entry that this
        # callback wrote or found.
        if state.stateful_callbacks.get(LENGTH_CONTROL_STATE_KEY) is not self._entry:
            raise TrainingError(
                "callbacks has several LengthControlCallback: their penalties would be added, and a checkpoint would "
                "hold the state of only one; give all reward functions to one LengthControlledReward"
            )

    def _was_skipped(self, optimizer: AcceleratedOptimizer) -> bool:
        """Returns whether the optimizer skipped the update, because a gradient was not finite."""
        # accelerate does not notice when a fused optimizer skips an update. But the loss scale is lowered after each
        # skipped update, which shows that there was one.
        return optimizer.step_was_skipped or _loss_scale(optimizer) < self._loss_scale

    def on_log(self, args, state, control, logs=None, **kwargs):
        """Gives advice on the run."""
        warn_of_new_advice(state, self.method, self._length_of)

    def on_train_end(self, args, state, control, **kwargs):
        """Repeats all advice."""
        repeat_all_advice(state)


def _loss_scale(optimizer: AcceleratedOptimizer) -> float:
    """Returns the factor by which the loss is multiplied in fp16, so that small gradients do not become 0."""
    return 1.0 if optimizer.scaler is None else optimizer.scaler.get_scale()


class LengthControlCallback(DualStepCallback):
    """Performs the dual step of a [`LengthControlledReward`] in any TRL trainer.

    Each dual step uses all completions scored since the last policy update, as in [`~leash_trl.LeashGRPOTrainer`]. In
    asynchronous GRPO, a copy of the reward scores them in another process; a group counts as soon as it is scored,
    without the delay of the trainer's queue, even if the trainer drops it later as stale.

    Each trainer starts from the method's initial state, or from a checkpoint, even if another trainer has trained with
    the reward before. A second call of `train` continues from the state at which the first call ended, unless another
    trainer has trained with the reward in between; then this call starts from the initial state too.

    Args:
        reward ([`LengthControlledReward`]): The trainer's only reward function.
    """

    def __init__(self, reward: LengthControlledReward):
        super().__init__(
            reward.method,
            reward.cost,
            target_length=reward.target_length,
            reward_funcs=reward.all_functions,
            state_to_save=reward.correctness.state_dict,
            restore_state=reward.correctness.load_state_dict,
        )
        self.reward = reward
        self._metrics: dict[str, float] = {}  # of the last update

    def on_init_end(self, args, state, control, model, processing_class, **kwargs):
        """Passes the settings of the run to the reward."""
        self.reward.read_run_settings(args, model, processing_class)

    def on_train_begin(self, args, state, control, **kwargs):
        """Restores the state and discards what an aborted training has scored."""
        # transformers does not call `on_init_end` of a callback that is added after the trainer was created.
        self.on_init_end(args, state, control, **kwargs)
        avoid_faulty_cudnn_attention()
        # Each trainer keeps one TrainerControl, so another one means that the reward now trains in another trainer.
        if control is not self.reward.control:
            self.reward.control = control
            self.method.restart()
            self._state = self.method.state_dict()
            self.reward.correctness.restart()
            self.version = 0
        super().on_train_begin(args, state, control)
        self.reward.pop_scored_rollouts()  # drops what an interrupted call of train has left
        self.reward.publish_state(self.version)

    def on_step_begin(self, args, state, control, model, **kwargs):
        """Passes the model to the reward, which tells training from evaluation by the model's mode."""
        self.reward.updated_model = model

    def on_step_end(self, args, state, control, optimizer, **kwargs):
        """Observes what was scored, performs the dual step, and writes the new state for copies of the reward."""
        self.reward.updated_model = None
        # Each process has scored only its own completions, in one or several calls of the reward.
        scored: list[Rollouts] = gather_object(self.reward.pop_scored_rollouts())
        self._metrics = {}
        if scored:
            self._observe_scored(concatenated(scored), args)
        super().on_step_end(args, state, control, optimizer)
        self.reward.publish_state(self.version)

    def _observe_scored(self, rollouts: Rollouts, args: TrainingArguments) -> None:
        """Passes the completions of all processes to the method, and keeps their statistics for the log."""
        correctness = self.reward.correctness
        # Each call of the reward has observed only its own completions; `rollouts` are those of all processes.
        correctness.observe(rollouts.deciding_rewards)
        check_correctness(correctness, self.method, args)
        rollouts = replace(rollouts, is_correctness_known=correctness.is_known)
        score = self.method.score(rollouts, DEFAULT_RULE)
        self._metrics = log_entries(self.method, rollouts, score, version=self.version)
        if self.version == 0:  # before the first dual step
            thinking_end = self.reward.thinking_end if self.reward.cost.name == "thinking" else None
            check_first_batch(rollouts, self.method, args, thinking_end)
        self.observe([rollouts])

    def on_log(self, args, state, control, logs=None, **kwargs):
        """Adds statistics to the log that the reward cannot log in trainers which pass it no `log_metric`: those of
        the completions of the last update, with the state before its dual step.

        Raises:
            `ValueError`: If the trainer has another reward function, which the length penalty does not know of.
        """
        # Only logs of policy updates have a loss of this name, not those of evaluations or at the end of training.
        if "loss" not in logs:
            return
        for key in logs:
            # One of the two groups of a match is the name of the reward function, the other is `None`.
            match = REWARD_LOG_KEY.fullmatch(key)
            if match and self.reward.__name__ not in match.groups():
                raise ValueError(
                    f"reward_funcs has another function, which logs {key}, beside a LengthControlledReward; give that "
                    "function to LengthControlledReward instead"
                )
        # transformers has already copied the logs into the history, so both are changed.
        for row in (logs, state.log_history[-1]):
            for name, value in self._metrics.items():
                row.setdefault(name, value)
        super().on_log(args, state, control)
