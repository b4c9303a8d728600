"""Configuration of `LeashGRPOTrainer`: LEASH's own parameters, the paper's recipe as defaults, and checks."""

import math
import warnings
from dataclasses import dataclass
from typing import Any, cast

from transformers import GenerationConfig

from leash_trl.completions.costs import TOKEN_COSTS, Cost, find_cost
from leash_trl.completions.thinking import check_thinking_end
from leash_trl.hub_token import TOKEN_PATTERN
from leash_trl.length_control.advantages import AdvantageRule, Scaling
from leash_trl.length_control.fields import hyperparameter_names
from leash_trl.length_control.method import LengthControl
from leash_trl.length_control.methods import SHARED_FIELDS, find_method, hyperparameter_values
from leash_trl.length_control.none import NoControl
from leash_trl.length_control.targets import check_method_supports_cost, check_target, scaled_target, scheduled_target
from leash_trl.microbatching.length_grouped_grpo_config import LengthGroupedGRPOConfig
from leash_trl.process import set_environment
from leash_trl.saved_recipe import field_as_mapping
from leash_trl.trainer import trl_settings


@dataclass
class LeashGRPOConfig(LengthGroupedGRPOConfig):
    """Configuration class for the [`LeashGRPOTrainer`]; its defaults are the recipe of the paper and of its authors'
    release.

    Other parameters are those of [`LengthGroupedGRPOConfig`] and [`~trl.GRPOConfig`].

    Args:
        length_control (`str`): Method that shapes the rewards: a name that `leash methods` lists, or a class of your
            own, as `my_file.py:MyMethod` or its import path.
        length_control_kwargs (`dict` or `str`): Hyper-parameters of the method, as a mapping or as YAML text; those
            left out have the method's defaults.
        target_length (`float`): Target for the mean length of completions, in tokens, or in what `length_of` counts.
            DLER and all methods derived from LEASH and LASER require it, for `l1_exact` and `l1_max` it is optional,
            and for the other methods it has no effect. A target in tokens must be below `max_completion_length` (for
            DLER, at most equal to it). A column `target_length` in the data set gives prompts their own targets.
        length_of (`str` or `Callable`): What the length of a completion is: `completion`, `thinking`, `checking`,
            `tool_calls`, `turns`, or a function of your own, as `my_file.py:my_function`.

            - `completion`: the tokens that the model generated, without the output of tools.
            - `thinking`: the tokens up to and including the last `thinking_end`, so that the length of the answer is
              free. If a completion never ends its thinking, all its tokens count; if it has no thinking, its length is
              0.
            - `checking`: the tokens after the first place where the correct answer stands (column `solution`, a number
              or a short text). Reaching this answer is free, and so is a check that repairs a wrong result. If the
              answer stands nowhere, the length is 0. Completions with the output of tools raise an error.
            - `tool_calls`, `turns`: the number of tool calls, or of messages, that the model wrote in a conversation
              with `tools` or an `environment_factory`.
            - a function, as `my_file.py:my_function`, its import path or, in Python, the function itself: it is called
              like a reward function, must not be async, and must return one number of at least 0 for each completion.

            Generation limits always apply to the tokens of whole completions.
        thinking_end (`str`): Text that ends the thinking. The thinking begins with the same text without its slash,
            such as `<think>`, in the completion or at the end of the prompt. With `length_of: thinking`, the run ends
            with an error if no completion of the first batch has ended its thinking.
        target_schedule (`str`): How the target changes during training: `constant`, `linear` (interpolated between
            milestones) or `staged` (that of the last milestone reached).
        target_milestones (`dict` or `str`): Target after a number of policy updates, such as `{0: 8192, 100:
            4096}`, for the schedules `linear` and `staged`. The last target must equal `target_length`; targets from a
            column of the data set change in proportion.
        lambda_init (`float`): Penalty coefficient lambda before the first dual step, in reward units. The four lambda
            parameters default to the values of the method; a method without one of them ignores it with a warning. The
            paper uses 0.1 for the 1.5B and 0.2 for the 4B model.
        lambda_lr (`float`): Step size of the dual step; with LEASH, 0 keeps lambda constant, which is LEASH-C. The
            paper uses 0.005, and 0.05 for the 4B model with a target of 8k tokens.
        lambda_min (`float`): Lower bound of lambda. With `leash_predictive` it may be negative, down to -1; then
            answers that are shorter than the target become longer again, even if accuracy is below `min_accuracy`.
        lambda_max (`float`): Upper bound of lambda.
        min_accuracy (`float`): Accuracy floor for the training batches, in [0, 1]; `None` for no floor. The length
            penalty is reduced as accuracy comes near the floor, and goes on decreasing while accuracy is below, so
            `target_length` may be lower than what the task allows. Accuracy is kept near the floor, not above it. Only
            `leash`, `leash_c`, `leash_predictive` and `laconic` have a floor; other methods raise an error.
        correctness_func (`str`): Name of the reward function whose positive reward means that an answer is correct; by
            default the only reward function. Set it if there are several, or if the only one gives partial credit (two
            different positive rewards). Otherwise it is not known which answers are correct: no accuracy is logged,
            and `min_accuracy` and the methods that need correctness raise an error. They treat a completion for which
            the function returns `None` as one without a reward, not as a wrong one. With `leash train`,
            `my_module.my_function` or `my_file.py:my_function` may also be a function that is not among the reward
            functions: it is called and logged with them, but has no weight. In Python, pass such a function to the
            trainer.
        advantage_epsilon (`float`): Value added to the standard deviation of the shaped rewards when advantages are
            normalized. The paper uses 1e-8, the authors' release 1e-6, TRL 1e-4.
        multi_objective_aggregation (`str`): `sum_then_normalize` or, only with `length_control: none`,
            `normalize_then_sum`: TRL then normalizes each reward function apart, with TRL's epsilon
            ([GDPO](https://huggingface.co/papers/2601.05242)). The penalties of other methods apply to the sum of all
            rewards.
        dynamic_sampling_rounds (`int`): Maximum number of further rounds of generation in which new prompts replace
            groups without signal (DAPO's dynamic sampling); 0 turns it off. The paper of LEASH does not use it, that
            of DLER does.
        max_completion_length (`int`): Maximum number of tokens to generate per completion. As in TRL, a limit in
            `generation_kwargs` (`max_new_tokens`, with vLLM `max_tokens`) overrides it; with `None`, the engine
            decides.
        epsilon_high (`float`): Upper clipping range of the importance ratio (DAPO's clip-higher).
        logging_steps (`float`): Number of policy updates per log entry, whose values are means over these updates.
            Curves and comparisons need every update; TRL's default is 10.
        eval_steps (`float`): Number of policy updates between evaluations, with `eval_strategy="steps"`.
        lr_scheduler_type (`str`): Learning rate schedule.
        weight_decay (`float`): Weight decay of AdamW. From the authors' release.
        vllm_importance_sampling_correction (`bool`): Whether to correct for the mismatch between vLLM's and the
            trainer's probabilities. The paper does not correct for it. If you do, set
            `vllm_importance_sampling_mode="token_truncate"`, since TRL's default mode drops whole sequences, long ones
            first.
    """

    # Parameters that control the length constraint
    length_control: str = "leash"
    length_control_kwargs: dict[str, Any] | str | None = None
    target_length: float | None = None
    length_of: str = "completion"  # or a function, which becomes its import path
    thinking_end: str = "</think>"
    target_schedule: str = "constant"
    target_milestones: dict[int, float] | str | None = None
    lambda_init: float | None = None
    lambda_lr: float | None = None
    lambda_min: float | None = None
    lambda_max: float | None = None
    min_accuracy: float | None = None
    correctness_func: str | None = None
    advantage_epsilon: float = 1e-8
    dynamic_sampling_rounds: int = 0

    # Parameters whose defaults differ from GRPOConfig: the paper's recipe
    max_completion_length: int | None = 32768
    epsilon_high: float | None = 0.28
    logging_steps: float = 1
    eval_steps: float | None = 10
    lr_scheduler_type: str = "constant"
    weight_decay: float = 0.1
    vllm_importance_sampling_correction: bool = False

    def __post_init__(self):
        super().__post_init__()
        self.move_hub_token()
        self._read_mappings()
        if self.remove_unused_columns:
            raise ValueError(
                "remove_unused_columns is True, which would remove the columns that targets, methods and reward "
                "functions read; set it to False"
            )
        # The other checks depend on the method, which is created for them alone; the trainer creates its own.
        method = self.make_length_control()
        self.length_of = find_cost(self.length_of).name  # a function becomes its import path
        check_thinking_end(self.thinking_end)
        check_method_supports_cost(self.length_of, self.cost.counts_tokens, method)
        self._check_generation()
        self._check_schedule()
        self.check_target_and_milestones(self.target_length, method)
        self._check_advantages(method)
        if self.process_index == 0:
            for warning in self._warnings(method):
                warnings.warn(warning, UserWarning, stacklevel=3)

    def move_hub_token(self) -> None:
        """Moves the Hub token to the environment, where huggingface_hub looks for it, since files and logs show all
        fields of the configuration."""
        token = self.hub_token  # type: ignore[has-type]
        if token is not None:
            set_environment({"HF_TOKEN": token})
            self.hub_token = None

    def _read_mappings(self) -> None:
        """Converts fields that are mappings, which the command line gives as text, such as `"{alpha: 0.5}"`."""
        names = [name for name in self.__dataclass_fields__ if name.endswith("_kwargs")]
        for name in (*names, "target_milestones"):
            mapping = field_as_mapping(name, getattr(self, name))
            if TOKEN_PATTERN.search(str(mapping)):
                raise ValueError(f"{name} holds a Hub token, which files and logs would show; set HF_TOKEN instead")
            setattr(self, name, mapping)

    def make_length_control(self) -> LengthControl:
        """Returns a new instance of the method in its initial state; a run creates one and keeps it."""
        # Hyper-parameters come from length_control_kwargs and from fields of this class, such as lambda_init.
        method = find_method(self.length_control)
        values = hyperparameter_values(method, vars(self))
        unknown = values.keys() - hyperparameter_names(method)
        if unknown:
            raise ValueError(
                f"length_control is {self.length_control!r}, which has no {', '.join(unknown)}; remove it from the "
                "configuration or from length_control_kwargs"
            )
        return method(**values)

    @property
    def advantage_rule(self) -> AdvantageRule:
        """How advantages are computed from shaped rewards, by `scale_rewards` and `advantage_epsilon`."""
        return AdvantageRule(cast(Scaling, self.scale_rewards), self.advantage_epsilon)

    def target_at(self, step: int) -> float | None:
        """Returns the target after `step` policy updates, in the unit of `length_of`; `None` without a target."""
        if self.target_length is None:
            return None
        return scheduled_target(self.target_schedule, self._target_by_update, self.target_length, step)

    @property
    def cost(self) -> Cost:
        """What the target limits, by `length_of`."""
        return find_cost(self.length_of)

    @property
    def largest_length(self) -> float:
        """Largest length that a completion can have, in the unit of `length_of`: the generation limit, or infinity if
        `length_of` counts no tokens."""
        return self.generation_limit if self.length_of in TOKEN_COSTS else math.inf

    @property
    def _target_by_update(self) -> dict[int, float]:
        """Target after a number of policy updates, such as `{0: 8192.0, 100: 4096.0}`; empty without milestones."""
        return cast(dict[int, float], self.target_milestones or {})

    @property
    def generation_limit(self) -> float:
        """Most tokens that a completion may have; see [`~leash_trl.trainer.trl_settings.generation_limit`]."""
        return trl_settings.generation_limit(self)

    @property
    def normalizes_each_reward(self) -> bool:
        """Whether TRL normalizes each reward function in its group before it sums them, as in GDPO."""
        return self.multi_objective_aggregation == "normalize_then_sum"

    @property
    def uses_dynamic_sampling(self) -> bool:
        """Whether new prompts replace groups without signal."""
        return self.dynamic_sampling_rounds > 0

    def check_target_and_milestones(self, target: float | None, method: LengthControl) -> None:
        """Raises `ValueError` if a target, the configured one or a prompt's own, is not allowed as it is or as the
        schedule changes it at a milestone."""
        limit = self.largest_length
        check_target(target, method, limit)
        if target is None or self.target_length is None:  # only a configuration with a target has milestones
            return
        for milestone in self._target_by_update.values():  # targets, such as 8192
            target_at_milestone = scaled_target(target, milestone, self.target_length, largest_length=limit)
            method.check(math.ceil(target_at_milestone), limit)

    def _check_schedule(self) -> None:
        """Converts `target_milestones`, and raises `ValueError` if they do not belong to `target_schedule`."""
        milestones = milestones_of(self.target_milestones)
        if not is_schedule(self.target_schedule, milestones, self.target_length):
            raise ValueError(
                f"target_schedule is {self.target_schedule!r} with target_milestones={self.target_milestones!r}, but "
                "must be 'constant' without milestones, or 'linear' or 'staged' with positive milestones that end "
                f"with target_length={self.target_length}"
            )
        self.target_milestones = milestones or None

    def _check_generation(self) -> None:
        """Raises `ValueError` for settings of generation that would be ignored, or with which processes would share a
        group in dynamic sampling."""
        unknown = (self.generation_kwargs or {}).keys() - vars(GenerationConfig()).keys()
        if unknown and not self.use_vllm:  # vLLM refuses names that it does not know
            raise ValueError(f"generation_kwargs holds {', '.join(unknown)}, which transformers ignores; correct it")
        # Dynamic sampling replaces whole groups of a process, so a process must not hold a part of a group.
        num_rows = self.per_device_train_batch_size * self.steps_per_generation  # of a process
        if self.uses_dynamic_sampling and num_rows % self.num_generations:
            raise ValueError(
                f"per_device_train_batch_size * steps_per_generation is {num_rows}, but dynamic sampling needs a "
                f"multiple of num_generations={self.num_generations}"
            )

    def _check_advantages(self, method: LengthControl) -> None:
        """Raises `ValueError` if rewards are normalized apart, but the method or dynamic sampling needs their sum."""
        # Each reward is then divided by its own standard deviation, so that lambda, the weight of a length term, would
        # cancel.
        if self.normalizes_each_reward and not isinstance(method, NoControl):
            raise ValueError(
                f"multi_objective_aggregation is {self.multi_objective_aggregation!r}, but length_control "
                f"{self.length_control!r} changes the sum of all rewards; set 'sum_then_normalize' (with "
                "'leash_predictive', the length is normalized apart), or length_control 'none' with a length reward "
                "among reward_funcs"
            )
        if self.normalizes_each_reward and self.uses_dynamic_sampling:
            raise ValueError(
                f"multi_objective_aggregation is {self.multi_objective_aggregation!r}, which normalizes over all "
                "groups, also those that dynamic sampling replaces; set dynamic_sampling_rounds to 0"
            )

    def _warnings(self, method: LengthControl) -> list[str]:
        """Returns warnings of settings that have no effect with this method, or that defeat it."""
        messages = []
        ignored = self._ignored_hyperparameters(method)
        if ignored:
            messages.append(
                f"{', '.join(ignored)}: ignored, since length_control={self.length_control!r} has no such parameter"
            )
        # By default, TRL samples from all tokens, and the importance ratio is computed from their full probabilities.
        if self.top_p != 1 or self.top_k > 0 or self.min_p:
            messages.append(
                f"top_p={self.top_p}, top_k={self.top_k}, min_p={self.min_p}: truncated sampling biases the "
                "importance ratio; remove them"
            )
        if self.mask_truncated_completions and method.needs_truncated:
            messages.append(
                f"mask_truncated_completions is True, but {method.name} learns from truncated completions; set it "
                "to False"
            )
        return messages

    def _ignored_hyperparameters(self, method: LengthControl) -> list[str]:
        """Returns the fields that are set, such as `lambda_lr=0.1`, but that the method does not have."""
        names = hyperparameter_names(type(method))
        ignored = []
        # Hyper-parameters that several methods have are fields of this class.
        for name in SHARED_FIELDS:
            value = getattr(self, name)
            if value is not None and name not in names:
                ignored.append(f"{name}={value}")
        return ignored


def milestones_of(mapping: Any) -> dict[int, float]:
    """Returns the targets by the number of updates, such as `{0: 8192.0, 100: 4096.0}`; empty for `None`."""
    # Keys from JSON and the command line are strings.
    return {int(str(step)): float(target) for step, target in (mapping or {}).items()}


def is_schedule(schedule: str, milestones: dict[int, float], target_length: float | None) -> bool:
    """Returns whether a schedule can have these milestones.

    >>> is_schedule("linear", {0: 8192.0, 100: 4096.0}, 4096)
    True
    """
    if schedule == "constant":
        return not milestones
    if schedule not in ("linear", "staged") or not milestones:
        return False
    # The milestone of the last step is the target at which the schedule ends.
    last_target = milestones[max(milestones)]
    return min(milestones.values()) > 0 and last_target == target_length
