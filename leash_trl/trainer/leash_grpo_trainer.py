"""`LeashGRPOTrainer`: TRL's `GRPOTrainer` with adaptive length control. Wiring only, no arithmetic."""

import contextlib
import dataclasses
import inspect
import os
import warnings
from collections.abc import Collection
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from trl import GRPOTrainer

from leash_trl.checkpoints.completeness import clear_checkpoint, only_run_in
from leash_trl.engines.eos import eos_token_ids
from leash_trl.hub.publishing import Publishing, write_access
from leash_trl.hub.repository import HubRepository, local_checkpoint, pinned
from leash_trl.length_control.advantages import has_signal
from leash_trl.length_control.rollouts import Rollouts, ScoredRollouts, joined, weighted_task_rewards
from leash_trl.length_control.statistics import length_statistics
from leash_trl.length_control.targets import column_values, question_of, rows_with_targets
from leash_trl.microbatching.batch_fields import ended_at, loss_mask, only_trained
from leash_trl.microbatching.length_grouped_grpo_trainer import LengthGroupedGRPOTrainer
from leash_trl.trainer import checkpointing, checks, dynamic_sampling
from leash_trl.trainer.advice import advise
from leash_trl.trainer.callbacks import (
    DualStepCallback,
    EpochShuffleCallback,
    SamplerPlaceCallback,
    group_tensorboard_curves,
)
from leash_trl.trainer.checked_rewards import check_finite, rewards_checked
from leash_trl.trainer.cut_completions import cut_completions, refuse_turns
from leash_trl.trainer.generation_batch import GenerationBatch
from leash_trl.trainer.leash_grpo_config import LeashGRPOConfig
from leash_trl.trainer.run_settings import base_settings, model_settings, run_settings
from leash_trl.trainer.signal_record import SignalRecord, extra_groups, kept_groups, most_extra_groups, own_groups
from leash_trl.trainer.starting_point import StartingPoint, agreed, starting_point


