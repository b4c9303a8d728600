"""`LengthControlledReward`: task rewards and a method as one reward function, for any TRL trainer.

The reward function shapes rewards. `callbacks.LengthControlCallback` passes it the settings of the run and the model
that is updated, and updates the state of the method. Asynchronous GRPO pickles the reward function into another
process; the original writes the method's state, and this copy its completions, into files of a temporary folder.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from transformers import PreTrainedModel, TrainerControl
from trl.trainer.utils import get_callable_name

from leash_trl.completions.costs import costs_of, find_cost, have_tool_outputs, warn_of_no_thinking
from leash_trl.completions.facts import CompletionFacts, facts_of_completions
from leash_trl.completions.thinking import ThinkingMarkers, ThinkingTokens, check_thinking_end
from leash_trl.length_control.advantages import DEFAULT_RULE
from leash_trl.length_control.correctness import CorrectnessRule
from leash_trl.length_control.method import LengthControl
from leash_trl.length_control.methods import find_method
from leash_trl.length_control.rollouts import Rollouts, Score
from leash_trl.length_control.statistics import log_entries, table_columns
from leash_trl.length_control.targets import TARGET_COLUMN, check_method_supports_cost, check_target, limits_generation
from leash_trl.model_facts import rendered_prompt
from leash_trl.reward_calls import bind_thinking_markers, reward_table
from leash_trl.trainer.advice import advice_metrics
from leash_trl.trainer.prompt_rows import prompt_facts
from leash_trl.trainer.rollouts_of_batch import rollouts_of_batch
from leash_trl.trainer.shared_folder import SharedFolder
from leash_trl.trainer.trl_settings import RunSettings, run_settings


class LengthControlledReward:
    """One reward function that combines task rewards with a method's length control, for TRL's trainers that take
    reward functions.

    Give the trainer this reward function and no other, and a [`~leash_trl.LengthControlCallback`], which updates the
    state of the method. Each trainer starts from the method's initial state, or from the checkpoint that it resumes.
    The rewards equal those of [`~leash_trl.LeashGRPOTrainer`]; the trainer computes its own advantages from them, with
    its own epsilon. A method that computes its own advantages returns them as rewards; this needs a trainer that does
    not divide by a standard deviation: GRPO with `scale_rewards: none`, or RLOO with `normalize_advantages: false`.
    Lengths are counted on `completion_ids`, without padding; in GRPO and RLOO, `completion_ids` include the output of
    tools. `recipes/any_trainer.md` lists the trainers that work.

    Args:
        reward_funcs (`Callable` or `list[Callable]`): Reward functions as for TRL, including async functions, but no
            reward models. They receive every argument that the trainer passes, including `trainer_state`,
            `log_metric`, `log_extra` and `environments`.
        method ([`~leash_trl.LengthControl`] or `str`): The method, or the name or import path of a method, which then
            has its default hyper-parameters.
        target_length (`float`): Target in the unit of `length_of`; a column `target_length` of the data set overrides
            it for single prompts.
        weights (`list[float]`): Weights of `reward_funcs`, dimensionless; 1 each by default.
        correctness_func (`Callable` or `str`): The function, or the name of one of `reward_funcs`, whose positive
            reward makes an answer correct, as in [`~leash_trl.LeashGRPOConfig`]. A function that is not among
            `reward_funcs` is called and logged with them, but has no weight.
        length_of (`str` or `Callable`), thinking_end (`str`): What the length of a completion is, and the text that
            ends the thinking, as in [`~leash_trl.LeashGRPOConfig`].

    Raises:
        `ValueError`: If the number of weights is not the number of functions, if the method cannot control
            `length_of`, or if the method needs to know which answers are correct and no function decides it. A call in
            training raises it if such a method has a single function that gives partial credit.

    Example:
        ```python
        reward = LengthControlledReward(math_reward, "leash", target_length=4096)
        trainer = RLOOTrainer(model, reward_funcs=reward, callbacks=[LengthControlCallback(reward)], ...)
        ```
    """

    def __init__(
        self,
        reward_funcs: Callable[..., Any] | Sequence[Callable[..., Any]],
        method: LengthControl | str,
        target_length: float | None = None,
        weights: Sequence[float] | None = None,
        correctness_func: Callable[..., Any] | str | None = None,
        length_of: str | Callable[..., Any] = "completion",
        thinking_end: str = "</think>",
    ):
        self.reward_funcs = list(reward_funcs) if isinstance(reward_funcs, Sequence) else [reward_funcs]
        self.names = [get_callable_name(function) for function in self.reward_funcs]
        self.method = find_method(method)() if isinstance(method, str) else method
        self.cost = find_cost(length_of)
        check_thinking_end(thinking_end)
        check_method_supports_cost(self.cost.name, self.cost.counts_tokens, self.method)
        if weights and len(weights) != len(self.reward_funcs):
            raise ValueError(f"weights are {weights}, but must be one for each of {len(self.reward_funcs)} functions")
        self.target_length = target_length
        self.thinking_end = thinking_end
        self.weights = torch.tensor(weights or [1.0] * len(self.reward_funcs))
        self.correctness = CorrectnessRule(
            self.reward_funcs, self.names, chosen=correctness_func, chosen_name=get_callable_name(correctness_func)
        )
        self.correctness.check_known_for(self.method)
        # A function that decides correctness, but is not a reward function, is called and logged too.
        self.all_functions = self.reward_funcs + self.correctness.unweighted_functions
        self.all_names = self.names + self.correctness.unweighted_names
        self.__name__ = f"{self.method.name}_reward"  # in TRL's log

        self.settings: RunSettings | None = None  # until a trainer begins
        self.control: TrainerControl | None = None  # of the trainer that trains with this reward, or did so last
        self.updated_model: PreTrainedModel | None = None  # between the beginning and the end of a policy update
        self.version = 0  # number of dual steps that the method has done
        self._scored: list[Rollouts] = []  # in training, since the last dual step
        self._shared_folder: SharedFolder | None = None  # if there are copies of this reward in other processes

    def read_run_settings(self, args: Any, model: PreTrainedModel, processing_class: Any) -> None:
        """Reads the settings of a run, and warns if a reward function can do only a part of what the method does.

        Args:
            args (`TrainingArguments`), model ([`~transformers.PreTrainedModel`]), processing_class: Those of the
                trainer.

        Raises:
            `ValueError`: If this trainer cannot do what the method does from rewards alone, or the target is out of
                range.
        """
        settings = run_settings(args, model, processing_class, self.thinking_end)
        if settings == self.settings:  # they were checked before; the callback calls this twice
            return
        if settings.normalizes_each_reward and len(self.reward_funcs) > 1:
            raise ValueError(
                f"multi_objective_aggregation is {args.multi_objective_aggregation!r}, but LengthControlledReward "
                f"returns the sum of its {len(self.reward_funcs)} functions as one reward; set 'sum_then_normalize', "
                "or give the functions and a length reward of your own to the trainer without it"
            )
        # The trainer computes advantages from rewards alone, so not every method can work with every trainer.
        check_groups(self.method, settings)
        check_own_advantages(self.method, settings)
        limit = self._largest_length(settings)
        check_target(self.target_length, self.method, limit)
        warn_of_partial_control(self.method, limit)
        warn_of_other_momentum(self.method, args)
        self.settings = settings

    @property
    def is_training(self) -> bool:
        """Whether a call now scores completions to train on, not those of an evaluation."""
        # The callback sets `updated_model` for the time of an update. An interrupted update leaves the model there,
        # but an evaluation sets the model to evaluation mode.
        return self._folder_of_copy is not None or (self.updated_model is not None and self.updated_model.training)

    @property
    def _folder_of_copy(self) -> SharedFolder | None:
        """The folder through which this reward, a copy in another process that only scores, exchanges files with the
        original; `None` for the original."""
        folder = self._shared_folder
        return folder if folder is not None and folder.is_of_other_process else None

    def __getstate__(self) -> dict[str, Any]:
        """Returns the fields of a copy, and creates the folder that the copy needs in another process."""
        if self._shared_folder is None:
            self._shared_folder = SharedFolder()
        if self._folder_of_copy is None:  # only the original writes the state
            self.publish_state(self.version)
        # The model is too large to be copied, and what was scored must not count twice.
        return {**vars(self), "updated_model": None, "_scored": []}

    def publish_state(self, version: int) -> None:
        """Writes the method's state after `version` dual steps for the copies of this reward, if there are any."""
        self.version = version
        if self._shared_folder is not None:
            self._shared_folder.write_state(version, self.method.state_dict())

    def pop_scored_rollouts(self) -> list[Rollouts]:
        """Removes and returns what this reward and its copies have scored in training since the last call."""
        scored = self._scored
        self._scored = []
        if self._shared_folder is not None:
            scored += self._shared_folder.pop_scored()
        return scored

    def __call__(self, prompts, completions, completion_ids, **columns) -> list[float | None]:
        """Returns one reward per completion; `None` for a completion without a reward from which the method trains.

        Raises:
            `ValueError`: If the trainer has no [`~leash_trl.LengthControlCallback`], or if the method needs whole
                groups and the call splits a group.
        """
        settings = self.settings
        if settings is None:
            raise ValueError("callbacks has no LengthControlCallback(reward), which updates the method; add it")
        self._read_state_of_original()
        arguments = {"prompts": prompts, "completions": completions, "completion_ids": completion_ids, **columns}
        markers = markers_of_prompts(prompts, settings)
        functions = bind_thinking_markers(self.all_functions, markers)
        rewards_NK = reward_table(functions, self.all_names, arguments, num_completions=len(completions))
        rollouts = self._rollouts(arguments, rewards_NK, settings, markers)
        # An evaluation may have other rewards, and must neither end a run nor change its state.
        if self.is_training:
            self._keep_scored(rollouts)
        rollouts = replace(rollouts, is_correctness_known=self.correctness.is_known)
        score = self.method.score(rollouts, DEFAULT_RULE)
        # GRPO and RLOO pass functions to log with; for other trainers, the callback adds what it can to the log.
        if "log_metric" in columns:
            self._log(rollouts, score, rewards_NK, columns)
        returned = score.shaped
        if self.method.own_advantages:
            returned = advantages_as_rewards(score, rollouts, settings.advantage_baseline == "leave_one_out")
        # TRL takes None for a completion that could not be scored.
        return [None if math.isnan(reward) else reward for reward in returned.tolist()]

    def _read_state_of_original(self) -> None:
        """Sets the method of a copy in another process to the state of the original."""
        folder = self._folder_of_copy
        if folder is not None:
            self.version, state = folder.read_state()
            self.method.load_state_dict(state)

    def _keep_scored(self, rollouts: Rollouts) -> None:
        """Keeps completions for the next dual step, in which the original uses what it and its copies have scored."""
        self.correctness.observe(rollouts.deciding_rewards)
        self.correctness.check_known_for(self.method)
        folder = self._folder_of_copy
        if folder is not None:
            folder.add_scored(rollouts)
        else:
            self._scored.append(rollouts)

    def _log(self, rollouts: Rollouts, score: Score, rewards_NK: torch.Tensor, columns: dict[str, Any]) -> None:
        """Logs statistics, and adds columns to the table of completions, by the functions that TRL passes."""
        metrics = log_entries(self.method, rollouts, score, version=self.version)
        metrics |= reward_log_entries(rewards_NK, self.all_names) | advice_metrics(columns["trainer_state"])
        for name, value in metrics.items():
            columns["log_metric"](name, value)
        for name, values in table_columns(rollouts, score).items():
            columns["log_extra"](name, values.tolist())

    def _rollouts(
        self,
        arguments: dict[str, Any],
        rewards_NK: torch.Tensor,
        settings: RunSettings,
        markers: Sequence[ThinkingMarkers],
    ) -> Rollouts:
        """Returns the completions of one call in the form that methods take.

        Args:
            arguments (`dict[str, Any]`): What the trainer passes, by name.
            rewards_NK (`torch.Tensor` of shape `(N, K)`): Rewards of all functions, including one that only decides
                correctness.
            markers (`Sequence[ThinkingMarkers]`): The markers of thinking of each completion.
        """
        target = self.target_length
        limit = self._largest_length(settings)
        # A reward has no schedule, so the current target is the configured one.
        prompts = [prompt_facts(row, self.method, target, target, limit) for row in self._data_rows(arguments)]
        # Online DPO passes completions with their padding, which is no part of their length.
        completion_ids = [without_padding(padded_ids, settings) for padded_ids in arguments["completion_ids"]]
        # TRL: GRPOTrainer._generate_and_score_completions also counts a last token of padding as an end
        end_ids = settings.end_ids | {settings.pad_id}
        # The tokens of the thinking are counted only if they are the cost.
        thinking = ThinkingTokens(settings.tokenizer, markers[0]) if self.cost.name == "thinking" else None
        facts = facts_of_completions(completion_ids, end_ids, markers, thinking=thinking)
        return rollouts_of_batch(
            rewards_NK,
            self.weights,
            self.correctness,
            self.cost,
            prompts=prompts,
            facts=facts,
            lengths=self._lengths(facts, {**arguments, "completion_ids": completion_ids}, settings),
            num_generations=self._group_size([prompt.question for prompt in prompts], settings),
            generation_limit=settings.max_completion_length,
        )

    def _lengths(
        self, facts: Sequence[CompletionFacts], arguments: dict[str, Any], settings: RunSettings
    ) -> list[float]:
        """Returns the length of each completion in the unit of `length_of`, and warns if lengths may differ from what
        the user expects."""
        lengths = costs_of(self.cost, facts, arguments, settings.tokenizer.decode)
        if self.cost.name == "thinking":
            warn_of_no_thinking(lengths, settings.thinking_markers)
        if self.cost.counts_tokens and have_tool_outputs(arguments["completions"]):
            warnings.warn(
                f"length_of is {self.cost.name!r}, but completions have the output of tools, which counts as length "
                "here; use LeashGRPOTrainer, or set length_of to 'tool_calls' or a function",
                stacklevel=2,
            )
        return lengths

    def _largest_length(self, settings: RunSettings) -> float:
        """Returns the largest length that a completion can have, in the unit of the cost."""
        return settings.max_completion_length if self.cost.counts_tokens else math.inf

    def _data_rows(self, arguments: dict[str, Any]) -> list[dict[str, Any]]:
        """Returns the data set row of each completion, with the columns that identify its question and its target and
        those that the method reads."""
        # TRL passes each column of the data set as a list with one value for each completion.
        names = {"images", "image", TARGET_COLUMN, *self.method.columns_read()}
        columns = {"prompt": arguments["prompts"]}
        for name in names & arguments.keys():
            columns[name] = arguments[name]
        num_rows = len(arguments["prompts"])
        return [{name: values[row] for name, values in columns.items()} for row in range(num_rows)]

    def _group_size(self, questions: list[int], settings: RunSettings) -> int:
        """Returns how many completions of a prompt stand side by side; 1 if the call splits a group. Raises
        `ValueError` if the call does so and the method needs whole groups."""
        # The call has whole groups if all `size` completions of each slice, also of the last one, have the same
        # question.
        size = settings.num_generations if self.is_training else settings.num_generations_eval
        groups = [questions[start : start + size] for start in range(0, len(questions), size)]
        if all(group == [group[0]] * size for group in groups):
            return size
        if self.method.depends_on != "completion" or self.method.own_advantages:
            raise ValueError(
                f"{self.method.name} needs whole groups, but a call splits a group; set per_device_eval_batch_size "
                f"to a multiple of num_generations={size}, or num_generations_eval to a divisor of this size"
            )
        return 1


