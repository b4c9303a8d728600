"""Callbacks that update the method's state in any trainer of TRL, and that show and save its values."""

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from accelerate.logging import get_logger
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.utils import gather_object
from tqdm.auto import tqdm
from transformers import ProgressCallback, TrainerCallback

from leash_trl.completions.costs import TOKEN_COSTS, short_name, unit_of
from leash_trl.completions.thinking import ThinkingTokens
from leash_trl.engines.cudnn_attention import REMEDY, is_cudnn_attention_faulty
from leash_trl.errors import TrainingError
from leash_trl.length_control.method import LengthControl
from leash_trl.length_control.rollouts import Rollouts, concatenated
from leash_trl.length_control.statistics import log_entries
from leash_trl.length_control.targets import check_thinking_ends
from leash_trl.model_facts import eos_token_ids, tokenizer_of
from leash_trl.run_folder import STATE_ENTRY
from leash_trl.trainer.advice import give_advice, list_advice
from leash_trl.trainer.finite import check_gradients
from leash_trl.trainer.length_controlled_reward import RULE, LengthControlledReward, RunSettings
from leash_trl.trainer.trl_settings import (
    advantage_kind,
    completions_per_call,
    generation_limit,
    group_sizes,
    thinking_markers,
)


logger = get_logger(__name__)  # logs on the main process only

# TRL's keys of a reward function: rewards/math_reward/mean in GRPO and RLOO, and that of SDPO
KEY_OF_FUNCTION = re.compile("rewards/(.+)/mean|self_distillation/rewards/(.+)")
MAX_UNTRAINED = 10  # number of batches in a row without any reward to train from after which a run ends

LENGTH = "length"  # in tokens; other costs are shown under their own name
SHOWN_BESIDE_THE_BAR = {
    LENGTH: "leash/mean_length",
    "target": "leash/target_length",
    "accuracy": "leash/accuracy",
    "lambda": "leash/lambda",
    "satisfied": "leash/satisfaction_rate",
    "price_share": "leash/price_share",
}