class LeashGRPOTrainer(LengthGroupedGRPOTrainer):
    r"""
    Trainer for LEASH: GRPO with DAPO's loss, and a length penalty whose weight follows the constraint.

    Each completion pays `lambda * max(0, L / target_length - 1)` out of its task reward (the weighted sum of all
    reward functions), the result is clipped to [-1, 1], and after the policy update lambda moves by `lambda_lr *
    mean(L / target_length - 1)`. `L` counts the tokens the model generated, EOS included, tool output excluded.
    Rewards should be +1 for correct and -1 for wrong answers, as [`~leash_trl.rewards.math_reward`] returns them.

    Source: Algorithm 1 of [LEASH](https://huggingface.co/papers/2512.21540).

    `length_control` in the configuration chooses another method; everything else stays the same. Methods get the task
    reward from the trainer; an answer with a positive one is correct to them.

    Lambda belongs to the trainer: it is saved with every checkpoint (`leash_state.json`: the value *after* that step's
    dual step, while a log row shows the value the step *used*) and restored by `resume_from_checkpoint`. A second
    call of `train` goes on with the lambda that the first one left. Evaluation logs shaped and task reward and leaves
    lambda alone.

    Args:
        model (`str` or [`~transformers.PreTrainedModel`]):
            As for [`~trl.GRPOTrainer`], or `gym`, the embedded model.
        reward_funcs (`RewardFunc | list[RewardFunc]`, *optional*):
            Task rewards, as for [`~trl.GRPOTrainer`]; functions, async functions and reward models, with
            `reward_weights`. Do not add a length reward of your own.
        args ([`LeashGRPOConfig`]):
            Configuration. It has no default, since LEASH's `target_length` has none.
        kwargs:
            All other arguments of [`~trl.GRPOTrainer`].

    Raises:
        `TypeError`: If `args` is not a [`LeashGRPOConfig`].
        `ValueError`: If a column is missing, a row's target does not fit (with colocated vLLM its prompt too), or the
            tokenizer lacks an end token or the chat template that the prompts need.
        `ImportError`: If vLLM should generate and is not installed.

    Example:
        ```python
        from datasets import load_dataset
        from leash_trl import LeashGRPOConfig, LeashGRPOTrainer
        from leash_trl.data import as_conversation
        from leash_trl.rewards import math_reward

        trainer = LeashGRPOTrainer(
            model="deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",
            reward_funcs=math_reward,
            args=LeashGRPOConfig(target_length=4096),
            train_dataset=load_dataset("open-r1/DAPO-Math-17k-Processed", "en", split="train").map(as_conversation),
        )
        trainer.train()
        ```
    """

    _tag_names = ["trl", "leash"]

    args: LeashGRPOConfig
    max_completion_length: Any

    def __init__(
        self, model, reward_funcs=None, args: LeashGRPOConfig | None = None, train_dataset=None, *more_args, **kwargs
    ):
        if not isinstance(args, LeashGRPOConfig):
            raise TypeError(
                f"args is a {type(args).__name__}, but must be a LeashGRPOConfig, such as "
                "LeashGRPOConfig(target_length=4096)"
            )
        # TRL: GRPOTrainer.__init__ takes all of these by position too
        given = inspect.signature(GRPOTrainer).bind(model, reward_funcs, args, train_dataset, *more_args, **kwargs)
        elsewhere = (given.arguments.get("rollout_func"), given.arguments.get("environment_factory"))
        model = checks.before(model, reward_funcs, args, train_dataset, *elsewhere)
        with advise(args):
            super().__init__(model, reward_funcs, args, train_dataset, *more_args, **kwargs)
        unwrapped = self.accelerator.unwrap_model(self.model)
        tokenizer = getattr(self.processing_class, "tokenizer", self.processing_class)
        self.length_control = args.make_length_control()
        self.publishing = Publishing(args, unwrapped)
        self.model_settings = {**model_settings(unwrapped), **base_settings(unwrapped, model, args)}
        self.generated_tokens = 0
        self.prompt_stream = dynamic_sampling.PromptStream.of_run(self.train_dataset, args)
        self.signal_record = SignalRecord()
        self._sampler_place = SamplerPlaceCallback()
        if args.uses_dynamic_sampling:
            self.prompt_stream.check()
            self.add_callback(self._sampler_place)
        self.add_callback(DualStepCallback(self.length_control, args.target_length))
        self.add_callback(EpochShuffleCallback())
        group_tensorboard_curves(self)
        self._end_ids = {*eos_token_ids(unwrapped, tokenizer), self._pad_token_id}
        self._batch = GenerationBatch((), ())
        self._start = StartingPoint()
        self._record_of_weights: dict[str, Any] | None = None
        self._watch = checks.after(self)

    @property
    def _mode(self) -> str:
        return "train" if self.model.training else "eval"

    @contextlib.contextmanager
    def _generation_cut_at(self, limit: int):
        # TRL: GRPOTrainer.__init__ gives the generation backend its limit once; tools, rollout functions and the
        # dr_grpo loss read max_completion_length later
        value: Any = limit
        if self.use_vllm:
            owner, name = self.vllm_generation, "generation_kwargs"
            value = {**self.vllm_generation.generation_kwargs, "max_tokens": limit}
        else:
            owner, name = self.generation_config, "max_new_tokens"
        usual, usual_length = getattr(owner, name), self.max_completion_length
        setattr(owner, name, value)
        self.max_completion_length = limit
        try:
            yield
        finally:
            setattr(owner, name, usual)
            self.max_completion_length = usual_length

    def _generate(self, prompts):
        """Counts the tokens that the model generated, before masking, padding and truncation rules touch them."""
        was_training, limit = self.model.training, self.args.generation_limit
        cap = self.length_control.generation_cap(self.args.target_at(self.state.global_step))
        if was_training and cap is not None and cap < limit:
            limit = cap
            with self._generation_cut_at(cap):
                output = super()._generate(prompts)
        else:
            output = super()._generate(prompts)
        self.model.train(was_training)  # TRL's continuous batching sets training mode even during evaluation
        # TRL: GRPOTrainer._generate returns (prompt_ids, completion_ids, tool_mask, ...); the mask is 0 on tool output
        self._batch = self._batch.generated(output[1], output[2], self._end_ids, limit, output[0])
        if output[2] is not None and self.length_control.may_cut:
            refuse_turns(self.length_control)
        return output

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        """Gives the task rewards to length control and returns them; TRL logs them under their names.

        If the method cuts any completion of any process, all are graded again, and those cut keep their second reward.
        """
        rewards_per_func = self._graded(inputs, prompts, completions, completion_ids_list)
        rollouts = self._rollouts(rewards_per_func)
        kept_lengths = self.length_control.cut_lengths(rollouts)
        if self._mode == "eval" and kept_lengths is not None:
            kept_lengths = rollouts.lengths
        if kept_lengths is not None and (is_cut := kept_lengths < rollouts.lengths).any():
            kept = self._own(kept_lengths).tolist()
            # TRL: GRPOTrainer._generate_and_score_completions logs this very list after 1.10
            completions[:], kept_ids = cut_completions(
                completions, completion_ids_list, self._batch.prompt_ids, kept, self.processing_class
            )
            # TRL: log_extra and log_metric collect here; what they said of the first grading would count twice
            self._pending_extra_logs.clear()
            self._pending_metrics.clear()
            again = self._graded(inputs, prompts, completions, kept_ids)
            rewards_per_func = again.where(is_cut.to(again.device).unsqueeze(1), rewards_per_func)
            rollouts = self._rollouts(rewards_per_func)
        scored = ScoredRollouts(
            rollouts,
            base_rewards=self.length_control.base_rewards(rollouts),
            penalty=self.length_control.penalty(rollouts),
            shaped_rewards=self.length_control.shape(rollouts),
            kept_lengths=kept_lengths,
        )
        self._batch = dataclasses.replace(self._batch, scored=scored)
        for name, values in scored.columns().items():
            self._logs["extra"][name].extend(values.tolist())
        return rewards_per_func

    def _graded(self, inputs, prompts, completions, completion_ids_list) -> torch.Tensor:
        with rewards_checked(self):
            rewards_per_func = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        check_finite(rewards_per_func, self.reward_func_names)
        return rewards_per_func

    def _rollouts(self, rewards_per_func: torch.Tensor) -> Rollouts:
        return self._batch.rollouts(
            self.accelerator,
            weighted_task_rewards(rewards_per_func.cpu(), self.reward_weights.cpu()),
            self._correctness_rewards(rewards_per_func),
            self.num_generations if self._mode == "train" else self.num_generations_eval,
        )

    def _correctness_rewards(self, rewards_per_func: torch.Tensor) -> torch.Tensor | None:
        if (deciding := self.args.correctness_func) is None:
            return None
        return rewards_per_func[:, self.reward_func_names.index(deciding)].double().cpu()

    def _own(self, values):
        return dynamic_sampling.share_of(values, self.accelerator.process_index, self.accelerator.num_processes)

    def _generate_and_score_completions(self, inputs):
        """Replaces the advantages of the task reward by those of the shaped reward, in the batch and in the table."""
        if self._mode == "eval":  # nothing is observed, so lambda stays
            output = self._score(inputs)
            self._log_length_control(self._batch.scored)
            return output
        num_extra, extra = self._extra_groups(inputs)
        output = self._score([*inputs, *extra])
        rounds = [self._batch.scored]
        if self.args.uses_dynamic_sampling:
            output = self._replace_dead_groups(output, rounds, num_extra)
        kept = self._batch.scored.rollouts
        if (keep := self.length_control.is_trained_on(kept)) is not None:
            self._mask(output, self._own(keep))
        self._log_length_control(joined(rounds))
        metrics = self._metrics["train"]
        metrics["leash/zero_signal_share"].append(dynamic_sampling.zero_signal_share(self._has_signal()))
        metrics["leash/generated_tokens"] = [self.generated_tokens]
        for problem in self._watch.problems(kept, self.length_control):
            if self.accelerator.is_main_process:
                warnings.warn(problem, UserWarning, stacklevel=2)
        for part in rounds:
            self.length_control.observe(part.rollouts)
        return output

    def _score(self, inputs) -> dict[str, Any]:
        """One round: completions, their rewards and, in training, the advantages of the shaped rewards."""
        target = self.args.target_at(self.state.global_step)
        # these are copies: the data set's own rows stay as they are
        rows, questions, targets = rows_with_targets(inputs, self.length_control, target, self.args.target_length)
        columns = column_values(inputs, self.length_control.columns_read(), self.args.target_length)
        self._batch = GenerationBatch(questions, targets, columns=columns)
        output = super()._generate_and_score_completions(rows)
        if self._mode == "train":
            self.generated_tokens += int(self._batch.scored.rollouts.lengths.sum())
            if (kept_lengths := self._batch.scored.kept_lengths) is not None:
                output = ended_at(output, self._own(kept_lengths), self._pad_token_id)
                self._count_loss_tokens(output)
            self._use_own_advantages(output)
            # TRL: GRPOTrainer._generate_and_score_completions just appended the advantages of all processes
            logged, own = self._logs["advantages"], self._batch.advantages.tolist()
            for _ in range(min(len(own), len(logged))):
                logged.pop()
            logged.extend(own)
        return output

    def _use_own_advantages(self, output: dict[str, Any]) -> None:
        scored = self._batch.scored
        advantages = self.length_control.advantages(
            scored.shaped_rewards, scored.rollouts, self.scale_rewards, self.args.advantage_epsilon
        )
        self._batch = dataclasses.replace(self._batch, advantages=advantages)
        theirs = output["advantages"]
        output["advantages"] = self._own(advantages).to(theirs.device, theirs.dtype)

    def _has_signal(self) -> torch.Tensor:
        return has_signal(self._batch.scored.shaped_rewards, self._batch.advantages, self.num_generations)

    def _extra_groups(self, inputs) -> tuple[int, list[dict[str, Any]]]:
        """Number of extra groups of each process, and the rows of this one's, to be generated with the batch's."""
        if (oversample := self.args.dynamic_sampling_oversample) == 0:
            return 0, []
        processes = self.accelerator.num_processes
        own = torch.tensor([question_of(row) for row in inputs[:: self.num_generations]])
        questions = self.accelerator.gather(own.to(self.accelerator.device)).tolist()
        share = extra_groups(
            [self.signal_record.probability(question) for question in questions],
            self.signal_record.running_share,
            processes,
            most_extra_groups(oversample, len(questions), processes),
        )
        return share, self._draw_groups(share, questions)

    def _replace_dead_groups(
        self, output: dict[str, Any], rounds: list[ScoredRollouts], num_extra: int
    ) -> dict[str, Any]:
        """Dynamic sampling. The completions table ends with the last round's, each with that round's advantage."""
        signals = [self._has_signal()]
        if num_extra:
            output = self._without_surplus(output, signals[0], num_extra)
        for _ in range(self.args.dynamic_sampling_rounds):
            if (is_alive := self._has_signal()).all():
                break
            output = self._sample_again(output, is_alive, rounds, signals)
        self._count_loss_tokens(output)
        if self.args.dynamic_sampling_oversample > 0:
            asked = [q for part in rounds for q in part.rollouts.questions[:: self.num_generations].tolist()]
            self.signal_record.add(asked, torch.cat(signals).tolist())
        num_generated = [len(part.rollouts.lengths) for part in rounds]
        statistics = dynamic_sampling.sampling_statistics(
            num_generated, len(self._batch.advantages), num_extra, self.accelerator.num_processes
        )
        for name, value in statistics.items():
            self._metrics["train"][f"leash/{name}"].append(value)
        return output

    def _sample_again(
        self,
        output: dict[str, Any],
        is_alive: torch.Tensor,
        rounds: list[ScoredRollouts],
        signals: list[torch.Tensor],
    ) -> dict[str, Any]:
        """One more round, added to `rounds` and `signals`: live fresh groups take the places of dead ones."""
        process, processes = self.accelerator.process_index, self.accelerator.num_processes
        kept, share = self._batch, dynamic_sampling.groups_per_process(is_alive, processes)
        questions = {question for part in rounds for question in part.rollouts.questions.tolist()}
        fresh = self._score(self._draw_groups(share, questions))
        rounds.append(self._batch.scored)
        signals.append(self._has_signal())
        sources = dynamic_sampling.replacements(is_alive, signals[-1], processes)
        rows = dynamic_sampling.local_rows(sources, len(is_alive), share, process, processes, self.num_generations)
        output = dynamic_sampling.merged_batch(output, fresh, rows, self._pad_token_id)
        self._batch = kept.with_replaced(self._batch, sources)
        self._use_own_advantages(output)
        return output

    def _without_surplus(self, output: dict[str, Any], is_alive: torch.Tensor, num_extra: int) -> dict[str, Any]:
        """The batch in its usual size, in which live extra groups have taken the places of dead ones."""
        process, processes = self.accelerator.process_index, self.accelerator.num_processes
        kept = kept_groups(is_alive, num_extra, processes)
        own = own_groups(kept, len(is_alive), process, processes)
        output = dynamic_sampling.selected(output, dynamic_sampling.group_rows(own, self.num_generations))
        self._batch = self._batch.with_groups(kept)
        self._use_own_advantages(output)
        return output

    def _draw_groups(self, share: int, without: Collection[int]) -> list[dict[str, Any]]:
        """This process's fresh prompts, `share` for each process, each repeated once per completion."""
        process, processes = self.accelerator.process_index, self.accelerator.num_processes
        batch = self.prompt_stream.batch_at(self._sampler_place.epoch, self._sampler_place.micro_step)
        passes_over = self.signal_record.passes_over
        drawn = self.prompt_stream.draw_share(share, process, processes, without, batch, passes_over)
        return [row for row in drawn for _ in range(self.num_generations)]

    def _mask(self, output: dict[str, Any], keep: torch.Tensor) -> None:
        # TRL: mask_truncated_completions zeroes the same mask, before the tokens are counted
        output["completion_mask"] = only_trained(output["completion_mask"], keep)
        self._count_loss_tokens(output)

    def _count_loss_tokens(self, output: dict[str, Any]) -> None:
        # TRL: GRPOTrainer._generate_and_score_completions counts the tokens of the loss in the same way
        output["num_items_in_batch"] = self.accelerator.gather(loss_mask(output).sum()).sum()

    def _log_length_control(self, generated: ScoredRollouts) -> None:
        for name, value in length_statistics(self.length_control, generated).items():
            self._metrics[self._mode][f"leash/{name}"].append(value)

    @cached_property
    def run_settings(self) -> dict[str, Any]:
        """Settings that must be equal for a run to resume from this run's checkpoints; each call of `train` reads them
        anew."""
        return run_settings(self.args, self.model_settings, self.reward_func_names, self.train_dataset)

    def _state_record(self) -> dict[str, Any]:
        """The content of `leash_state.json` for the weights that are loaded now."""
        return self._record_of_weights or checkpointing.state_record(self)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False):
        """Saves state, recipe and, in a checkpoint, the model card beside the weights, before they are pushed."""
        folder = Path(output_dir or self.args.output_dir)
        is_step = folder.name == f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        is_checkpoint = _internal_call and is_step and folder != Path(self.args.output_dir)
        if is_checkpoint:
            if self.args.should_save:
                clear_checkpoint(folder)
            self.accelerator.wait_for_everyone()  # or one process would delete what another has written
        super().save_model(output_dir, _internal_call)
        checkpointing.save_beside_weights(self, folder, self._state_record(), is_checkpoint)
        if self.args.should_save:
            self.publishing.write_beside_model(folder, is_checkpoint)

    def _save_rng_state(self, output_dir):
        """Waits until all processes have saved their parts: transformers then marks the checkpoint as complete."""
        super()._save_rng_state(output_dir)
        self.accelerator.wait_for_everyone()

    def _load_best_model(self):
        """Also loads the state that belongs to the best weights, so that the final save holds one step only."""
        if checkpointing.is_best_loadable(self):
            super()._load_best_model()
            self._record_of_weights = checkpointing.record_of_best(self)

    def set_initial_training_values(self, *args, **kwargs):
        """Leaves no epoch to train if the checkpoint is the run's last: transformers would train one more step."""
        num_epochs, updates_per_epoch, *others, max_steps = super().set_initial_training_values(*args, **kwargs)
        if self._start.is_end(self.args, max_steps):
            num_epochs = max_steps // updates_per_epoch
        return num_epochs, updates_per_epoch, *others, max_steps

    def train(self, resume_from_checkpoint: str | os.PathLike | bool | None = None, *args, **kwargs):
        """Trains, from the start or from where a run was stopped.

        Args:
            resume_from_checkpoint (`str`, `os.PathLike` or `bool`, *optional*):
                `True` for the last complete checkpoint in `output_dir`; a checkpoint; a bare model folder with its
                `leash_state.json`, such as a Hub root; or a place on the Hub, `"hf://owner/name/last-checkpoint"`.
            args, kwargs:
                As for [`~transformers.Trainer.train`].

        Raises:
            `ValueError`: If there is nothing to resume from, the checkpoint belongs to another run, or another run
                uses `output_dir`.
        """
        checks.before_training(self)
        self._record_of_weights = None
        self.__dict__.pop("run_settings", None)
        with advise(self.args), contextlib.ExitStack() as stack:
            agreed(self.accelerator, lambda: stack.enter_context(only_run_in(self.args.output_dir)))
            if isinstance(resume_from_checkpoint, str):
                place = agreed(self.accelerator, partial(pinned, resume_from_checkpoint))
                resume_from_checkpoint = local_checkpoint(place)  # each process downloads it
            find = partial(starting_point, resume_from_checkpoint, self.args)
            is_sharded = checkpointing.is_sharded(self)
            self._start = agreed(self.accelerator, lambda: find(self.run_settings, is_sharded))
            folder, is_checkpoint = self._start.folder, self._start.is_checkpoint
            if folder is not None:
                checkpointing.restore(self, Path(folder), is_checkpoint)
            output = super().train(folder if is_checkpoint else None, *args, **kwargs)
            self.publishing.finish()
            return output

    def init_hf_repo(self, token: str | None = None, private: bool | None = None):
        """Makes the repository and the branch of `hub_revision`, or raises `ValueError` before any training."""
        with write_access(self.args, token):
            super().init_hf_repo(token, private)
            if self.is_world_process_zero():
                HubRepository(self.hub_model_id, token or self.args.hub_token, self.args.hub_revision).create_branch()

    def create_model_card(self, model_name=None, dataset_name=None, tags=None):
        """Replaces TRL's model card by ours, which keeps its metadata and its links to trackers."""
        super().create_model_card(model_name, dataset_name, tags)
        if self.is_world_process_zero():
            self.publishing.write_card(
                self._state_record(), self.state.log_history, model_name, self.hub_model_id, self.is_in_train
            )

    def _push_from_checkpoint(self, checkpoint_folder):
        """Pushes in one commit. Super's would make two, and drop those that fail or come too early."""
        self.accelerator.wait_for_everyone()  # each process has saved its part of the checkpoint
        if self.is_world_process_zero() and self.args.hub_strategy != "end":
            self.callback_handler.on_push_begin(self.args, self.state, self.control)
            self.publishing.push_checkpoint(Path(checkpoint_folder), self.state.global_step, self.hub_model_id)

    def push_to_hub(
        self, commit_message="End of training", blocking=True, token=None, revision=None, private=None, **kwargs
    ):
        """As [`~transformers.Trainer.push_to_hub`], but in one commit, with retries."""
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        if self.hub_model_id is None:
            self.init_hf_repo(token, private)
        self.save_model(_internal_call=True)
        if not self.is_world_process_zero():
            return None
        self.create_model_card(**kwargs)
        return self.publishing.push_model(self.hub_model_id, commit_message, blocking, token, revision)