def warn_of_partial_control(method: LengthControl, limit: float) -> None:
    """Warns if the method also does what a reward function cannot."""
    # Only whether the method appends text matters here, so any target will do.
    changes_prompts = method.prompt_suffix(1.0, limit) != ""
    if changes_prompts or limits_generation(method):
        warnings.warn(
            f"{method.name} also writes into prompts or limits generation, which a reward function cannot: "
            "set its budget in your prompts and in max_completion_length, or train with LeashGRPOTrainer",
            stacklevel=3,
        )


def warn_of_other_momentum(method: LengthControl, args: Any) -> None:
    """Warns if the method expects another momentum of the optimizer than the trainer has."""
    expected = getattr(method, "adam_beta1", args.adam_beta1)  # most methods expect none
    if expected != args.adam_beta1:
        warnings.warn(
            f"adam_beta1 is {args.adam_beta1:g}, but {method.name} expects {expected:g}; create the method with "
            f"adam_beta1={args.adam_beta1:g}",
            stacklevel=3,
        )


def markers_of_prompts(prompts: Sequence[Any], settings: RunSettings) -> list[ThinkingMarkers]:
    """Returns the markers of thinking of each completion, by the end of its prompt after the chat template."""
    all_markers: list[ThinkingMarkers] = []
    for index, prompt in enumerate(prompts):
        # Completions of a prompt stand side by side, so most prompts are those before them.
        if index > 0 and prompt == prompts[index - 1]:
            all_markers.append(all_markers[-1])
            continue
        text = prompt  # a prompt that is text gets no template
        if not isinstance(prompt, str):
            text = rendered_prompt(settings.processing_class, prompt, **settings.chat_template_kwargs)
        all_markers.append(settings.thinking_markers.for_prompt(text))
    return all_markers


