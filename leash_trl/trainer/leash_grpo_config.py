"""Configuration of `LeashGRPOTrainer`: LEASH's own fields, the paper's recipe as defaults of TRL's fields, checks."""

import difflib
import math
import warnings
from dataclasses import dataclass, field, fields
from typing import Any, cast

import yaml
from transformers import GenerationConfig
from trl import GRPOConfig

from leash_trl.hub.hub_token import HubToken, tokens_in
from leash_trl.length_control.method import LengthControl
from leash_trl.length_control.methods import find_method
from leash_trl.length_control.targets import scheduled_target
from leash_trl.microbatching.length_grouped_grpo_config import LengthGroupedGRPOConfig
from leash_trl.microbatching.loss_weights import LOSS_TYPES


LEAST = {
    "per_device_train_batch_size": 1,
    "per_device_eval_batch_size": 1,
    "gradient_accumulation_steps": 1,
    "steps_per_generation": 1,
    "generation_batch_size": 1,
    "num_generations": 2,
    "num_iterations": 1,
}
# TRL: GRPOTrainer._generate_single_turn expects a tensor with one completion per prompt, and passes no tokenizer
NOT_FOR_TRAINING = {"num_return_sequences": 1, "return_dict_in_generate": False, "stop_strings": None}
SAMPLING = {"do_sample": True, "num_beams": 1}
LAMBDA_FIELDS = ("lambda_init", "lambda_lr", "lambda_min", "lambda_max")


def _help_of(name: str) -> str:
    """The installed TRL's help for one of its fields, which may name choices that we do not know yet."""
    text: str = GRPOConfig.__dataclass_fields__[name].metadata["help"]
    return text


def mapping_field(name: str, value: Any) -> dict[Any, Any] | None:
    """Reads a field that a recipe gives as a mapping and a command line as YAML or JSON text."""
    try:
        mapping = yaml.safe_load(value) if isinstance(value, str) else value
    except yaml.YAMLError:
        mapping = value
    if mapping is not None and not isinstance(mapping, dict):
        raise ValueError(f"{name} is {value!r}, but must be a mapping or the text of one, such as '{{a: 0.5}}'")
    return mapping


