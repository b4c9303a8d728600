"""`LeashGRPOTrainer`: TRL's `GRPOTrainer` with adaptive length control. Wiring only, no arithmetic."""

import contextlib
import warnings
from collections.abc import Collection
from typing import Any

import torch

from leash_trl.engines.eos import eos_token_ids
from leash_trl.length_control.advantages import has_signal
from leash_trl.length_control.leash import Leash
from leash_trl.length_control.rollouts import Rollouts, ScoredRollouts, joined, weighted_task_rewards
from leash_trl.length_control.statistics import length_statistics
from leash_trl.length_control.targets import rows_with_targets
from leash_trl.trainer import dynamic_sampling
from leash_trl.trainer.advised_grpo_trainer import AdvisedGRPOTrainer
from leash_trl.trainer.callbacks import DualStepCallback, group_tensorboard_curves
from leash_trl.trainer.leash_grpo_config import LeashGRPOConfig


class LeashGRPOTrainer(AdvisedGRPOTrainer):
    r"""
    Trainer for LEASH: GRPO with DAPO's loss, and a length penalty whose weight follows the constraint.

    Each completion pays `lambda * max(0, L / target_length - 1)` out of its task reward (the weighted sum of all
    reward functions), the result is clipped to [-1, 1], and after the policy update lambda moves by `lambda_lr *
    mean(L / target_length - 1)`. `L` counts the tokens the model generated, EOS included, tool output excluded.
    Rewards are meant to be +1 for right and -1 for wrong, as [`~leash_trl.rewards.math_reward`] gives.

    Source: Algorithm 1 of [LEASH](https://huggingface.co/papers/2512.21540).

    `length_control` in the configuration chooses another method; everything else stays the same. The trainer hands
    methods the task reward and whether it is positive, which is what they take for correctness.

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
            Configuration; LEASH's `target_length` has no default, so neither has this.
        kwargs:
            All other arguments of [`~trl.GRPOTrainer`].

    Raises:
        `TypeError`: If `args` is not a [`LeashGRPOConfig`].
        `ValueError`: If a column is missing, a row's target does not fit, or with colocated vLLM its prompt does not,
            or the tokenizer lacks an end token or the chat template that the prompts need.
        `ImportError`: If vLLM is to generate and is not installed.

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
    _name = "LEASH"
    _paper = Leash.paper()

    max_completion_length: int | None

    def __init__(self, model, reward_funcs=None, args: LeashGRPOConfig | None = None, *more_args, **kwargs):
        if not isinstance(args, LeashGRPOConfig):
            raise TypeError(
                f"args is a {type(args).__name__}, but must be a LeashGRPOConfig, such as "
                "LeashGRPOConfig(target_length=4096)"
            )
        super().__init__(model, reward_funcs, args, *more_args, **kwargs)
        self.length_control = args.make_length_control()
        if (paper := self.length_control.paper()).get("id") != self._paper["id"]:  # for the model card
            self._name, self._paper = self.length_control.name, paper
        self.add_callback(DualStepCallback(self.length_control, lambda: self.accelerator))
        group_tensorboard_curves(self)
        self._prompt_stream = dynamic_sampling.PromptStream(self.train_dataset, args.seed, args.shuffle_dataset)
        if args.dynamic_sampling_rounds > 0:
            self._prompt_stream.check()
        self._end_ids = {
            *eos_token_ids(self.accelerator.unwrap_model(self.model), self._tokenizer),
            self._tokenizer.pad_token_id,
        }
        self._generated_tokens = 0
        self._knows_reward_scale = False
        self._questions: list[int] = []
        self._targets: list[float] = []
        self._lengths: list[int] = []
        self._is_truncated: list[bool] = []
        self._generation_limit = args.generation_limit
        self._scored: ScoredRollouts
        self._advantages = torch.empty(0)
        self._check_correctness_func()

    def _check_correctness_func(self) -> None:
        names, chosen = self.reward_func_names, self.args.correctness_func
        if chosen is not None and chosen not in names:
            raise ValueError(f"correctness_func is {chosen!r}, but must be one of {', '.join(names)}")
        if chosen is None and len(names) > 1 and self.length_control.uses_correctness:
            raise ValueError(
                f"length_control={self.length_control.name!r} needs to know what is correct, and with the reward "
                f"functions {', '.join(names)} a positive sum does not say; set correctness_func to one of them"
            )

    @property
    def _mode(self) -> str:
        # A flag of our own: continuous batching leaves the model in train mode during evaluation.
        return "eval" if self._is_evaluating else "train"

    def prediction_step(self, *args, **kwargs):
        """Marks evaluation, during which the state must not move."""
        self._is_evaluating = True
        try:
            return super().prediction_step(*args, **kwargs)
        finally:
            self._is_evaluating = False

    def _generate_single_turn(self, *args, **kwargs):
        """Restores the training flag, which TRL's continuous-batching branch sets even during evaluation."""
        was_training = self.model.training
        output = super()._generate_single_turn(*args, **kwargs)
        self.model.train(was_training)
        return output

    @contextlib.contextmanager
    def _generation_cut_at(self, limit: int):
        # TRL: GRPOTrainer.__init__ hands its limit to the generation backend once; tools and rollout functions read
        # max_completion_length, and so does the dr_grpo loss, later
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
        self._generation_limit = self.args.generation_limit
        cap = self.length_control.generation_cap(self.args.target_at(self.state.global_step))
        if cap is None or cap >= self._generation_limit or self._mode == "eval":
            output = super()._generate(prompts)
        else:
            self._generation_limit = cap
            with self._generation_cut_at(cap):
                output = super()._generate(prompts)
        # TRL: GRPOTrainer._generate returns (prompt_ids, completion_ids, tool_mask, ...); the mask is 0 on tool output
        completion_ids, tool_mask = output[1], output[2]
        self._lengths = (
            [sum(mask) for mask in tool_mask] if tool_mask is not None else [len(x) for x in completion_ids]
        )
        self._is_truncated = [ids[-1] not in self._end_ids for ids in completion_ids]
        return output

    def _with_targets(self, inputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The rows as the model is to see them, their targets noted; the data set's own rows are left alone."""
        rows, self._questions, self._targets = rows_with_targets(
            inputs, self.length_control, self.args.target_at(self.state.global_step), self.args.target_length
        )
        return rows

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        """Hands the task rewards to length control and returns them unchanged; they stay logged under their names."""
        rewards_per_func = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        rollouts = self._gather_rollouts(rewards_per_func)
        self._scored = ScoredRollouts(
            rollouts,
            base_rewards=self.length_control.base_rewards(rollouts),
            penalty=self.length_control.penalty(rollouts),
            shaped_rewards=self.length_control.shape(rollouts),
        )
        local = self._local_slice(len(self._lengths))
        for name, values in self._scored.columns().items():
            self._log_completion_extra(name, values[local].tolist())
        return rewards_per_func

    def _gather_rollouts(self, rewards_per_func: torch.Tensor) -> Rollouts:
        device = self.accelerator.device
        lengths, is_truncated, questions, targets = (
            self.accelerator.gather(torch.tensor(values, dtype=dtype, device=device)).cpu()
            for values, dtype in (
                (self._lengths, torch.long),
                (self._is_truncated, torch.bool),
                (self._questions, torch.long),
                (self._targets, torch.float32),  # MPS has no float64
            )
        )
        deciding = self.args.correctness_func
        return Rollouts(
            task_rewards=weighted_task_rewards(rewards_per_func.cpu(), self.reward_weights.cpu()),
            lengths=lengths,
            target_lengths=targets.double(),
            is_truncated=is_truncated,
            questions=questions,
            num_generations=self.num_generations if self._mode == "train" else self.num_generations_eval,
            max_completion_length=self._generation_limit,
            correctness_rewards=None
            if deciding is None
            else rewards_per_func[:, self.reward_func_names.index(deciding)].double().cpu(),
        )

    def _advantages_of(self, scored: ScoredRollouts) -> torch.Tensor:
        return self.length_control.advantages(
            scored.shaped_rewards, scored.rollouts, self.scale_rewards, self.args.advantage_epsilon
        )

    def _warn_about_reward_scale(self, rollouts: Rollouts) -> None:
        """Looks at every training batch until a reward below 0 or above 1 has shown the scale."""
        if self._knows_reward_scale:
            return
        problem = self.length_control.reward_scale_problem(rollouts)
        self._knows_reward_scale = problem is not None or bool((rollouts.task_rewards < 0).any())
        if problem is not None and self.accelerator.is_main_process:
            warnings.warn(problem, UserWarning, stacklevel=2)

    def _local_slice(self, num_local: int) -> slice:
        return slice(self.accelerator.process_index * num_local, (self.accelerator.process_index + 1) * num_local)

    def _log_length_control(self, generated: ScoredRollouts) -> None:
        for name, value in length_statistics(self.length_control, generated).items():
            self._metrics[self._mode][f"leash/{name}"].append(value)

    def _generate_and_score_completions(self, inputs):
        """Swaps the advantages of the task reward for those of the shaped reward, in the batch and in the table."""
        if self._mode == "eval":
            output = super()._generate_and_score_completions(self._with_targets(inputs))
            self._log_length_control(self._scored)
            return output
        output = self._score(inputs)
        rounds = [self._scored]
        if self.args.dynamic_sampling_rounds > 0:
            output = self._replace_dead_groups(output, rounds)
        if (keep := self.length_control.is_trained_on(self._scored.rollouts)) is not None:
            self._mask(output, keep[self._local_slice(len(output["advantages"]))])
        self._log_length_control(joined(rounds))
        has_signal = self._has_signal()
        self._metrics["train"]["leash/zero_signal_share"].append(1.0 - has_signal.double().mean().item())
        self._metrics["train"]["leash/generated_tokens"] = [self._generated_tokens]
        self._warn_about_reward_scale(self._scored.rollouts)
        self._warn_about_endings(self._scored.rollouts)
        for part in rounds:
            self.length_control.observe(part.rollouts)
        return output

    def _has_signal(self) -> torch.Tensor:
        return has_signal(self._scored.shaped_rewards, self._advantages, self.num_generations)

    def _score(self, inputs) -> dict[str, Any]:
        output = super()._generate_and_score_completions(self._with_targets(inputs))
        self._generated_tokens += int(self._scored.rollouts.lengths.sum())
        self._use_own_advantages(output)
        # TRL: GRPOTrainer._generate_and_score_completions has just appended the advantages of all processes
        logged = self._logs["advantages"]
        for _ in range(min(len(self._advantages), len(logged))):
            logged.pop()
        logged.extend(self._advantages.tolist())
        return output

    def _use_own_advantages(self, output: dict[str, Any]) -> None:
        self._advantages = self._advantages_of(self._scored)
        theirs = output["advantages"]
        output["advantages"] = self._advantages[self._local_slice(len(theirs))].to(theirs.device, theirs.dtype)

    def _replace_dead_groups(self, output: dict[str, Any], rounds: list[ScoredRollouts]) -> dict[str, Any]:
        """Dynamic sampling. The completions table ends with the last round's, each with that round's advantage."""
        size, processes = self.num_generations, self.accelerator.num_processes
        for _ in range(self.args.dynamic_sampling_rounds):
            kept, is_alive = self._scored, self._has_signal()
            if is_alive.all():
                break
            share = dynamic_sampling.groups_per_process(is_alive, processes)
            questions = {question for part in rounds for question in part.rollouts.questions.tolist()}
            fresh = self._score(self._draw_groups(share * processes, questions))
            rounds.append(self._scored)
            sources = dynamic_sampling.replacements(is_alive, self._has_signal(), processes)
            local_rows = dynamic_sampling.local_rows(
                sources, len(is_alive), share, self.accelerator.process_index, processes, size
            )
            output = dynamic_sampling.merged_batch(output, fresh, local_rows, self._tokenizer.pad_token_id)
            self._scored = joined([kept, self._scored]).select(dynamic_sampling.group_rows(sources, size))
            self._use_own_advantages(output)
        self._count_loss_tokens(output)
        num_generated = sum(len(part.rollouts.lengths) for part in rounds)
        wasted = dynamic_sampling.wasted_share(num_generated, len(self._advantages))
        self._metrics["train"]["leash/wasted_share"].append(wasted)
        return output

    def _draw_groups(self, count: int, without: Collection[int] = ()) -> list[dict[str, Any]]:
        """This process's share of `count` fresh prompts, each as often as it is to be answered."""
        rows = [row for row in self._prompt_stream.draw(count, without) for _ in range(self.num_generations)]
        return rows[self._local_slice(len(rows) // self.accelerator.num_processes)]

    def _mask(self, output: dict[str, Any], keep: torch.Tensor) -> None:
        # TRL: mask_truncated_completions zeroes the same mask, before the tokens are counted
        mask = output["completion_mask"]
        output["completion_mask"] = mask * keep.to(mask.device, mask.dtype).unsqueeze(1)
        self._count_loss_tokens(output)

    def _count_loss_tokens(self, output: dict[str, Any]) -> None:
        # TRL: GRPOTrainer._generate_and_score_completions counts the tokens of the loss in the same way
        mask = output["completion_mask"]
        if "tool_mask" in output:
            mask = mask * output["tool_mask"]
        output["num_items_in_batch"] = self.accelerator.gather(mask.sum()).sum()

    def _extra_state(self) -> dict[str, int]:
        return {"generated_tokens": self._generated_tokens, "prompts_drawn": self._prompt_stream.position}

    def _load_extra_state(self, state: dict[str, int]) -> None:
        self._generated_tokens = state.get("generated_tokens", 0)
        self._prompt_stream.position = state.get("prompts_drawn", 0)
