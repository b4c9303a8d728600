"""`LeashGRPOTrainer`: TRL's `GRPOTrainer` with adaptive length control.

This file connects TRL with the method; the arithmetic is in `leash_trl/length_control`. A reward reaches the training
batch in the following order, which is also the order of this file. The functions of 1 to 3 override those of TRL and
call them through `super()`:

1. `_generate_and_score_completions` prepares prompts and targets (`_new_generation`) and calls TRL's, which calls 2
   and 3. With dynamic sampling, `DynamicSampling.sample` does so several times and replaces groups without signal.
2. `_generate` lets TRL generate under the current limit, from prompts that `_tokenize_prompts` renders as their rows
   say, and counts the tokens of each completion.
3. `_calculate_rewards` lets TRL call the reward functions, and gathers rewards and lengths of all processes as
   `Rollouts`, from which `length_control.score` computes shaped rewards and advantages.
4. `_training_batch` writes the advantages into TRL's batch and logs, and `DualStepCallback.observe` shows the
   completions to the method.
5. `LengthGroupedGRPOTrainer._prepare_inputs` splits the batch into micro-batches, and TRL computes the loss.
6. `DualStepCallback.on_step_end` moves lambda after the policy update.

Saving, resuming and publishing are in the base class, `SavedRunGRPOTrainer`.
"""

import contextlib
import itertools
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from trl.trainer.utils import get_callable_name, is_async_callable

from leash_trl.completions.costs import costs_of, warn_of_no_thinking
from leash_trl.completions.facts import facts_of_completions
from leash_trl.completions.prompts import TEMPLATE_COLUMN
from leash_trl.completions.thinking import ThinkingTokens
from leash_trl.errors import TrainingError
from leash_trl.length_control.correctness import CorrectnessRule
from leash_trl.length_control.rollouts import Rollouts, Score, concatenated
from leash_trl.length_control.statistics import log_entries, table_columns
from leash_trl.microbatching.batch_fields import Batch, loss_mask
from leash_trl.model_paths import complete_model_path
from leash_trl.reward_calls import bind_thinking_markers, check_finite_rewards, event_loop
from leash_trl.trainer import checks
from leash_trl.trainer.advice import advice_metrics
from leash_trl.trainer.batch_checks import check_correctness, check_first_batch
from leash_trl.trainer.callbacks import DualStepCallback
from leash_trl.trainer.dynamic_sampling import DynamicSampling, part_of_process
from leash_trl.trainer.generation_batch import Completions, GenerationBatch
from leash_trl.trainer.leash_grpo_config import LeashGRPOConfig
from leash_trl.trainer.prompt_rows import PromptFacts, columns_of_rows, prompt_facts, row_of_model
from leash_trl.trainer.rollouts_of_batch import rollouts_of_batch
from leash_trl.trainer.saved_run import SavedRunGRPOTrainer
from leash_trl.trainer.trl_settings import thinking_markers


NUM_END_TOKENS = 16  # tokens at the end of a prompt that are searched for the start or the end of the thinking