def without_padding(padded_ids: Sequence[int], settings: RunSettings) -> Sequence[int]:
    """Returns a completion up to the end token that only padding follows, or all of it if there is no such token."""
    # An end token may stand in the middle too, or be the padding token itself; the first one that only padding follows
    # is the end.
    for index, token in enumerate(padded_ids):
        if token in settings.end_ids and set(padded_ids[index + 1 :]) <= {settings.pad_id}:
            return padded_ids[: index + 1]
    return padded_ids


def reward_log_entries(rewards_NK: torch.Tensor, names: Sequence[str]) -> dict[str, float]:
    """Returns the mean reward of each function over the completions that it scored, by its key in the log.
    TRL itself logs only the mean of the shaped reward, as `rewards/NAME/mean`."""
    means_K = rewards_NK.nanmean(dim=0).tolist()  # NaN for a function that scored no completion
    return {f"rewards/{name}": mean for name, mean in zip(names, means_K, strict=True) if not math.isnan(mean)}


def advantages_as_rewards(score: Score, rollouts: Rollouts, is_leave_one_out: bool) -> torch.Tensor:
    """`torch.Tensor` of shape `(N,)`: Rewards from which a trainer that subtracts a mean computes exactly the method's
    advantages, whose mean must be 0; NaN for a completion without a reward."""
    is_scored_PG = rollouts.by_group(~torch.isnan(score.shaped))
    rewards_PG = rollouts.by_group(score.advantages).where(is_scored_PG, torch.nan)
    # Of n rewards with mean 0, subtracting the mean of the other n - 1 makes each n / (n - 1) times as large.
    if is_leave_one_out:
        count_P1 = is_scored_PG.sum(dim=1, keepdim=True)
        rewards_PG = rewards_PG * (count_P1 - 1) / count_P1
    return rewards_PG.flatten()


