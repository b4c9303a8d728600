"""`LeashGRPOTrainer`: TRL's `GRPOTrainer` with adaptive length control.

This file connects TRL with the method; the arithmetic is in `leash_trl/length_control`. A reward reaches the training
batch in the following order. The functions of 1 to 4 override those of TRL and call them through `super()`:

1. `_generate_and_score_completions` prepares prompts and targets (`_new_generation`) and calls TRL's, which calls 2
   and 3.
2. `_generate` lets TRL generate under the current limit and counts the tokens of each completion.
3. `_calculate_rewards` lets TRL call the reward functions, then gives the rewards of all processes to
   `length_control.score`, which returns shaped rewards and advantages.
4. `_generate_and_score_completions` goes on: it replaces groups without signal (`_new_batch`, dynamic sampling),
   writes the advantages into TRL's batch and logs, and `DualStepCallback.observe` shows the completions to the method.
5. `LengthGroupedGRPOTrainer._prepare_inputs` splits the batch into micro-batches, and TRL computes the loss.
6. `DualStepCallback.on_step_end` moves lambda after the policy update.
"""

import contextlib
import logging
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object, is_peft_model
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from trl.trainer.utils import get_callable_name, is_async_callable, nanstd

from leash_trl.data.questions import question_of
from leash_trl.engines.thinking import ThinkingMarkers
from leash_trl.errors import TrainingError
from leash_trl.hub.publisher import Publisher
from leash_trl.hub.repository import HubRepository, local_checkpoint
from leash_trl.length_control.correctness import CorrectnessRule
from leash_trl.length_control.rollouts import Rollouts, Score, joined, weighted_task_rewards
from leash_trl.length_control.statistics import length_statistics, table_columns
from leash_trl.microbatching.batch_fields import loss_mask
from leash_trl.microbatching.length_grouped_grpo_trainer import LengthGroupedGRPOTrainer
from leash_trl.microbatching.trl_members import TRLMembers
from leash_trl.model_facts import eos_token_ids, opens_thinking, question_prompt, with_opened_thinking
from leash_trl.run_folder import (
    ADAPTER_FILE,
    STATE_ENTRY,
    TRAINER_STATE_FILE,
    complete_model_path,
    length_control_state,
    only_run_in,
    read_trainer_state,
)
from leash_trl.trainer import checks
from leash_trl.trainer.callbacks import DualStepCallback
from leash_trl.trainer.dynamic_sampling import DynamicSampling
from leash_trl.trainer.finite import check_finite
from leash_trl.trainer.generation_batch import GenerationBatch
from leash_trl.trainer.leash_grpo_config import LeashGRPOConfig
from leash_trl.trainer.length_controlled_reward import event_loop
from leash_trl.trainer.prompt_rows import column_values, example_prompt, rows_with_targets
from leash_trl.trainer.resume import EpochShuffleCallback, WindowEndCallback, starting_point


logger = logging.getLogger(__name__)


