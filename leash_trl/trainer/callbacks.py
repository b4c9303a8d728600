"""Callbacks that update the method's state in any trainer of TRL, and that show and save its values."""

import inspect
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import torch
from accelerate.logging import get_logger
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.utils import gather_object
from transformers import ProgressCallback, Trainer, TrainerCallback, TrainerControl
from trl import GRPOConfig, RLOOConfig
from trl.trainer.utils import get_callable_name

from leash_trl.engines.cudnn_attention import REMEDY, is_cudnn_attention_faulty
from leash_trl.engines.thinking import ThinkingMarkers
from leash_trl.errors import TrainingError
from leash_trl.length_control.method import LengthControl
from leash_trl.length_control.rollouts import Rollouts, joined
from leash_trl.length_control.targets import check_thinking_ends
from leash_trl.model_facts import eos_token_ids, opens_thinking, question_prompt
from leash_trl.run_folder import STATE_ENTRY
from leash_trl.trainer.finite import check_gradients
from leash_trl.trainer.length_controlled_reward import RULE, LengthControlledReward, RunSettings, log_entries
from leash_trl.trainer.shared_state import Scored


logger = get_logger(__name__)  # logs on the main process only

MOST_BLANK = 10  # number of batches in a row without any reward to train from after which a run ends

SHOWN_BESIDE_THE_BAR = {
    "lambda": "leash/lambda",
    "length": "leash/mean_length",
    "accuracy": "leash/accuracy",
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
    transformers saves in `trainer_state.json` and restores when a run is resumed.

    Args:
        target_length (`float`): The configured target in tokens, for the model card.
        extra (`Callable[[], dict]`): Returns further values to save, in types that JSON can hold.
    """

    def __init__(
        self, method: LengthControl, target_length: float | None = None, extra: Callable[[], dict[str, Any]] = dict
    ):
        self.method = method
        self.version = 0
        self._target_length = target_length
        self._extra = extra
        self._loss_scale = 1.0
        self._num_blank = 0
        self._has_blank_correctness = False  # whether the blank batches lack correctness alone
        self._has_news = False

    def observe(self, parts: Sequence[Rollouts]) -> None:
        """Passes a generation batch of all processes to the method, unless no completion in it is trained on."""
        if any(self.method.is_trained(part).any() for part in parts):
            self._num_blank, self._has_news = 0, True
            for part in parts:
                self.method.observe(part)
            return
        has_rewards = any(not torch.isnan(part.task_rewards).all() for part in parts)
        self._has_blank_correctness = has_rewards or (self._num_blank > 0 and self._has_blank_correctness)
        self._num_blank += 1
        logger.warning_once(f"{self._blank('a batch')}; {MOST_BLANK} such batches in a row end the run")

    def _blank(self, batches: str) -> str:
        """Returns why nothing could be trained from some batches."""
        if self._has_blank_correctness:
            trains = f"{self.method.name} trains from correctness alone"
            return f"{trains}, and correctness_func returned None for every completion of {batches}"
        return f"reward_funcs returned None for every completion of {batches}"

    def restore(self, entry: Mapping[str, Any]) -> None:
        """Restores the state of a checkpoint; raises `TrainingError` if it belongs to another method."""
        if entry["method"] != self.method.name:
            methods = f"{entry['method']!r}, but this run has {self.method.name!r}"
            raise TrainingError(f"the checkpoint's length_control is {methods}; set the former")
        self.method.load_state_dict(entry["state"])
        self.version = entry["version"]

    def on_train_begin(self, args, state, control, **kwargs):
        if (entry := state.stateful_callbacks.get(STATE_ENTRY)) is not None:
            self.restore(entry)
        elif state.global_step > 0:
            warnings.warn(f"the checkpoint has no length control; {self.method.name} starts anew", stacklevel=2)

    def on_pre_optimizer_step(self, args, state, control, model, optimizer, **kwargs):
        self._loss_scale = _loss_scale(optimizer)
        if optimizer.scaler is None:  # a scaler skips an update that is not finite
            check_gradients(model, state.global_step + 1, args.output_dir)

    def on_step_end(self, args, state, control, optimizer, **kwargs):
        # accelerate does not notice when a fused optimizer skips an update; a lower loss scale shows that it did
        has_overflowed = _loss_scale(optimizer) < self._loss_scale
        is_blank = self._num_blank > 0 and not self._has_news
        if not (has_overflowed or optimizer.step_was_skipped or is_blank):
            self.method.step()
            self.version += 1
            self._has_news = False
        if self._num_blank >= MOST_BLANK:
            control.should_save = control.should_training_stop = True
        state.stateful_callbacks[STATE_ENTRY] = {
            "method": self.method.name,
            "state": self.method.state_dict(),
            "version": self.version,
            "target_length": self._target_length,
            **self._extra(),
        }

    def on_train_end(self, args, state, control, **kwargs):
        if self._num_blank >= MOST_BLANK:
            blank = self._blank(f"{self._num_blank} batches in a row")
            raise TrainingError(f"{blank}; correct the function or the data, and resume from {args.output_dir}")


def _loss_scale(optimizer: AcceleratedOptimizer) -> float:
    return 1.0 if optimizer.scaler is None else optimizer.scaler.get_scale()


class LengthControlCallback(DualStepCallback):
    """Performs the dual step of a [`LengthControlledReward`] in any TRL trainer.

    If the trainer scores completions in its own processes, each dual step uses all completions scored since the last
    policy update, as in [`~leash_trl.LeashGRPOTrainer`]. If another process scores them, as in asynchronous GRPO, they
    arrive in bursts; each dual step then uses the newest groups: all new ones, and at least as many as one policy
    update trains on. A group counts as soon as it is scored, without the delay of the trainer's queue, even if the
    trainer drops it later as stale.

    The first training of a trainer starts from the beginning of the method, or from a checkpoint, even if the reward
    has trained before in another trainer; a second call of `train` of the same trainer continues with the state at
    which the first call ended.
    """

    def __init__(self, reward: LengthControlledReward):
        super().__init__(reward.method, reward.target_length, reward.correctness.state_dict)
        self.reward = reward
        self._control: TrainerControl | None = None
        self._reached: dict[str, Any] | None = None
        self._newest: list[Scored] = []
        self._logged: dict[str, float] = {}

    def on_init_end(self, args, state, control, **kwargs):
        check_only_function(self.reward, reward_funcs_of_caller())
        self.reward.begin(run_settings(args, self.reward, **kwargs), args.world_size)

    def on_train_begin(self, args, state, control, **kwargs):
        """Restores the state and discards what was scored before training. It also passes the settings of the run to
        the reward, since transformers does not call `on_init_end` of a callback that is added after the trainer was
        created."""
        self.on_init_end(args, state, control, **kwargs)
        if is_cudnn_attention_faulty():
            warnings.warn(f"cuDNN's attention is faulty on this GPU: call {REMEDY} first", stacklevel=2)
        # each trainer has a TrainerControl of its own, and keeps it
        if control is not self._control:
            self._control = control
            self._reached = None
            self._newest = []
        if self._reached is None:
            self.method.restart()
            self.reward.correctness.restart()
            self.version = 0
        else:  # another trainer may have used the method in between
            self.restore(self._reached)
        super().on_train_begin(args, state, control)
        self.reward.pop_scored()
        self.reward.publish(self.version)

    def on_step_end(self, args, state, control, optimizer, **kwargs):
        """Observes what was scored, performs the dual step, and writes the new state for copies of the reward."""
        scored = gather_object(self.reward.pop_scored())
        from_copies = [each for each in scored if each.is_from_copy]
        update_size = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
        num_groups = max(1, update_size // getattr(args, "num_generations", 1), len(from_copies))
        self._newest = [*self._newest, *from_copies][-num_groups:]
        self._logged = {}
        if batch := [each for each in scored if not each.is_from_copy] + self._newest:
            lag = self.version - fmean(each.version for each in batch)
            rollouts = replace(joined([each.rollouts for each in batch]), lag=lag)
            self._check_correctness(rollouts, state.is_world_process_zero)
            rollouts = replace(rollouts, is_correctness_known=self.reward.correctness.is_known)
            self._logged = log_entries(self.method, rollouts, self.method.score(rollouts, RULE), self.version)
            self._logged["leash/lag"] = lag
            if self.version == 0:
                check_thinking_ends(rollouts, self.reward.thinking_end)
                if (problem := self.method.reward_scale_problem(rollouts)) is not None:
                    warnings.warn(problem, stacklevel=2)
            self.observe([rollouts])
        super().on_step_end(args, state, control, optimizer)
        self._reached = state.stateful_callbacks[STATE_ENTRY]
        self.reward.publish(self.version)

    def _check_correctness(self, rollouts: Rollouts, warns: bool) -> None:
        """Records the deciding rewards of all processes, of which each call of the reward saw only its own."""
        self.reward.correctness.observe(rollouts.deciding_rewards)
        self.reward.correctness.check(self.method)
        problem = self.reward.correctness.problem()
        if problem is not None and warns:
            warnings.warn(problem, stacklevel=3)

    def restore(self, entry: Mapping[str, Any]) -> None:
        super().restore(entry)
        self.reward.correctness.load_state_dict(entry)

    def on_evaluate(self, args, state, control, **kwargs):
        """Discards what was scored for evaluation; what was scored for training has been used before."""
        self.reward.pop_scored()

    on_predict = on_evaluate

    def on_log(self, args, state, control, logs=None, **kwargs):
        """Adds to the log what a reward without `log_metric` cannot log: statistics of the groups of the last update,
        with the state before its dual step."""
        if "loss" in logs:
            for row in (logs, state.log_history[-1]):
                row.update(self._logged | row)


def reward_funcs_of_caller() -> list[Any]:
    """Returns the reward functions of the trainer that is calling a callback; empty if no trainer is."""
    # transformers passes no trainer to callbacks, but the trainer's own call is on the stack. Most trainers of TRL set
    # `reward_funcs` before they call callbacks; that of asynchronous GRPO only takes it as an argument.
    frame = inspect.currentframe()
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, Trainer):
            reward_funcs = frame.f_locals.get("reward_funcs") or getattr(caller, "reward_funcs", None)
            if reward_funcs:
                return list(reward_funcs) if isinstance(reward_funcs, list) else [reward_funcs]
        frame = frame.f_back
    return []


def check_only_function(reward: LengthControlledReward, reward_funcs: Sequence[Any]) -> None:
    """Raises `ValueError` if a trainer has other reward functions beside this reward, which its length penalty would
    not know of."""
    others = [get_callable_name(function) for function in reward_funcs if function is not reward]
    if others and len(reward_funcs) > 1:
        raise ValueError(
            f"reward_funcs holds {', '.join(others)} beside a LengthControlledReward, which must be the only one; "
            "give them to LengthControlledReward instead"
        )


def run_settings(args, reward: LengthControlledReward, model, processing_class, **kwargs) -> RunSettings:
    """Reads from the configuration of a trainer of TRL the settings that a reward function needs."""
    name, fields, advantage, method = type(args).__name__, vars(args), None, reward.method
    size = fields.get("num_generations", 1)
    size_eval = fields.get("num_generations_eval") or size
    limit = fields.get("max_completion_length", fields.get("max_new_tokens"))
    limit_name = "max_tokens" if fields.get("use_vllm") else "max_new_tokens"
    limit = (fields.get("generation_kwargs") or {}).get(limit_name, limit)
    rows = args.per_device_train_batch_size * fields.get("steps_per_generation", size)  # in one call of the reward
    if (method.needs_group or method.own_advantages) and (size == 1 or rows % size):
        rest = f"per_device_train_batch_size * steps_per_generation is {rows}, not a multiple of num_generations"
        problem = f"{name} has no num_generations" if size == 1 else f"{rest}={size}"
        raise ValueError(f"{method.name} needs whole groups, but {problem}; or train with LeashGRPOTrainer")
    match args:
        case GRPOConfig(scale_rewards="none" | False, multi_objective_aggregation="sum_then_normalize"):
            advantage = "centered"
        case RLOOConfig(normalize_advantages=False):
            advantage = "leave_one_out"
    tokenizer = getattr(processing_class, "tokenizer", processing_class)
    end_ids = frozenset(eos_token_ids(model, tokenizer))
    prompt = question_prompt(tokenizer, **(fields.get("chat_template_kwargs") or {}))
    thinking = ThinkingMarkers.of(tokenizer, reward.thinking_end) if reward.length_of == "thinking" else None
    return RunSettings(
        config=name,
        num_generations=size,
        num_generations_eval=size_eval,
        max_completion_length=limit or math.inf,
        end_ids=end_ids,
        pad_id=tokenizer.pad_token_id,
        advantage=advantage,
        thinking=thinking,
        is_thinking_opened=thinking is not None and thinking.is_opened_by(prompt),
        opens_thinking=opens_thinking(prompt),
    )


class LeashProgressCallback(ProgressCallback):
    """The progress bar of transformers, which also shows lambda, mean length, accuracy and satisfaction rate.

    `leash train` uses it. In a script, add it after `trainer.remove_callback(ProgressCallback)`.
    """

    def on_log(self, args, state, control, logs=None, **kwargs):
        if not state.is_world_process_zero or self.training_bar is None:
            return
        values = {label: logs[key] for label, key in SHOWN_BESIDE_THE_BAR.items() if logs.get(key) is not None}
        if values:
            self.training_bar.set_postfix({label: f"{value:.4g}" for label, value in values.items()})