class LeashGRPOTrainer(SavedRunGRPOTrainer):
    r"""Trainer for LEASH: GRPO with DAPO's loss and a length penalty whose weight adapts to the length constraint.

    The trainer subtracts `lambda * max(0, L / target_length - 1)` from the task reward of each completion, which is
    the weighted sum of all reward functions, and clips the result to [-1, 1]. After the first policy update on a
    generation batch, lambda changes by `lambda_lr * mean(L / target_length - 1)`, within `lambda_min` and
    `lambda_max`. `L` is the number of tokens that the model generated, with EOS and without tool output, or only the
    number of its thinking tokens (`length_of`). Reward functions should return +1 for correct and -1 for wrong
    answers, as [`~leash_trl.rewards.math_reward`] does.

    Source: Algorithm 1 of [LEASH](https://huggingface.co/papers/2512.21540).

    `length_control` in the configuration selects another method; everything else stays the same. Every method receives
    the task reward. An answer is correct if its task reward is positive or, with `correctness_func`, if the reward of
    that function is.

    Every checkpoint saves lambda in `trainer_state.json`, and `resume_from_checkpoint` restores it. The saved value is
    the one *after* the dual step of that policy update; a log row shows the value that the update *used*. A second
    call of `train` continues with the lambda at which the first call ended. Evaluation logs the shaped reward and the
    task reward but does not change lambda.

    A column `chat_template_kwargs` of the data set, as TRL's `apply_chat_template` reads it, has arguments of the chat
    template for the prompt of each row, such as `{"enable_thinking": False}`, in addition to `chat_template_kwargs` of
    the configuration. With such arguments, prompts must be messages without images or environments. The results of
    tools and the texts for reward models are rendered with the configuration's arguments alone.

    Args:
        model (`str` or [`~transformers.PreTrainedModel`]): As for [`~trl.GRPOTrainer`], or `gym` for the small model
            that comes with this package.
        reward_funcs (`RewardFunc | list[RewardFunc]`): Task rewards, as for [`~trl.GRPOTrainer`]; functions, async
            functions and reward models, with `reward_weights`. Add no length reward of your own, except with
            `length_control="none"`.
        args ([`LeashGRPOConfig`]): Configuration. It is required, since LEASH's `target_length` has no default.
        correctness_func (`Callable`): Function, called like `reward_funcs`, whose positive reward means that an answer
            is correct. If it is not among `reward_funcs`, it is called and logged with them, but has no weight. The
            configuration's `correctness_func`, which this argument replaces, can only name one of `reward_funcs`.
        kwargs: All other arguments of [`~trl.GRPOTrainer`].

    Raises:
        `ValueError`: If a column that the method reads is missing, a row's target is out of range, or the method needs
            to know which answers are correct and the rewards do not say so.

    Example:
        ```python
        from datasets import load_dataset
        from leash_trl import LeashGRPOConfig, LeashGRPOTrainer
        from leash_trl.data import BOXED_SUFFIX, as_conversation
        from leash_trl.rewards import math_reward

        trainer = LeashGRPOTrainer(
            model="deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",
            reward_funcs=math_reward,
            args=LeashGRPOConfig(target_length=4096),
            train_dataset=load_dataset("open-r1/DAPO-Math-17k-Processed", "en", split="train").map(
                as_conversation, fn_kwargs={"suffix": BOXED_SUFFIX}
            ),
        )
        trainer.train()
        ```
    """

    _tag_names = ["trl", "leash"]

    chat_template_kwargs: Any
    max_completion_length: Any
    reward_funcs: Any
    reward_func_names: Any
    reward_processing_classes: Any
    reward_weights: Any

    # Values of the current generation, which one overridden method of TRL sets and a later one reads.
    _prompts: Sequence[PromptFacts] = ()
    _completions: Completions
    _rollouts: Rollouts

    def __init__(
        self,
        model,
        reward_funcs=None,
        args: LeashGRPOConfig = None,  # type: ignore[assignment]  # at TRL's position, but required
        train_dataset=None,
        *more_args,
        correctness_func: Callable[..., Any] | None = None,
        **kwargs,
    ):
        self.length_control = args.make_length_control()
        if isinstance(model, str | Path):
            model = complete_model_path(str(model), "model")
        super().__init__(model, reward_funcs, args, train_dataset, *more_args, **kwargs)
        # Either a function, or the name of one of the reward functions; `None` leaves the choice to the rule.
        chosen = args.correctness_func if correctness_func is None else correctness_func
        self.correctness = CorrectnessRule(
            self.reward_funcs, self.reward_func_names, chosen=chosen, chosen_name=get_callable_name(chosen)
        )
        self._add_deciding_function()
        self.cost = args.cost  # found once, since the file of a function may be moved while the run goes on
        self.thinking_markers = thinking_markers(args, self.processing_class, args.thinking_end)
        self._dynamic_sampling = self._new_dynamic_sampling() if args.uses_dynamic_sampling else None
        self._add_saving_callbacks(self._new_dual_step())
        # TRL: GRPOTrainer._generate_and_score_completions also counts a last token of padding as an end
        self._end_ids = {*self.eos_token_ids, self._tokenizer.pad_token_id}
        checks.check_trainer(self)

    def _add_deciding_function(self) -> None:
        """Lets TRL call and log the function that decides correctness like a reward function, but with weight 0, if it
        is not one of the reward functions."""
        # A list of this function alone, or empty if it is one of the reward functions already.
        functions = self.correctness.unweighted_functions
        # TRL: these lists have one entry for each reward function; only reward models have a processing class
        self.reward_funcs = self.reward_funcs + functions
        self.reward_func_names = self.reward_func_names + self.correctness.unweighted_names
        self.reward_processing_classes = self.reward_processing_classes + [None] * len(functions)
        self.reward_weights = torch.cat([self.reward_weights, torch.zeros(len(functions))])
        if any(map(is_async_callable, functions)):
            # TRL: GRPOTrainer.__init__ starts an event loop only if one of its own reward functions is async
            self.async_loop = event_loop()

    def _new_dynamic_sampling(self) -> DynamicSampling:
        return DynamicSampling(
            self.train_dataset,
            self.args,
            accelerator=self.accelerator,
            pad_token_id=self._tokenizer.pad_token_id,
            generate=self._new_generation,
            score=self._score,
        )

    def _new_dual_step(self) -> DualStepCallback:
        return DualStepCallback(
            self.length_control,
            self.cost,
            target_length=self.args.target_length,
            reward_funcs=self.reward_funcs,
            state_to_save=self._state_to_save,
            restore_state=self._restore_state,
        )

    def _state_to_save(self) -> dict[str, Any]:
        """Adds the range of the rewards that decide correctness, and the number of prompts that dynamic sampling
        drew."""
        state = super()._state_to_save()
        state.update(self.correctness.state_dict())
        if self._dynamic_sampling is not None:
            state["prompts_drawn"] = self._dynamic_sampling.num_drawn
        return state

    def _restore_state(self, saved: Mapping[str, Any]) -> None:
        """Restores what `_state_to_save` adds."""
        super()._restore_state(saved)
        self.correctness.load_state_dict(saved)
        if self._dynamic_sampling is not None:
            self._dynamic_sampling.num_drawn = saved.get("prompts_drawn", 0)

    def _generate_and_score_completions(self, inputs):
        """Replaces the advantages of the task reward by those of the shaped reward, in the batch (only in training)
        and in the completions table."""
        if self._mode == "eval":  # the method does not observe evaluation, so lambda stays as it is
            generation = self._new_generation(inputs)
            self._log_length_control(generation.rollouts, generation.score)
            return generation.trl_batch
        if self._dynamic_sampling is None:
            generation = self._new_generation(inputs)
            return self._training_batch(generation, generated=[generation])
        trained, generated = self._dynamic_sampling.sample(inputs)
        return self._training_batch(trained, generated)

    def _new_generation(self, inputs) -> GenerationBatch:
        """Generates and scores completions for these rows."""
        trl_batch = super()._generate_and_score_completions(self._rows_of_model(inputs))
        # TRL has called `_generate` and `_calculate_rewards`, which have set `_completions` and `_rollouts`.
        generation = GenerationBatch(
            self._rollouts,
            self._score_or_trl_advantages(self._rollouts, trl_batch),
            trl_batch,
            may_think=any(self._completions.may_think),
            has_trl_advantages=self.args.normalizes_each_reward,
        )
        self._write_completions_table(generation)
        return generation

    def _rows_of_model(self, inputs) -> list[dict[str, Any]]:
        """Returns the rows with the prompts that the model gets, and keeps what is known of the prompts."""
        method = self.length_control
        limit = self.args.largest_length
        target = self.args.target_at(self.state.global_step)
        self._prompts = [prompt_facts(row, method, target, self.args.target_length, limit) for row in inputs]
        rows = []
        for row, prompt in zip(inputs, self._prompts, strict=True):
            rows.append(row_of_model(row, method, prompt.target, limit))
        return rows

    def _score_or_trl_advantages(self, rollouts: Rollouts, trl_batch: Batch) -> Score:
        """Returns the method's score. If TRL normalizes each reward function apart, TRL's advantages replace those of
        the score, which are computed from the sum of all rewards."""
        score = self._score(rollouts)
        if not self.args.normalizes_each_reward:
            return score
        # TRL's batch has the advantages of this process, a score those of all processes.
        return replace(score, advantages=self.accelerator.gather(trl_batch["advantages"]).double().cpu())

    def _write_completions_table(self, generation: GenerationBatch) -> None:
        """Adds our columns to TRL's table of completions, and replaces its advantages of the task reward."""
        # The columns, such as length and penalty, have one value for each completion of all processes.
        for name, values in table_columns(generation.rollouts, generation.score).items():
            self._logs["extra"][name].extend(values.tolist())
        # TRL: GRPOTrainer._generate_and_score_completions has just appended advantages of the same completions to
        # this deque, which holds no more of them than a generation batch of training has completions.
        advantages = generation.score.advantages.tolist()
        logged = self._logs["advantages"]
        for _ in range(min(len(advantages), len(logged))):
            logged.pop()
        logged.extend(advantages)

    @property
    def _mode(self) -> str:
        return "train" if self.model.training else "eval"

    def _limit_of_next_completions(self) -> float:
        """Returns the generation limit of the next completions, in tokens; a method may lower it in training."""
        limit = self.args.generation_limit
        if self._mode == "eval":
            return limit
        # Some methods train on completions that are cut earlier than the limit of the run.
        cap = self.length_control.generation_cap(self.args.target_at(self.state.global_step))
        return limit if cap is None else min(cap, limit)

    @contextlib.contextmanager
    def _generation_limited_to(self, limit: float) -> Iterator[None]:
        """Sets the generation limit inside a `with` block."""
        # TRL: GRPOTrainer.__init__ gives the generation backend its limit once; tools and rollout functions read
        # max_completion_length while they generate
        if self.use_vllm:
            backend = self.vllm_generation
            setting = attribute_set(backend, "generation_kwargs", {**backend.generation_kwargs, "max_tokens": limit})
        else:
            setting = attribute_set(self.generation_config, "max_new_tokens", limit)
        with setting, attribute_set(self, "max_completion_length", limit):
            yield

    def _generate(self, prompts):
        """Generates, and records lengths and truncation before TRL masks, pads or truncates the completions."""
        was_training = self.model.training
        limit = self._limit_of_next_completions()
        is_capped = limit < self.args.generation_limit
        with self._generation_limited_to(limit) if is_capped else contextlib.nullcontext():
            output = super()._generate(prompts)
        self.model.train(was_training)  # TRL's continuous batching sets training mode even during evaluation
        # TRL: GRPOTrainer._generate returns (prompt_ids, completion_ids, tool_mask, ...); the mask is `None` without
        # tools, else 0 on their output
        prompt_ids, completion_ids, tool_masks, *_ = output
        self._completions = self._completions_of(prompt_ids, completion_ids, tool_masks, limit)
        return output

    def _completions_of(
        self,
        prompt_ids: Sequence[Sequence[int]],
        completion_ids: Sequence[Sequence[int]],
        tool_masks: Sequence[Sequence[int]] | None,
        limit: float,
    ) -> Completions:
        """Returns what is known of completions from their tokens and those of their prompts."""
        # The text at the end of a prompt shows whether the chat template has begun, or ended, the thinking there.
        prompt_ends = [self._tokenizer.decode(ids[-NUM_END_TOKENS:]) for ids in prompt_ids]
        markers = [self.thinking_markers.for_prompt(prompt_end) for prompt_end in prompt_ends]
        # The tokens of the thinking are counted only if they are the cost.
        thinking = ThinkingTokens(self._tokenizer, markers[0]) if self.cost.name == "thinking" else None
        facts = facts_of_completions(completion_ids, self._end_ids, markers, tool_masks=tool_masks, thinking=thinking)
        return Completions(facts, markers, self._may_think(prompt_ends), limit)

    def _may_think(self, prompt_ends: Sequence[str]) -> list[bool]:
        """Returns whether each completion may think: not if the template arguments of its row have ended the thinking
        in the prompt."""
        may_think = []
        # To turn thinking off, a template writes its end, such as "<think>\n\n</think>", into the prompt.
        for prompt, prompt_end in zip(self._prompts, prompt_ends, strict=True):
            may_think.append(not prompt.template_arguments or not self.thinking_markers.is_ended_by(prompt_end))
        return may_think

    def _tokenize_prompts(self, prompts):
        """Lets the chat template render each prompt with the arguments of its row, in addition to the common ones."""
        # One mapping for each prompt, such as {"enable_thinking": False}; all are empty without a column of arguments.
        arguments_of_rows = [prompt.template_arguments for prompt in self._prompts]
        if not any(arguments_of_rows):
            return super()._tokenize_prompts(prompts)
        prompt_ids: list[Sequence[int]] = []
        for arguments, prompt in zip(arguments_of_rows, prompts, strict=True):
            # TRL renders all prompts of a call with the arguments in this attribute, so there is a call for each.
            with attribute_set(self, "chat_template_kwargs", {**self.chat_template_kwargs, **arguments}):
                ids, images, other_fields = super()._tokenize_prompts([prompt])
            if isinstance(prompt, str) or images is not None or other_fields:
                raise TrainingError(
                    f"a row has {TEMPLATE_COLUMN}={arguments}, but only prompts that are messages without images "
                    "are rendered with it; remove the column, or turn prompts into messages"
                )
            prompt_ids.extend(ids)
        return prompt_ids, None, {}  # without images and their fields

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        """Computes the task rewards, keeps them for the method, and returns them, so that TRL logs them."""
        lengths = self._lengths(inputs, prompts, completions, completion_ids_list)
        # Reward functions that have a parameter for the markers get those of the completions.
        functions = bind_thinking_markers(self.reward_funcs, self._completions.markers)
        with attribute_set(self, "reward_funcs", functions), reward_errors_named(self.reward_func_names):
            rewards_per_func = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        self._rollouts = self._gathered_rollouts(rewards_per_func, lengths)
        # The function that decides correctness may have no weight. If only this function returned a number for a
        # completion, TRL would take its reward for 0. With NaN in all columns, TRL takes the completion for one
        # without a reward.
        has_task_reward = ~torch.isnan(self._rollouts.task_rewards).unsqueeze(1)
        return rewards_per_func.where(has_task_reward.to(rewards_per_func.device), torch.nan)

    def _lengths(self, inputs, prompts, completions, completion_ids_list) -> list[float]:
        """Returns the length of each completion of this process, in the unit of `length_of`."""
        # TRL: GRPOTrainer._calculate_rewards passes these arguments to reward functions; a cost of the user is a
        # function that is called in the same way
        column_names = [name for name in inputs[0] if name not in ("prompt", "completion", "completion_ids")]
        arguments: dict[str, Any] = columns_of_rows(inputs, column_names)
        arguments |= {"prompts": prompts, "completions": completions, "completion_ids": completion_ids_list}
        arguments["trainer_state"] = self.state
        arguments["log_extra"] = self._log_completion_extra
        arguments["log_metric"] = self._log_metric
        if self.environments is not None:
            arguments["environments"] = self.environments
        lengths = costs_of(self.cost, self._completions.facts, arguments, self._tokenizer.decode)
        if self.cost.name == "thinking":
            # Where the prompt turns thinking off, a length of 0 is right and needs no warning.
            expected_lengths = list(itertools.compress(lengths, self._completions.may_think))
            warn_of_no_thinking(expected_lengths, self.thinking_markers)
        return lengths

    def _gathered_rollouts(self, rewards_per_func: torch.Tensor, lengths: Sequence[float]) -> Rollouts:
        """Gathers the completions of all processes, on the CPU, in the form that methods take.

        `rewards_per_func` of shape `(N, K)` has the rewards of all processes, which TRL has gathered. If the last
        function only decides correctness, it has no weight.
        """
        check_finite_rewards(rewards_per_func, self.reward_func_names)
        num_weighted = len(self.reward_funcs) - len(self.correctness.unweighted_functions)
        rollouts = rollouts_of_batch(
            rewards_per_func.double().cpu(),
            self.reward_weights[:num_weighted].cpu(),
            self.correctness,
            self.cost,
            # of all processes, in the order of the rewards
            prompts=gather_object(self._prompts),
            facts=gather_object(self._completions.facts),
            lengths=gather_object(lengths),
            num_generations=self.num_generations if self._mode == "train" else self.num_generations_eval,
            generation_limit=self._completions.generation_limit,
        )
        if self._mode == "train":  # evaluation may have other rewards, and must neither end a run nor change its state
            self.correctness.observe(rollouts.deciding_rewards)
            check_correctness(self.correctness, self.length_control, self.args)
        return replace(rollouts, is_correctness_known=self.correctness.is_known)

    def _score(self, rollouts: Rollouts) -> Score:
        return self.length_control.score(rollouts, self.args.advantage_rule)

    def _training_batch(self, trained: GenerationBatch, generated: Sequence[GenerationBatch]) -> Batch:
        """Returns TRL's batch with the method's advantages, after everything that was generated for it has been logged
        and shown to the method."""
        # The method learns and logs from all completions, also those of groups that dynamic sampling replaced.
        rollouts = concatenated([part.rollouts for part in generated])
        self._log_length_control(rollouts, concatenated([part.score for part in generated]))
        self._log_generation(trained, rollouts, num_rounds=len(generated) - 1)
        is_first_batch = self.state.global_step == 0 and self._step == 0
        if is_first_batch:
            self._check_first_batch(rollouts, may_think=any(part.may_think for part in generated))
        self._dual_step.observe([part.rollouts for part in generated])

        batch = trained.trl_batch  # of this process, while scores and rollouts are those of all processes
        advantages = part_of_process(trained.score.advantages, self.accelerator)
        batch["advantages"] = advantages.to(batch["advantages"])  # to its device and type
        # TRL: GRPOTrainer._generate_and_score_completions counts the tokens of the loss in the same way
        batch["num_items_in_batch"] = self.accelerator.gather(loss_mask(batch).sum()).sum()
        return batch

    def _log_length_control(self, rollouts: Rollouts, score: Score) -> None:
        for key, value in log_entries(self.length_control, rollouts, score).items():
            self._metrics[self._mode][key].append(value)

    def _log_generation(self, trained: GenerationBatch, rollouts: Rollouts, num_rounds: int) -> None:
        """Logs how much was generated for a training batch, where `rollouts` are all its generations, and the advice
        so far."""
        metrics = self._metrics["train"]
        if self._dynamic_sampling is not None:
            metrics["leash/wasted_share"].append(1.0 - len(trained.rollouts.lengths) / len(rollouts.lengths))
            metrics["leash/sampling_rounds"].append(num_rounds)
        metrics["leash/zero_signal_share"].append(1.0 - trained.group_has_signal.double().mean().item())
        # TRL logs the mean of each list. Of these values, the newest is to be logged, so it replaces the earlier ones.
        self.generated_tokens += int(rollouts.completion_lengths.sum())
        metrics["leash/generated_tokens"] = [self.generated_tokens]
        for name, step in advice_metrics(self.state).items():
            metrics[name] = [step]

    def _check_first_batch(self, rollouts: Rollouts, may_think: bool) -> None:
        """Checks the first batch of a run; `may_think` is whether any of its completions on this process may think."""
        # Some completion must end its thinking only if `length_of` is `thinking` and some completion may think. Groups
        # that dynamic sampling replaced count too.
        must_end = self.args.length_of == "thinking" and any(gather_object([may_think]))
        thinking_end = self.args.thinking_end if must_end else None
        check_first_batch(rollouts, self.length_control, self.args, thinking_end)


@contextlib.contextmanager
def attribute_set(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Gives an attribute another value inside a `with` block."""
    usual = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, usual)


@contextlib.contextmanager
def reward_errors_named(names: Sequence[str]) -> Iterator[None]:
    """Converts an error that a reward function raises in a `with` block to a `TrainingError` with the line that
    failed. Only types of errors that wrong arguments and results cause are converted."""
    try:
        yield
    except TrainingError:
        raise
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        # Most often, the function does not take a column, or returns something else than numbers. The last line of
        # the traceback is the one in the function that raised the error.
        line = traceback.extract_tb(error.__traceback__)[-1]
        raise TrainingError(
            f"calling reward_funcs {', '.join(names)} raised {type(error).__name__} ({error}) in {line.filename}, "
            f"line {line.lineno}; each function must take all columns of the data set and return a number or None for "
            "each completion"
        ) from error