class LeashGRPOTrainer(LengthGroupedGRPOTrainer):
    r"""Trainer for LEASH: GRPO with DAPO's loss and a length penalty whose weight adapts to the length constraint.

    The trainer subtracts `lambda * max(0, L / target_length - 1)` from the task reward of each completion, which is
    the weighted sum of all reward functions, and clips the result to [-1, 1]. After the first policy update on a
    generation batch, lambda changes by `lambda_lr * mean(L / target_length - 1)`. `L` is the number of tokens that the
    model generated, with EOS and without tool output, or only the number of its thinking tokens (`length_of`). Reward
    functions should return +1 for correct and -1 for wrong answers, as [`~leash_trl.rewards.math_reward`] does.

    Source: Algorithm 1 of [LEASH](https://huggingface.co/papers/2512.21540).

    `length_control` in the configuration selects another method; everything else stays the same. Every method receives
    the task reward and treats an answer with a positive task reward as correct, or what `correctness_func` decides.

    Every checkpoint saves lambda in `trainer_state.json`, and `resume_from_checkpoint` restores it. The saved value is
    the one *after* the dual step of that policy update; a log row shows the value that the update *used*. A second
    call of `train` continues with the lambda at which the first call ended. Evaluation logs the shaped reward and the
    task reward but does not change lambda.

    Args:
        model (`str` or [`~transformers.PreTrainedModel`]): As for [`~trl.GRPOTrainer`], or `gym` for the small model
            that comes with this package.
        reward_funcs (`RewardFunc | list[RewardFunc]`): Task rewards, as for [`~trl.GRPOTrainer`]; functions, async
            functions and reward models, with `reward_weights`. Do not add a length reward of your own.
        args ([`LeashGRPOConfig`]): Configuration. It is required, since LEASH's `target_length` has no default.
        correctness_func (`Callable`): Function, called like `reward_funcs`, whose positive reward means that an answer
            is correct. If it is not among `reward_funcs`, it is called and logged with them, but has no weight. The
            configuration's `correctness_func` can only name one of `reward_funcs`.
        kwargs: All other arguments of [`~trl.GRPOTrainer`].

    Raises:
        `TypeError`: If `args` is not a [`LeashGRPOConfig`].
        `ValueError`: If a column is missing, a row's target is out of range, the prompt of a row is too long for
            colocated vLLM, or the tokenizer has no end token or lacks the chat template that the prompts need.

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

    TRL_MEMBERS: TRLMembers = {
        **LengthGroupedGRPOTrainer.TRL_MEMBERS,
        "_generate": ("prompts",),
        "_calculate_rewards": ("inputs", "prompts", "completions", "completion_ids_list"),
        "_generate_and_score_completions": ("inputs",),
        "_push_from_checkpoint": ("checkpoint_folder",),
        "set_initial_training_values": ("args", "dataloader"),
        "_logs": None,
    }

    _tag_names = ["trl", "leash"]

    args: LeashGRPOConfig
    max_completion_length: Any
    reward_funcs: Any
    reward_func_names: Any
    reward_processing_classes: Any

    def __init__(
        self,
        model,
        reward_funcs=None,
        args: LeashGRPOConfig | None = None,
        train_dataset=None,
        *more_args,
        correctness_func: Callable[..., Any] | None = None,
        **kwargs,
    ):
        if not isinstance(args, LeashGRPOConfig):
            raise TypeError(f"args is a {type(args).__name__}, but must be a LeashGRPOConfig(target_length=4096, ...)")
        if None not in (correctness_func, args.correctness_func):
            both = f"correctness_func is {args.correctness_func!r} in args, and {correctness_func!r} beside it"
            raise ValueError(f"{both}; set only one")
        self.length_control = args.make_length_control()
        if isinstance(model, str | Path):
            model = complete_model_path(str(model), "model")
        super().__init__(model, reward_funcs, args, train_dataset, *more_args, **kwargs)
        deciding = args.correctness_func if correctness_func is None else correctness_func
        name = get_callable_name(deciding)
        self.correctness = CorrectnessRule(self.reward_funcs, self.reward_func_names, deciding, name)
        if opens_thinking(question_prompt(self.processing_class, **self.chat_template_kwargs)):
            self.reward_funcs = with_opened_thinking(self.reward_funcs)
            self.correctness.extra = with_opened_thinking(self.correctness.extra)
        if any(map(is_async_callable, self.correctness.extra)):
            # TRL: GRPOTrainer.__init__ starts this loop only if one of its own functions is async
            self.__dict__.setdefault("async_loop", event_loop()[1])
        unwrapped = self.accelerator.unwrap_model(self.model)
        tokenizer = getattr(self.processing_class, "tokenizer", self.processing_class)
        self.publisher = Publisher(args, unwrapped)
        self.generated_tokens = 0
        self._example_prompt: Any = None  # for the model card
        self._dynamic_sampling: Any = DynamicSampling(self.train_dataset, args) if args.uses_dynamic_sampling else None
        self._dual_step = DualStepCallback(self.length_control, args.target_length, self._more_state)
        for callback in (self._dual_step, EpochShuffleCallback(), WindowEndCallback(self._is_inside_window)):
            self.add_callback(callback)
        is_thinking = args.length_of == "thinking"
        self._thinking = ThinkingMarkers.of(tokenizer, args.thinking_end) if is_thinking else None
        self._end_ids = {*eos_token_ids(unwrapped, tokenizer), self._pad_token_id}
        self._generation = GenerationBatch()
        self._num_done = 0
        checks.check_trainer(self)

    def _more_state(self) -> dict[str, Any]:
        """Returns what a checkpoint saves in addition to the method's state."""
        drawn = {} if self._dynamic_sampling is None else {"prompts_drawn": self._dynamic_sampling.state_dict()}
        return {
            "generated_tokens": self.generated_tokens,
            "is_inside_window": self._is_inside_window(),
            "example_prompt": self._example_prompt,
            **self.correctness.state_dict(),
            **drawn,
        }

    def _is_inside_window(self) -> bool:
        # TRL: GRPOTrainer._prepare_inputs generates when this is 0
        return self._step % (self.args.steps_per_generation * self.args.num_iterations) != 0

    @property
    def _mode(self) -> str:
        return "train" if self.model.training else "eval"

    @contextlib.contextmanager
    def _generation_limit(self):
        """Sets and yields the generation limit of the next completions, in tokens; a method may lower it in
        training."""
        limit = self.args.generation_limit
        cap: Any = self.length_control.generation_cap(self.args.target_at(self.state.global_step))
        if self._mode == "eval" or cap is None or cap >= limit:
            yield limit
            return
        # TRL: GRPOTrainer.__init__ gives the generation backend its limit once; tools, rollout functions and the
        # dr_grpo loss read max_completion_length later
        owner, name, value = self.generation_config, "max_new_tokens", cap
        if self.use_vllm:
            owner, name = self.vllm_generation, "generation_kwargs"
            value = {**owner.generation_kwargs, "max_tokens": cap}
        usual, usual_length = getattr(owner, name), self.max_completion_length
        setattr(owner, name, value)
        self.max_completion_length = cap
        try:
            yield cap
        finally:
            setattr(owner, name, usual)
            self.max_completion_length = usual_length

    def _generate(self, prompts):
        """Generates, and records lengths and truncation before TRL masks, pads or truncates the completions."""
        was_training, generation = self.model.training, self._generation
        with self._generation_limit() as generation.generation_limit:
            output = super()._generate(prompts)
        self.model.train(was_training)  # TRL's continuous batching sets training mode even during evaluation
        # TRL: GRPOTrainer._generate returns (prompt_ids, completion_ids, tool_mask, ...); the mask is 0 on tool output
        prompt_ids, completion_ids, tool_mask, *_ = output
        own_tokens = tool_mask or [[1] * len(ids) for ids in completion_ids]
        written = [  # markers in the output of tools are not the model's
            [index if is_own else -1 for index, is_own in zip(ids, mask, strict=True)]
            for ids, mask in zip(completion_ids, own_tokens, strict=True)
        ]
        ends = self._controlled_ends(prompt_ids, written)
        generation.lengths = [sum(mask[:end]) for mask, end in zip(own_tokens, ends, strict=True)]
        generation.answer_lengths = [sum(mask[end:]) for mask, end in zip(own_tokens, ends, strict=True)]
        generation.is_truncated = [not {*ids[-1:]} & self._end_ids for ids in completion_ids]
        return output

    def _controlled_ends(self, prompt_ids: Sequence[Sequence[int]], completion_ids: Sequence[Sequence[int]]):
        """Returns how many tokens of each completion are controlled: all, or those up to the end of its thinking."""
        if self._thinking is None:
            return [*map(len, completion_ids)]
        tokenizer: Any = getattr(self.processing_class, "tokenizer", self.processing_class)
        opened = [self._thinking.is_opened_by(tokenizer.decode(ids[-16:])) for ids in prompt_ids]
        return self._thinking.thinking_lengths(completion_ids, opened)

    @contextlib.contextmanager
    def _extra_function_called(self):
        """Lets TRL call the deciding function with the reward functions if it is not one of them."""
        extra = self.correctness.extra
        # TRL: GRPOTrainer._calculate_rewards reads these; all others read them with the weights, which this has not
        usual = self.reward_funcs, self.reward_processing_classes, self.reward_func_names
        self.reward_funcs = [*self.reward_funcs, *extra]
        self.reward_processing_classes = [*self.reward_processing_classes, *[None] * len(extra)]
        self.reward_func_names = [*self.reward_func_names, *self.correctness.extra_names]
        try:
            yield
        finally:
            self.reward_funcs, self.reward_processing_classes, self.reward_func_names = usual

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        """Computes the task rewards, scores them with the method, and returns them unchanged, so that TRL logs
        them."""
        with self._extra_function_called():
            rewards_per_func = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        rollouts = self._generation.rollouts = self._rollouts(rewards_per_func)
        self._generation.score = self.length_control.score(rollouts, self.args.advantage_rule)
        num_task_rewards = len(self.reward_weights)
        for name, rewards in zip(self.correctness.extra_names, rewards_per_func.T[num_task_rewards:], strict=True):
            # TRL: GRPOTrainer._generate_and_score_completions logs the rewards with a weight in the same way
            self._metrics[self._mode][f"rewards/{name}/mean"].append(rewards.nanmean().item())
            self._metrics[self._mode][f"rewards/{name}/std"].append(nanstd(rewards).item())
            self._logs["rewards"][name].extend(rewards.tolist())
        return rewards_per_func[:, :num_task_rewards]

    def _rollouts(self, rewards_per_func: torch.Tensor) -> Rollouts:
        """Gathers the completions of all processes, on the CPU, in the form that methods take."""
        names = [*self.reward_func_names, *self.correctness.extra_names]
        for rewards, name in zip(rewards_per_func.T, names, strict=True):
            if rewards.isinf().any():  # the loss would become NaN
                raise TrainingError(
                    f"the reward function {name!r} returned a reward that is infinite in float32, but must return "
                    "finite numbers, with None for what it cannot score"
                )
        generation, column = self._generation, self.correctness.column
        counts, own_columns = (generation.lengths, generation.answer_lengths), generation.columns.values()
        facts = (generation.questions, generation.targets, *counts, generation.is_truncated, *own_columns)
        everywhere = gather_object([*zip(*facts, strict=True)])
        questions, targets, lengths, answer_lengths, is_truncated, *columns = map(list, zip(*everywhere, strict=True))
        task_rewards = rewards_per_func[:, : len(self.reward_weights)]
        rollouts = Rollouts(
            task_rewards=weighted_task_rewards(task_rewards.cpu(), self.reward_weights.cpu()),
            lengths=torch.tensor(lengths),
            target_lengths=torch.tensor(targets, dtype=torch.float64),
            is_truncated=torch.tensor(is_truncated),
            questions=torch.tensor(questions),
            num_generations=self.num_generations if self._mode == "train" else self.num_generations_eval,
            max_completion_length=generation.generation_limit,
            correctness_rewards=None if column is None else rewards_per_func[:, column].double().cpu(),
            answer_lengths=None if self._thinking is None else torch.tensor(answer_lengths),
            columns=dict(zip(generation.columns, columns, strict=True)),
        )
        self.correctness.observe(rollouts.deciding_rewards)
        checks.check_correctness(self.correctness, self.length_control, self.args)
        return replace(rollouts, is_correctness_known=self.correctness.is_known)

    def _own(self, values):
        """Returns this process's slice of values that are ordered by process, with equally many for each process."""
        share = len(values) // self.accelerator.num_processes
        return values[self.accelerator.process_index * share :][:share]

    def _generate_and_score_completions(self, inputs):
        """Replaces the advantages of the task reward by those of the shaped reward, in the batch and in the
        completions table."""
        if self._mode == "eval":  # the method does not observe evaluation, so lambda stays as it is
            generation = self._new_generation(inputs)
            self._log_length_control(generation.rollouts, generation.score)
            return generation.batch
        generation, generated = self._new_batch(inputs)
        batch = generation.batch
        batch["advantages"] = self._own(generation.score.advantages).to(batch["advantages"])
        # TRL: GRPOTrainer._generate_and_score_completions counts the tokens of the loss in the same way
        batch["num_items_in_batch"] = self.accelerator.gather(loss_mask(batch).sum()).sum()
        rollouts = joined([part.rollouts for part in generated])
        self.generated_tokens += int(rollouts.completion_lengths.sum())
        self._log_length_control(rollouts, joined([part.score for part in generated]))
        self._metrics["train"]["leash/zero_signal_share"].append(1.0 - generation.has_signal.double().mean().item())
        self._metrics["train"]["leash/generated_tokens"] = [self.generated_tokens]
        if self.state.global_step == 0 and self._step == 0:
            checks.check_first_batch(generation.rollouts, self.length_control, self.args)
        self._dual_step.observe([part.rollouts for part in generated])
        return batch

    def _new_generation(self, inputs) -> GenerationBatch:
        """Generates and scores completions for these rows."""
        method, args = self.length_control, self.args
        target = args.target_at(self.state.global_step)
        # rows are copies: the rows of the data set are not changed
        rows, questions, targets = rows_with_targets(inputs, method, target, args.target_length, args.generation_limit)
        if self._mode == "train" and self._example_prompt is None:
            self._example_prompt = example_prompt(rows)
        columns = column_values(inputs, method.columns_read(), args.target_length)
        generation = self._generation = GenerationBatch(questions, targets, columns)
        generation.batch = super()._generate_and_score_completions(rows)
        for name, values in table_columns(generation.rollouts, generation.score).items():
            self._logs["extra"][name].extend(values.tolist())
        if self._mode == "train":
            # TRL: GRPOTrainer._generate_and_score_completions just appended the advantages of all processes
            logged, own = self._logs["advantages"], generation.score.advantages.tolist()
            for _ in range(min(len(own), len(logged))):
                logged.pop()
            logged.extend(own)
        return generation

    def _new_batch(self, inputs) -> tuple[GenerationBatch, list[GenerationBatch]]:
        """Returns the generation to train on and all that were generated for it. With dynamic sampling there may be
        several; the last rows of the completions table are then those of the last one."""
        if self._dynamic_sampling is None:
            generation = self._new_generation(inputs)
            return generation, [generation]
        num_extra, num_processes = self._dynamic_sampling.num_extra(), self.accelerator.num_processes
        questions = gather_object([question_of(row) for row in inputs[:: self.num_generations]])
        generated = [self._new_generation([*inputs, *self._fresh_rows(num_extra, questions)])]
        share = len(inputs) // self.num_generations
        generation = generated[0].refilled(share, self.length_control, self.args.advantage_rule, self.accelerator)
        for _ in range(self.args.dynamic_sampling_rounds):
            if (is_alive := generation.has_signal).all():
                break
            asked = {question for part in generated for question in part.rollouts.questions.tolist()}
            most_dead = int((~is_alive).view(num_processes, -1).sum(dim=1).max())  # largest number in any process
            generated.append(self._new_generation(self._fresh_rows(most_dead, asked)))
            both = generation.followed_by(generated[-1], num_processes, self._pad_token_id)
            generation = both.refilled(share, self.length_control, self.args.advantage_rule, self.accelerator)
        self._dynamic_sampling.record(torch.cat([part.has_signal for part in generated]))
        num_generated = sum(len(part.rollouts.lengths) for part in generated)
        metrics = self._metrics["train"]
        metrics["leash/wasted_share"].append(1.0 - len(generation.rollouts.lengths) / num_generated)
        metrics["leash/extra_groups"].append(num_extra * num_processes)
        metrics["leash/sampling_rounds"].append(len(generated) - 1)
        return generation, generated

    def _fresh_rows(self, share, without):
        """Draws `share` new prompts for every process and returns this process's, each repeated once per
        completion."""
        drawn = self._own(self._dynamic_sampling.draw(share * self.accelerator.num_processes, without))
        return [row for row in drawn for _ in range(self.num_generations)]

    def _log_length_control(self, rollouts: Rollouts, score: Score) -> None:
        for name, value in length_statistics(self.length_control, rollouts, score).items():
            if not math.isnan(value):  # NaN: undefined here, such as the length of wrong answers
                self._metrics[self._mode][f"leash/{name}"].append(value)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False):
        """Saves the weights with the recipe and the training state and, in a checkpoint, the model card.

        Raises:
            `FloatingPointError`: If a weight is not finite.
        """
        folder = Path(output_dir or self.args.output_dir)
        is_checkpoint = folder == Path(self.args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        check_finite(self.model, self.state.global_step, self.args.output_dir)
        if self.args.should_save:  # else, if this save is killed, the old state would mark it as whole
            (folder / TRAINER_STATE_FILE).unlink(missing_ok=True)
        super().save_model(output_dir, _internal_call)
        if self.args.should_save:
            self.publisher.write_beside_model(folder, is_checkpoint)
            if not is_checkpoint:
                self.state.save_to_json(str(folder / TRAINER_STATE_FILE))

    def set_initial_training_values(self, args, dataloader):
        """Returns no epoch to train if the checkpoint is the last of the run, where transformers would train one more
        step."""
        num_epochs, updates_per_epoch, *others, max_steps = super().set_initial_training_values(args, dataloader)
        if self._num_done >= max_steps:
            logger.warning("%s of %s policy updates are done: nothing is left to train", self._num_done, max_steps)
            num_epochs = max_steps // updates_per_epoch
        return num_epochs, updates_per_epoch, *others, max_steps

    def train(self, resume_from_checkpoint: str | os.PathLike | bool | None = None, *args, **kwargs):
        """Trains from the start, or resumes a run that was stopped.

        Args:
            resume_from_checkpoint (`str`, `os.PathLike` or `bool`): `True` for the last complete checkpoint in
                `output_dir`, the path of a checkpoint or of a model folder that has a `trainer_state.json`, or an
                address on the Hub such as `"hf://owner/name/last-checkpoint"`.
            args, kwargs: As for [`~transformers.Trainer.train`].

        Raises:
            `ValueError`: If there is nothing to resume from, the checkpoint has no state of this method, or another
                run uses `output_dir`.
        """
        checks.before_training(self)
        with only_run_in(self.args.output_dir) if self.args.should_save else contextlib.nullcontext():
            if isinstance(resume_from_checkpoint, str):
                resume_from_checkpoint = local_checkpoint(resume_from_checkpoint)
            folder = starting_point(resume_from_checkpoint, self.args, self.publisher.recipe)
            if folder is not None and (folder / ADAPTER_FILE).is_file() != is_peft_model(self.model):
                raise TrainingError(
                    f"resume_from_checkpoint is {str(folder)!r}, but only one of it and this run has an adapter; set "
                    "use_peft as in the checkpoint's run, or training would start from the base model"
                )
            # TRL: an interrupted call of train may have left these filled
            self._step, self._buffered_inputs = 0, None
            self._metrics["train"].clear()
            saved = {} if folder is None else length_control_state(folder) or {}
            self._num_done = 0 if folder is None else (read_trainer_state(folder) or {})["global_step"]
            self.generated_tokens = saved.get("generated_tokens", self.generated_tokens)
            self._example_prompt = saved.get("example_prompt", self._example_prompt)
            self.correctness.load_state_dict(saved)
            if self._dynamic_sampling is not None:
                self._dynamic_sampling.load_state_dict({"batches": 0, **saved.get("prompts_drawn", {})})
            output = super().train(str(folder) if folder else None, *args, **kwargs)
            best = self.state.best_model_checkpoint if self.args.load_best_model_at_end else None
            if best is not None and (state := length_control_state(best)) is not None:
                self._dual_step.restore(state)  # the state that belongs to the best weights
                self.state.stateful_callbacks[STATE_ENTRY] = state
            self.publisher.finish()
            return output

    def init_hf_repo(self, token: str | None = None, private: bool | None = None):
        """Creates the repository and the branch of `hub_revision`; raises `ValueError` before training if it
        cannot."""
        if self.is_world_process_zero():
            name = self.args.hub_model_id or Path(self.args.output_dir).absolute().name
            private = self.args.hub_private_repo if private is None else private
            repository = HubRepository(name, token or self.args.hub_token, self.args.hub_revision)
            self.hub_model_id = repository.create(private)

    def create_model_card(self, model_name=None, dataset_name=None, tags=None):
        """Replaces TRL's model card by ours, which keeps the metadata of TRL's card and its links to experiment
        trackers."""
        super().create_model_card(model_name, dataset_name, tags)
        if self.is_world_process_zero():
            self.publisher.write_card(vars(self.state), self.hub_model_id, self.is_in_train)

    def _push_from_checkpoint(self, checkpoint_folder):
        """Pushes the checkpoint in one commit. transformers would make two commits, and would drop a push that fails
        or that comes before the last one has ended."""
        self.accelerator.wait_for_everyone()  # until each process has saved its part of the checkpoint
        if self.is_world_process_zero() and self.args.hub_strategy != "end":
            self.callback_handler.on_push_begin(self.args, self.state, self.control)
            self.publisher.push_checkpoint(Path(checkpoint_folder), self.hub_model_id)

    def push_to_hub(
        self, commit_message="End of training", blocking=True, token=None, revision=None, private=None, **kwargs
    ):
        """Pushes like [`~transformers.Trainer.push_to_hub`], but in one commit."""
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        if self.hub_model_id is None:
            self.init_hf_repo(token, private)
        self.save_model(_internal_call=True)
        if not self.is_world_process_zero():
            return None
        self.create_model_card(**kwargs)
        push = self.publisher.push_model(self.hub_model_id, commit_message, token, revision)
        return push.result() if blocking else push