class DualStepCallback(TrainerCallback):
    """Performs the dual step: updates the method's state after each policy update, before logging, evaluation and
    saving.

    LEASH ignores updates without new completions. If several updates share a generation batch (`steps_per_generation`,
    `num_iterations`), lambda changes after the first of them; if several batches make one update, lambda changes once,
    by the completions of all of them. A gradient that is not finite ends the run before the optimizer applies it. With
    a loss scale (fp16), the optimizer skips that update instead, and the dual step is postponed to the next update. A
    batch in which no completion of any process has a reward from which the method trains changes nothing; after ten
    such batches in a row, the run saves a checkpoint and ends. The state is kept in `state.stateful_callbacks`, which
    transformers saves in `trainer_state.json` and restores when a run is resumed. Advice on the run is kept beside it.

    Args:
        length_of (`str`): What the method controls; a checkpoint of another cost is refused.
        target_length (`float`): The configured target in its unit, for the model card.
        extra (`Callable[[], dict]`): Returns further values to save, in types that JSON can hold.
    """

    def __init__(
        self,
        method: LengthControl,
        length_of: str = "completion",
        target_length: float | None = None,
        extra: Callable[[], dict[str, Any]] = dict,
    ):
        self.method = method
        self.version = 0
        self._length_of = length_of
        self._target_length = target_length
        self._extra = extra
        self._loss_scale = 1.0
        self._num_untrained = 0  # generation batches in a row without any reward to train from
        self._untrained_reason = ""
        self._has_observed = False  # whether the method has observed a batch since its last dual step
        self._state_before_update: dict[str, Any] | None = None  # of the method, during an update
        self._entry: dict[str, Any] | None = None  # in the trainer state, after the last update

    def observe(self, parts: Sequence[Rollouts]) -> None:
        """Passes a generation batch of all processes to the method, unless no completion in it is trained on."""
        if any(self.method.is_trained(part).any() for part in parts):
            self._num_untrained = 0
            self._has_observed = True
            knows_correctness = any(part.is_scorable.any() for part in parts)
            if self.method.uses_correctness and not knows_correctness:
                logger.warning_once(
                    "correctness_func returned None for every completion of a batch, so what depends on correctness, "
                    "such as min_accuracy, does not act on it"
                )
            for part in parts:
                self.method.observe(part)
            return
        self._num_untrained += 1
        self._untrained_reason = "reward_funcs returned None for every completion"
        if any(not torch.isnan(part.task_rewards).all() for part in parts):
            self._untrained_reason = (
                f"{self.method.name} trains from correctness alone, and correctness_func returned None for every "
                "completion"
            )
        logger.warning_once(f"{self._untrained_reason} of a batch; {MAX_UNTRAINED} such batches in a row end the run")

    def restore(self, entry: Mapping[str, Any]) -> None:
        """Restores the state of a checkpoint; raises `TrainingError` if it belongs to another method, or to another
        cost, by which the same lambda means something else."""
        expected = [("length_control", "method", self.method.name), ("length_of", "length_of", self._length_of)]
        for name, key, value in expected:
            if short_name(entry[key]) != short_name(value):
                raise TrainingError(
                    f"the checkpoint's {name} is {entry[key]!r}, but this run has {value!r}; set the former"
                )
        self.method.load_state_dict(entry["state"])
        self.version = entry["version"]

    def on_train_begin(self, args, state, control, **kwargs):
        if self._state_before_update is not None:  # an interrupted call of train ended during the update
            self.method.load_state_dict(self._state_before_update)
            self._state_before_update = None
            self._has_observed = False
        self._num_untrained = 0
        entry = state.stateful_callbacks.get(STATE_ENTRY)
        self._entry = entry
        if entry is not None:
            self.restore(entry)
        elif state.global_step > 0:
            warnings.warn(f"the checkpoint has no length control; {self.method.name} starts anew", stacklevel=2)
        self.method.begin_update(state.global_step, state.max_steps)

    def on_step_begin(self, args, state, control, **kwargs):
        self._state_before_update = self.method.state_dict()

    def on_pre_optimizer_step(self, args, state, control, model, optimizer, **kwargs):
        self._loss_scale = _loss_scale(optimizer)
        if optimizer.scaler is None:  # a scaler skips an update that is not finite
            check_gradients(model, state.global_step + 1, args.output_dir)

    def on_step_end(self, args, state, control, optimizer, **kwargs):
        # no dual step after batches without rewards, nor after an update that the optimizer skipped; a further update
        # on the same batch counts as a dual step, though the method has nothing new to move lambda by
        has_only_untrained = self._num_untrained > 0 and not self._has_observed
        if not has_only_untrained and not self._was_skipped(optimizer):
            self.method.step()
            self.version += 1
            self._has_observed = False
        self.method.begin_update(state.global_step, state.max_steps)
        self._state_before_update = None
        if self._num_untrained >= MAX_UNTRAINED:
            control.should_save = True
            control.should_training_stop = True
        if state.stateful_callbacks.get(STATE_ENTRY) is not self._entry:
            raise TrainingError(
                "callbacks has several LengthControlCallback, whose penalties would be added, and of which a "
                "checkpoint would hold one state; give all functions to one LengthControlledReward"
            )
        self._entry = {
            "method": self.method.name,
            "state": self.method.state_dict(),
            "version": self.version,
            "length_of": self._length_of,
            "target_length": self._target_length,
            **self._extra(),
        }
        state.stateful_callbacks[STATE_ENTRY] = self._entry

    def _was_skipped(self, optimizer: AcceleratedOptimizer) -> bool:
        """Returns whether the optimizer skipped the update, because a gradient was not finite."""
        # accelerate does not notice when a fused optimizer skips an update; a lower loss scale shows that it did
        return optimizer.step_was_skipped or _loss_scale(optimizer) < self._loss_scale

    def on_log(self, args, state, control, logs=None, **kwargs):
        give_advice(state, self.method, self._length_of)

    def on_train_end(self, args, state, control, **kwargs):
        list_advice(state)
        if self._num_untrained >= MAX_UNTRAINED:
            raise TrainingError(
                f"{self._untrained_reason} of {self._num_untrained} batches in a row; correct the function or the "
                f"data, and resume from {args.output_dir}"
            )