def check_groups(method: LengthControl, settings: RunSettings) -> None:
    """Raises `ValueError` if the method compares the completions of a prompt, but a call of the reward function may
    hold only a part of them."""
    size = settings.num_generations  # 1 for online DPO, which has no groups
    has_whole_groups = size > 1 and settings.completions_per_call % size == 0
    if (method.depends_on != "completion" or method.own_advantages) and not has_whole_groups:
        raise ValueError(
            f"{method.name} needs whole groups of several completions, but a call holds "
            f"{settings.completions_per_call} completions with num_generations={size}; set "
            "per_device_train_batch_size * steps_per_generation to a multiple of num_generations, or train with "
            "LeashGRPOTrainer"
        )


def check_own_advantages(method: LengthControl, settings: RunSettings) -> None:
    """Raises `ValueError` if a method has advantages of its own that this trainer cannot compute from rewards."""
    is_computable = (
        # Without a known kind of advantage, the trainer may divide by a standard deviation.
        settings.advantage_baseline is not None
        # The trainer subtracts the mean over a prompt, which must be 0 already.
        and method.advantages_have_mean_zero
        # A process scores only its part of a batch.
        and (method.depends_on == "prompt" or settings.num_processes == 1)
    )
    if method.own_advantages and not is_computable:
        raise ValueError(
            f"{method.name} has advantages of its own, which this trainer cannot compute from rewards; set "
            "scale_rewards='none' in GRPO, or normalize_advantages=False in RLOO, or train with LeashGRPOTrainer, "
            "which computes the advantages of every method"
        )