@dataclass
class LeashGRPOConfig(LengthGroupedGRPOConfig):
    r"""
    Configuration class for the [`LeashGRPOTrainer`].

    This class includes the parameters of LEASH and those of [`~trl.GRPOConfig`] whose defaults differ: the defaults
    are the recipe of the paper and of its authors' release. `length_grouped_microbatches` and `skip_zero_signal` come
    from [`LengthGroupedGRPOConfig`]. For all others see [`~trl.GRPOConfig`].

    Parameters:
        > Parameters that control the length constraint

        length_control (`str`, *optional*, defaults to `"leash"`):
            Method that shapes the rewards: a name that `leash methods` lists, or an import path.
        length_control_kwargs (`dict` or `str`, *optional*):
            Hyper-parameters of the method, as a mapping or its text; those left out have the paper's values.
        target_length (`int`, *optional*):
            Target for the mean completion length, in tokens. Required by methods with a target, LEASH among them; must
            be below `max_completion_length`. A column `target_length` in the data set gives each prompt its own
            target.
        target_schedule (`str`, *optional*, defaults to `"constant"`):
            How the target moves over training: `constant`, `linear` or `staged`.
        target_milestones (`dict` or `str`, *optional*):
            Target in tokens by number of policy updates done, such as `{0: 8192, 100: 4096}`, for the schedules
            `linear` and `staged`. The last one is `target_length`; targets from a data set's column move in
            proportion.
        lambda_init (`float`, *optional*):
            Penalty coefficient lambda before the first dual step, in reward units. The default is the method's own:
            0.1 for LEASH. The paper uses 0.1 for the 1.5B and 0.2 for the 4B model.
        lambda_lr (`float`, *optional*):
            Step size of the dual step; with LEASH, 0 freezes lambda, which is LEASH-C. The default is the method's
            own: 0.005 for LEASH. The paper uses 0.005, and 0.05 for 4B at 8k.
        lambda_min (`float`, *optional*):
            Lower bound of lambda. The default is the method's own: 0 for LEASH.
        lambda_max (`float`, *optional*):
            Upper bound of lambda. The default is the method's own: 1 for LEASH.
        correctness_func (`str`, *optional*):
            Reward function whose positive reward makes an answer correct. The default is the weighted sum of all;
            with several functions, methods with their own reward scale need the name of one. They treat a completion
            for which it returns `None` as unscorable, not as wrong.
        advantage_epsilon (`float`, *optional*, defaults to `1e-8`):
            Added to the standard deviation of the shaped rewards when advantages are normalised. The paper has 1e-8,
            the authors' release 1e-6, TRL 1e-4.
        reward_baseline (`str`, *optional*, defaults to `"mean"`):
            What is subtracted from the shaped rewards of a group: their `mean`, or for `length_weighted` their mean
            weighted by length, sum(L R) / sum(L) (OPO). The name is that of TRL's pull request 6620.
        length_objective_weight (`float`, *optional*, defaults to `1.0`):
            Weight of the length objective with `multi_objective_aggregation="normalize_then_sum"` (GDPO); the task
            objective has 1. GDPO divides each objective by its own deviation, so that lambda and the method's other
            weights cancel out, and this one is left.
        dynamic_sampling_rounds (`int`, *optional*, defaults to `0`):
            Rounds in which groups without signal are replaced by fresh prompts (DAPO's dynamic sampling); 0 is off.
            LEASH leaves it out, DLER needs it.
        dynamic_sampling_oversample (`float`, *optional*, defaults to `0.0`):
            Most extra groups that are generated together with a batch, as a share of it, to replace those that are
            likely to have no signal; 0 is off. Rounds then only fill what is still missing; without rounds, one call
            generates all. Replacements pass over a question whose last groups had no signal, up to three times in a
            row; batches hold every question as before.
        update_batch_size (`int`, *optional*):
            Completions, over all processes, that a policy update should have; if it has another number, a warning
            says what to set. This field itself sets nothing.

        > Parameters whose defaults differ from GRPOConfig: the paper's recipe

        max_completion_length (`int`, *optional*, defaults to `32768`):
            Maximum number of tokens to generate per completion. As in TRL, a limit in `generation_kwargs`
            (`max_new_tokens`, with vLLM `max_tokens`) wins; `None` leaves the limit to the engine.
        epsilon_high (`float`, *optional*, defaults to `0.28`):
            Upper clipping range of the importance ratio (DAPO's clip-higher).
        lr_scheduler_type (`str`, *optional*, defaults to `"constant"`):
            Learning rate schedule.
        weight_decay (`float`, *optional*, defaults to `0.1`):
            Weight decay of AdamW. From the authors' release.
        vllm_importance_sampling_correction (`bool`, *optional*, defaults to `False`):
            Whether to correct for the mismatch between vLLM's and the trainer's probabilities. The paper does not;
            TRL's default mode drops whole sequences, long ones first. If you turn it on, prefer
            `vllm_importance_sampling_mode="token_truncate"`.
    """

    length_control: str = field(
        default="leash",
        metadata={
            "help": "Method that shapes the rewards: a name that `leash methods` lists, or an import path.",
        },
    )
    length_control_kwargs: dict[str, Any] | str | None = field(
        default=None,
        metadata={
            "help": "Hyper-parameters of the method, as a mapping or its text; those left out have the paper's values."
        },
    )
    target_length: int | None = field(
        default=None,
        metadata={"help": "Target for the mean completion length, in tokens."},
    )
    target_schedule: str = field(
        default="constant",
        metadata={"help": "How the target moves over training: `constant`, `linear` or `staged`."},
    )
    target_milestones: dict[str, Any] | str | None = field(
        default=None,
        metadata={
            "help": "Target in tokens by number of policy updates done, such as `{0: 8192, 100: 4096}`, for the "
            "schedules `linear` and `staged`."
        },
    )
    lambda_init: float | None = field(
        default=None,
        metadata={"help": "Penalty coefficient lambda before the first dual step, in reward units."},
    )
    lambda_lr: float | None = field(
        default=None,
        metadata={"help": "Step size of the dual step; with LEASH, 0 freezes lambda, which is LEASH-C."},
    )
    lambda_min: float | None = field(default=None, metadata={"help": "Lower bound of lambda."})
    lambda_max: float | None = field(default=None, metadata={"help": "Upper bound of lambda."})
    correctness_func: str | None = field(
        default=None,
        metadata={"help": "Reward function whose positive reward makes an answer correct."},
    )
    advantage_epsilon: float = field(
        default=1e-8,
        metadata={"help": "Added to the standard deviation of the shaped rewards when advantages are normalised."},
    )
    reward_baseline: str = field(
        default="mean",
        metadata={
            "help": "What is subtracted from the shaped rewards of a group: their `mean`, or for `length_weighted` "
            "their mean weighted by length, sum(L R) / sum(L) (OPO)."
        },
    )
    length_objective_weight: float = field(
        default=1.0,
        metadata={
            "help": 'Weight of the length objective with `multi_objective_aggregation="normalize_then_sum"` (GDPO); '
            "the task objective has 1."
        },
    )
    dynamic_sampling_rounds: int = field(
        default=0,
        metadata={
            "help": "Rounds in which groups without signal are replaced by fresh prompts (DAPO's dynamic sampling); 0 "
            "is off."
        },
    )
    dynamic_sampling_oversample: float = field(
        default=0.0,
        metadata={
            "help": "Most extra groups that are generated together with a batch, as a share of it, to replace those "
            "that are likely to have no signal; 0 is off."
        },
    )
    update_batch_size: int | None = field(
        default=None,
        metadata={
            "help": "Completions, over all processes, that a policy update should have; if it has another number, a "
            "warning says what to set."
        },
    )

    max_completion_length: int | None = field(
        default=32768,
        metadata={"help": "Maximum number of tokens to generate per completion."},
    )
    epsilon_high: float | None = field(
        default=0.28,
        metadata={"help": "Upper clipping range of the importance ratio (DAPO's clip-higher)."},
    )
    lr_scheduler_type: str = field(default="constant", metadata={"help": "Learning rate schedule."})
    weight_decay: float = field(default=0.1, metadata={"help": "Weight decay of AdamW."})
    vllm_importance_sampling_correction: bool = field(
        default=False,
        metadata={"help": "Whether to correct for the mismatch between vLLM's and the trainer's probabilities."},
    )

    def __post_init__(self):
        self._check_ranges()
        is_generation_batch_given = self.generation_batch_size is not None
        steps_name = "gradient_accumulation_steps" if self.steps_per_generation is None else "steps_per_generation"
        try:
            super().__post_init__()
        except ValueError:
            if not is_generation_batch_given and self.generation_batch_size is not None:
                self._check_whole_groups(steps_name)
            raise
        for field_name in (name for name in self.__dataclass_fields__ if name.endswith("_kwargs")):
            setattr(self, field_name, mapping_field(field_name, getattr(self, field_name)))
        self._check_no_token_elsewhere()
        self.target_milestones = mapping_field("target_milestones", self.target_milestones)
        method = self.make_length_control()
        self._check_limit()
        self._check_generation_kwargs()
        self._check_type_of_target()
        self._check_schedule(method)
        self._check_target(method)
        self._check_advantages(method)
        self._warn_about_legal_mistakes(method)
        self._check_update_batch(is_generation_batch_given)

    def _check_ranges(self) -> None:
        """Checks values that TRL or transformers divide by, or refuse only after training has begun."""
        for name, least in LEAST.items():
            if (value := getattr(self, name)) is not None and value < least:
                raise ValueError(f"{name} is {value}, but must be at least {least}")
        if self.max_steps == 0:
            raise ValueError("max_steps is 0, but must be at least 1, or -1 to train for num_train_epochs")
        for name in ("top_p", "min_p"):
            if (value := getattr(self, name)) is not None and not 0 <= value <= 1:
                raise ValueError(f"{name} is {value}, but must lie between 0 and 1")
        if not self.learning_rate >= 0:
            raise ValueError(f"learning_rate is {self.learning_rate}, but must be at least 0")
        if not self.temperature > 0:
            raise ValueError(f"temperature is {self.temperature}, but must be above 0, for training samples")
        if self.loss_type not in LOSS_TYPES and f"'{self.loss_type}'" not in _help_of("loss_type"):
            raise ValueError(f"loss_type is {self.loss_type!r}, but must be one of {', '.join(sorted(LOSS_TYPES))}")
        if self.scale_rewards not in (True, False, "group", "batch", "none"):
            raise ValueError(f"scale_rewards is {self.scale_rewards!r}, but must be 'group', 'batch' or 'none'")

    def _check_whole_groups(self, steps_name: str) -> None:
        """Checks the size of the generation batch: TRL's own error names a field that nobody set, and no remedy."""
        at_once, groups_of = self._completions_per_accumulation_step, self.num_generations
        steps = getattr(self, steps_name)
        if at_once * steps % groups_of:
            raise ValueError(
                f"a generation batch would have {at_once * steps} completions (processes {self.world_size} x "
                f"per_device_train_batch_size {self.per_device_train_batch_size} x {steps_name} {steps}), which are "
                f"no whole groups of num_generations {groups_of}; set {steps_name} to a multiple of "
                f"{groups_of // math.gcd(at_once, groups_of)}"
            )

    def __setattr__(self, name: str, value: Any) -> None:
        """Keeps the Hub token out of files and logs, whoever sets it, `set_push_to_hub` included."""
        super().__setattr__(name, HubToken(value) if name == "hub_token" and value is not None else value)

    def _check_no_token_elsewhere(self) -> None:
        for field_name in ("model_init_kwargs", "generation_kwargs", "chat_template_kwargs"):
            if names := tokens_in(getattr(self, field_name)):
                raise ValueError(
                    f"{field_name} holds a secret under {', '.join(names)}, which would be written to files and logs; "
                    "take it out, and set HF_TOKEN or run `hf auth login` instead"
                )

    def make_length_control(self) -> LengthControl:
        """A new instance of the method, in its initial state.

        Raises:
            `ValueError`: If the method or one of its hyper-parameters is unknown or out of range.
        """
        method = find_method(self.length_control)
        defaults = {field.name: field.default for field in fields(method)}
        given = {name: getattr(self, name) for name in LAMBDA_FIELDS if getattr(self, name) is not None}
        kwargs = cast(dict[str, Any], self.length_control_kwargs or {})
        for name, value in {**kwargs, **given}.items():
            if name not in defaults:
                known = ", ".join(defaults) or "none"
                remedy = "set it to null" if name in given else "drop it from length_control_kwargs, or mend its name"
                raise ValueError(
                    f"{name} means nothing to length_control={self.length_control!r}, whose parameters are {known}; "
                    + remedy
                )
            if name in kwargs and name in given:
                raise ValueError(f"{name} is given twice, as {given[name]} and in length_control_kwargs; drop one")
            if isinstance(value, str) and isinstance(defaults[name], int | float):
                raise ValueError(
                    f"{name} is the text {value!r}, but must be a number; YAML reads 5e-1 as text, 0.5 not"
                )
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{name} is {value}, but must be a finite number")
        made = method(**{**kwargs, **given})
        made.set_for_run(
            generation_limit=self.generation_limit,
            reward_baseline=self.reward_baseline,
            multi_objective_aggregation=self.multi_objective_aggregation,
            length_objective_weight=self.length_objective_weight,
            optimizer_momentum=self.adam_beta1,
        )
        return made

    def target_at(self, step: int) -> float | None:
        """The target in tokens after `step` policy updates, or `None` if there is none."""
        if self.target_length is None:
            return None
        milestones = cast(dict[int, float], self.target_milestones or {})
        return scheduled_target(self.target_schedule, milestones, self.target_length, step)

    def _limit(self) -> tuple[str, int | None]:
        """Name and value of the generation limit: as in TRL, `generation_kwargs` wins over `max_completion_length`."""
        kwargs, name = self.generation_kwargs or {}, "max_tokens" if self.use_vllm else "max_new_tokens"
        if name in kwargs:
            return f"generation_kwargs.{name}", kwargs[name]
        return "max_completion_length", self.max_completion_length

    @property
    def generation_limit(self) -> float:
        """Most tokens that a completion may have; infinite if only the engine's own limit or the context ends it."""
        limit = self._limit()[1]
        return math.inf if limit is None else limit

    def _check_limit(self) -> None:
        name, limit = self._limit()
        unknown = {"max_length", "max_new_tokens"} if self.use_vllm else {"max_tokens"}
        if found := sorted(unknown & set(self.generation_kwargs or {})):
            raise ValueError(
                f"generation_kwargs holds {found[0]}, which does not limit completions here; set max_completion_length"
            )
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            raise ValueError(f"{name} is {limit!r}, but must be a positive whole number of tokens")
        if self.loss_type == "dr_grpo" and self.max_completion_length is None:
            raise ValueError(
                "max_completion_length is None, but loss_type='dr_grpo' divides by it; set it to the most tokens that "
                "a completion may have"
            )

    def _check_generation_kwargs(self) -> None:
        """Checks options that transformers ignores, or refuses only when it generates; vLLM has its own names."""
        kwargs = {name: value for name, value in (self.generation_kwargs or {}).items() if value is not None}
        temperature = kwargs.get("temperature", 1)
        if not isinstance(temperature, int | float) or not temperature > 0:
            raise ValueError(
                f"generation_kwargs.temperature is {temperature!r}, but must be a number above 0, for training samples"
            )
        if self.use_vllm:
            return
        known = vars(GenerationConfig())
        for name in kwargs.keys() - known:
            similar = difflib.get_close_matches(name, known, n=1)
            raise ValueError(
                f"generation_kwargs holds {name}, which transformers does not know; "
                + (f"did you mean {similar[0]}?" if similar else "drop it")
            )
        for name, due in NOT_FOR_TRAINING.items():
            if (value := kwargs.get(name) or due) != due:
                raise ValueError(f"generation_kwargs.{name} is {value!r}, which TRL cannot train on; drop it")
        for name, due in SAMPLING.items():
            if (value := kwargs.get(name, due)) != due:
                warnings.warn(
                    f"generation_kwargs.{name} is {value!r}, so that completions are no plain samples of the policy "
                    "and those of one prompt may be all alike, which trains nothing; drop it",
                    UserWarning,
                    stacklevel=4,
                )

    def _check_target(self, method: LengthControl) -> None:
        if self.target_length is None:
            if method.target_use == "required":
                raise ValueError(
                    "target_length is required, beside a column of targets too: the mean completion length to aim "
                    "for, in tokens, such as 4096"
                )
            method.check(None, self.generation_limit, self.num_generations)
            return
        self.check_target(self.target_length, method)

    def check_target(self, target: int, method: LengthControl) -> None:
        """Raises `ValueError` if no completion could violate a target, the configured one or a prompt's own, or if the
        method cannot use it, now or at a milestone."""
        limit = self.generation_limit
        # if generation is cut at the target, every completion that is cut has violated it
        cuts = type(method).generation_cap is not LengthControl.generation_cap
        if method.target_use != "none" and (target > limit or (target == limit and not cuts)):
            raise ValueError(
                f"target_length is {target}, but must {'not be above' if cuts else 'be below'} "
                f"{self._limit()[0]}={limit}: no completion could violate it; lower the target or raise the limit"
            )
        method.check(target, limit, self.num_generations)
        for step, milestone in cast(dict[int, float], self.target_milestones or {}).items():
            try:
                moved = min(target * milestone / cast(int, self.target_length), max(target, limit))
                method.check(math.ceil(moved), limit, self.num_generations)
            except ValueError as error:
                raise ValueError(f"target_milestones holds {step}: {milestone:g}, and {error}") from error

    def _check_type_of_target(self) -> None:
        if self.target_length is None:
            return
        if isinstance(self.target_length, bool) or not isinstance(self.target_length, int) or self.target_length < 1:
            raise ValueError(f"target_length is {self.target_length!r}, but must be a positive whole number of tokens")

    def _check_schedule(self, method: LengthControl) -> None:
        if self.target_schedule not in ("constant", "linear", "staged"):
            raise ValueError(
                f"target_schedule is {self.target_schedule!r}, but must be 'constant', 'linear' or 'staged'"
            )
        if (self.target_schedule == "constant") != (not self.target_milestones):
            raise ValueError(
                f"target_schedule={self.target_schedule!r} with target_milestones={self.target_milestones!r}: "
                "milestones such as {0: 8192, 100: 4096} and a schedule other than 'constant' go together"
            )
        if not self.target_milestones:
            return
        if self.target_length is None:
            raise ValueError("target_schedule needs target_length, the target from the last milestone on")
        try:
            # keys from JSON and the command line are strings
            given = cast(dict[Any, Any], self.target_milestones)
            milestones = {int(str(step)): float(target) for step, target in given.items()}
        except (TypeError, ValueError, AttributeError) as error:
            raise ValueError(
                f"target_milestones is {self.target_milestones!r}, but must map whole steps to tokens, such as "
                "{0: 8192, 100: 4096}"
            ) from error
        for step, target in milestones.items():
            most = self.generation_limit if method.target_use != "none" else math.inf
            if step < 0 or not 0 < target <= most:
                raise ValueError(
                    f"target_milestones holds {step}: {target}, but steps start at 0, and targets lie above it and "
                    f"within {self._limit()[0]}={self.generation_limit}"
                )
        if (last := milestones[max(milestones)]) != self.target_length:
            raise ValueError(
                f"target_milestones ends with {last:g}, but target_length is {self.target_length}; they must agree"
            )
        self.target_milestones = cast(dict[str, Any], milestones)

    def _check_advantage_rule(self, method: LengthControl) -> None:
        for name, usual, other in (
            ("reward_baseline", "mean", "length_weighted"),
            ("multi_objective_aggregation", "sum_then_normalize", "normalize_then_sum"),
        ):
            if (value := getattr(self, name)) not in (usual, other):
                raise ValueError(f"{name} is {value!r}, but must be {usual!r} or {other!r}")
            if value == other and method.has_own_advantages:
                raise ValueError(
                    f"{name} is {value!r}, but length_control={self.length_control!r} computes advantages by a rule "
                    f"of its own, which would not see it; set it to {usual!r}"
                )
        if self.reward_baseline == "length_weighted" and method.may_cut:
            raise ValueError(
                f"reward_baseline is 'length_weighted', but length_control={self.length_control!r} cuts completions "
                "and trains on what is left, and the weights are their whole lengths; set it to 'mean'"
            )
        weight, is_decoupled = self.length_objective_weight, self.multi_objective_aggregation == "normalize_then_sum"
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight < math.inf:
            raise ValueError(f"length_objective_weight is {weight!r}, but must be a finite number of at least 0")
        if weight != 1 and not is_decoupled:
            raise ValueError(
                f"length_objective_weight is {weight}, but multi_objective_aggregation='sum_then_normalize' has no "
                "length objective apart; set that to 'normalize_then_sum', or this to 1"
            )
        if is_decoupled and (self.reward_baseline != "mean" or self.scale_rewards not in (True, "group")):
            raise ValueError(
                "multi_objective_aggregation='normalize_then_sum' subtracts the group's mean from each objective and "
                "divides it by the group's deviation, so it needs reward_baseline='mean' and scale_rewards='group', "
                f"but they are {self.reward_baseline!r} and {self.scale_rewards!r}"
            )

    def _check_advantages(self, method: LengthControl) -> None:
        epsilon = self.advantage_epsilon
        if isinstance(epsilon, bool) or not isinstance(epsilon, int | float) or not 0 < epsilon < math.inf:
            raise ValueError(f"advantage_epsilon is {epsilon!r}, but must be a positive number, such as 1e-8")
        self._check_advantage_rule(method)
        rounds = self.dynamic_sampling_rounds
        if isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 0:
            raise ValueError(f"dynamic_sampling_rounds is {rounds!r}, but must be 0 (off) or a number of rounds")
        oversample = self.dynamic_sampling_oversample
        if isinstance(oversample, bool) or not isinstance(oversample, int | float) or not 0 <= oversample < math.inf:
            raise ValueError(
                f"dynamic_sampling_oversample is {oversample!r}, but must be 0 (off) or a positive share of the "
                "batch, such as 0.5"
            )
        if self.uses_dynamic_sampling and self.generation_batch_share % self.num_generations:
            raise ValueError(
                f"dynamic sampling replaces whole groups within a process, so per_device_train_batch_size * "
                f"steps_per_generation = {self.generation_batch_share} must be a multiple of num_generations="
                f"{self.num_generations}"
            )

    @property
    def uses_dynamic_sampling(self) -> bool:
        """Whether groups without signal are replaced."""
        return self.dynamic_sampling_rounds > 0 or self.dynamic_sampling_oversample > 0

    @property
    def generation_batch_share(self) -> int:
        """Completions that one process generates at a time."""
        return self.per_device_train_batch_size * self.steps_per_generation

    @property
    def _completions_per_accumulation_step(self) -> int:
        return self.world_size * self.per_device_train_batch_size

    def batches(self) -> str:
        """One line with the sizes of a generation batch and a policy update in this run."""
        update = self._completions_per_accumulation_step * self.gradient_accumulation_steps
        updates = self.generation_batch_size * self.num_iterations / update
        return (
            f"generation batch: {self.generation_batch_size} completions "
            f"({self.generation_batch_size // self.num_generations} prompts x {self.num_generations}); policy update: "
            f"{update} completions (processes {self.world_size} x per_device_train_batch_size "
            f"{self.per_device_train_batch_size} x gradient_accumulation_steps {self.gradient_accumulation_steps}); "
            + (f"updates a generation batch: {updates:g}" if updates >= 1 else f"batches an update: {1 / updates:g}")
        )

    def _check_update_batch(self, is_generation_batch_given: bool) -> None:
        meant, at_once = self.update_batch_size, self._completions_per_accumulation_step
        if meant is not None and (isinstance(meant, bool) or not isinstance(meant, int) or meant < 1):
            raise ValueError(f"update_batch_size is {meant!r}, but must be a positive number of completions")
        update, generation = at_once * self.gradient_accumulation_steps, self.generation_batch_size
        if self.process_index != 0 or (meant in (None, update) and not self._splits_updates_badly(update)):
            return
        text, remedies = f"{generation} completions a generation batch, {update} an update", []
        accumulation, rest = divmod(meant or update, at_once)
        if meant not in (None, update):
            text += f"; by its update_batch_size the recipe means {meant} an update"
            remedies.append(f"set gradient_accumulation_steps to {accumulation}")
        if rest:
            remedies = [
                f"no whole gradient_accumulation_steps gives that with {self.world_size} processes and "
                f"per_device_train_batch_size {self.per_device_train_batch_size}, change these"
            ]
        elif generation % update == 0 and not is_generation_batch_given:  # as many updates a batch as there are
            kept = generation // update
            updates = f"{kept} update{'s' if kept > 1 else ''}"
            remedies.append(f"set steps_per_generation to {kept * accumulation} to keep {updates} a generation batch")
        elif self._splits_updates_badly(size := accumulation * at_once):
            name, value = "steps_per_generation", accumulation
            if is_generation_batch_given:
                name, value = "generation_batch_size", size
            remedies.append(f"set {name} to {value} or a multiple of it")
        warnings.warn(f"{text}: {', and '.join(remedies)}", UserWarning, stacklevel=4)

    def _splits_updates_badly(self, update: int) -> bool:
        """Whether updates are no whole number of generation batches nor the other way round, or, with vLLM, share
        several: it needs no small batches to save memory, as transformers does."""
        generation = self.generation_batch_size
        return generation % update != 0 and (self.use_vllm or update % generation != 0)

    def _warn_about_legal_mistakes(self, method: LengthControl) -> None:
        if self.top_p < 1 or self.top_k > 0 or self.min_p:
            warnings.warn(
                f"top_p={self.top_p}, top_k={self.top_k}, min_p={self.min_p}: truncated sampling biases the "
                "importance ratio and hides the long tail that the constraint is about; the paper samples all tokens",
                UserWarning,
                stacklevel=4,
            )
        is_decoupled = self.multi_objective_aggregation == "normalize_then_sum"
        has_multiplier = any(name.startswith("lambda") for name in method.statistics())
        if is_decoupled and has_multiplier and self.advantage_epsilon < 1e-3:
            warnings.warn(
                f"{method.name} with multi_objective_aggregation='normalize_then_sum' and advantage_epsilon="
                f"{self.advantage_epsilon}: dividing the length objective by its own deviation cancels the "
                "multiplier, so any lambda above 0 pushes at full strength in every group; set advantage_epsilon to "
                "0.1, take a method without a multiplier, or set multi_objective_aggregation to 'sum_then_normalize'",
                UserWarning,
                stacklevel=4,
            )
        if self.mask_truncated_completions and method.needs_truncated:
            warnings.warn(
                f"mask_truncated_completions=True: the longest completions give no gradient, but {method.name} counts "
                "on them: a multiplier rises while nothing teaches them to be shorter, and where generation is cut, "
                "the cut is what teaches; set it to False",
                UserWarning,
                stacklevel=4,
            )