def _loss_scale(optimizer: AcceleratedOptimizer) -> float:
    return 1.0 if optimizer.scaler is None else optimizer.scaler.get_scale()


class LengthControlCallback(DualStepCallback):
    """Performs the dual step of a [`LengthControlledReward`] in any TRL trainer.

    Each dual step uses all completions scored since the last policy update, as in [`~leash_trl.LeashGRPOTrainer`]. In
    asynchronous GRPO, a copy of the reward scores them in another process; a group counts as soon as it is scored,
    without the delay of the trainer's queue, even if the trainer drops it later as stale.

    A trainer starts from the beginning of the method, or from a checkpoint, even if the reward has trained before in
    another trainer. A second call of `train` goes on with the state at which the first call ended, unless another
    trainer has trained with the reward in between; then it starts from the beginning too.
    """

    def __init__(self, reward: LengthControlledReward):
        super().__init__(reward.method, reward.cost.name, reward.target_length, extra=reward.correctness.state_dict)
        self.reward = reward
        self._metrics: dict[str, float] = {}  # of the last update

    def on_init_end(self, args, state, control, **kwargs):
        self.reward.begin(run_settings(args, self.reward, **kwargs), args.world_size)

    def on_train_begin(self, args, state, control, **kwargs):
        """Restores the state and discards what an aborted training has scored. It also passes the settings of the run
        to the reward, since transformers does not call `on_init_end` of a callback that is added after the trainer was
        created."""
        self.on_init_end(args, state, control, **kwargs)
        if is_cudnn_attention_faulty():
            warnings.warn(f"cuDNN's attention is faulty on this GPU: call {REMEDY} first", stacklevel=2)
        # each trainer has a TrainerControl of its own, and keeps it
        if control is not self.reward.control:
            self.reward.control = control
            self.method.restart()
            self.reward.correctness.restart()
            self.version = 0
        super().on_train_begin(args, state, control)
        self.reward.pop_scored()
        self.reward.publish(self.version)

    def on_step_begin(self, args, state, control, **kwargs):
        # the method observes only at the end of the update, so an interrupted one leaves nothing in its state
        self.reward.is_training = True

    def on_step_end(self, args, state, control, optimizer, **kwargs):
        """Observes what was scored, performs the dual step, and writes the new state for copies of the reward."""
        self.reward.is_training = False
        # of all processes; each has scored its own completions
        scored: list[Rollouts] = gather_object(self.reward.pop_scored())
        self._metrics = {}
        if scored:
            self._observe_scored(concatenated(scored), warns=state.is_world_process_zero)
        super().on_step_end(args, state, control, optimizer)
        self.reward.publish(self.version)

    def _observe_scored(self, rollouts: Rollouts, warns: bool) -> None:
        """Passes the completions of all processes to the method, and keeps their statistics for the log."""
        correctness = self.reward.correctness
        correctness.observe(rollouts.deciding_rewards)  # of which each call of the reward saw only its own
        correctness.check(self.method)
        warning = correctness.problem()
        if warning is not None and warns:
            warnings.warn(warning, stacklevel=3)
        rollouts = replace(rollouts, is_correctness_known=correctness.is_known)
        score = self.method.score(rollouts, RULE)
        self._metrics = log_entries(self.method, rollouts, score, version=self.version)
        if self.version == 0:
            if self.reward.cost.name == "thinking":
                check_thinking_ends(rollouts, self.reward.thinking_end)
            warning = self.method.reward_warning(rollouts)
            if warning is not None:
                warnings.warn(warning, stacklevel=3)
        self.observe([rollouts])

    def restore(self, entry: Mapping[str, Any]) -> None:
        super().restore(entry)
        self.reward.correctness.load_state_dict(entry)

    def on_log(self, args, state, control, logs=None, **kwargs):
        """Adds to the log what a reward without `log_metric` cannot log: statistics of the groups of the last update,
        with the state before its dual step.

        Raises:
            `ValueError`: If the trainer has another reward function, which the length penalty does not know of.
        """
        if "loss" not in logs:
            return
        for key in logs:
            of_function = KEY_OF_FUNCTION.fullmatch(key)
            if of_function and self.reward.__name__ not in of_function.groups():
                raise ValueError(
                    f"reward_funcs has another function beside a LengthControlledReward, which logs {key}; give it to "
                    "LengthControlledReward instead"
                )
        # transformers has already copied the logs into the history
        for row in (logs, state.log_history[-1]):
            for name, value in self._metrics.items():
                row.setdefault(name, value)
        super().on_log(args, state, control)


def run_settings(args, reward: LengthControlledReward, model, processing_class, **kwargs) -> RunSettings:
    """Reads from the configuration of a trainer of TRL the settings that a reward function needs."""
    check_whole_groups(args, reward.method)
    check_aggregation(args, reward)
    sizes = group_sizes(args)
    tokenizer = tokenizer_of(processing_class)
    markers = thinking_markers(args, tokenizer, reward.thinking_end)
    counts_thinking = reward.cost.name == "thinking"
    return RunSettings(
        num_generations=sizes.training,
        num_generations_eval=sizes.evaluation,
        max_completion_length=generation_limit(args),
        end_ids=frozenset(eos_token_ids(model, tokenizer)),
        pad_id=tokenizer.pad_token_id,
        advantage=advantage_kind(args),
        thinking_markers=markers,
        thinking_tokens=ThinkingTokens(tokenizer, markers) if counts_thinking else None,
        decode=tokenizer.decode,
    )


def check_whole_groups(args, method: LengthControl) -> None:
    """Raises `ValueError` if the method compares the completions of a prompt, but a call of the reward function may
    hold only a part of them."""
    if not (method.needs_group or method.own_advantages):
        return
    size = group_sizes(args).training  # 1 for online DPO, which has no groups
    num_completions = completions_per_call(args)
    if size == 1 or num_completions % size:
        raise ValueError(
            f"{method.name} needs whole groups of several completions, but a call holds {num_completions} of groups "
            f"of num_generations={size}; set per_device_train_batch_size * steps_per_generation to a multiple, or "
            "train with LeashGRPOTrainer"
        )


def check_aggregation(args, reward: LengthControlledReward) -> None:
    """Raises `ValueError` if a trainer is to normalize each reward function apart, but gets their sum as one."""
    aggregation = getattr(args, "multi_objective_aggregation", None)
    num_functions = len(reward.reward_funcs)
    if aggregation == "normalize_then_sum" and num_functions > 1:
        raise ValueError(
            f"multi_objective_aggregation is {aggregation!r}, but LengthControlledReward returns the sum of its "
            f"{num_functions} functions as one reward; set 'sum_then_normalize', or give the functions and a length "
            "reward of your own to the trainer without it"
        )


class LeashProgressCallback(ProgressCallback):
    """The progress bar of transformers, which also shows mean length, target, accuracy, lambda and satisfaction rate,
    and whose time left counts only updates since the start or the checkpoint.

    `leash train` uses it. In a script, add it after `trainer.remove_callback(ProgressCallback)`.
    """

    def on_train_begin(self, args, state, control, **kwargs):
        self.current_step = state.global_step
        if state.is_world_process_zero:
            # leash compare finds the bar in a log by its unit
            self.training_bar = tqdm(
                total=state.max_steps, initial=state.global_step, unit="update", dynamic_ncols=True
            )

    def on_log(self, args, state, control, logs=None, **kwargs):
        if not state.is_world_process_zero or self.training_bar is None:
            return
        length_of = state.stateful_callbacks.get(STATE_ENTRY, {}).get("length_of", TOKEN_COSTS[0])
        shown = {}
        for label, key in SHOWN_BESIDE_THE_BAR.items():
            value = logs.get(key)
            if value is None:
                continue
            if label == LENGTH and length_of not in TOKEN_COSTS:
                label = unit_of(length_of).replace(" ", "_")
            shown[label] = f"{value:.4g}"
        if shown:
            self.training_bar.set_postfix(shown)
