"""`LeashGRPOTrainer`: TRL's `GRPOTrainer` with LEASH's adaptive length penalty. Wiring only, no arithmetic."""

import logging
import warnings
from pathlib import Path
from typing import Any, cast

import torch
from transformers.integrations import TensorBoardCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from trl import GRPOTrainer

from leash_trl.callbacks import DualStepCallback, EpochShuffleCallback, LeashTensorBoardCallback
from leash_trl.controller_state import TRAINER_STATE_FILE, is_whole, last_whole_checkpoint, read_state, write_state
from leash_trl.leash_grpo_config import LeashGRPOConfig
from leash_trl.length_control.advantages import group_advantages
from leash_trl.length_control.leash import Leash
from leash_trl.length_control.rollouts import Rollouts, reward_scale_problem, weighted_task_rewards
from leash_trl.length_control.statistics import length_statistics


logger = logging.getLogger(__name__)


class LeashGRPOTrainer(GRPOTrainer):
    r"""
    Trainer for LEASH: GRPO with DAPO's loss, and a length penalty whose weight follows the constraint.

    Each completion pays `lambda * max(0, L / target_length - 1)` out of its task reward (the weighted sum of all
    reward functions), the result is clipped to [-1, 1], and after the policy update lambda moves by `lambda_lr *
    mean(L / target_length - 1)`. `L` counts the tokens the model generated, EOS included, tool output excluded.
    Rewards are meant to be +1 for right and -1 for wrong, as [`~leash_trl.rewards.math_reward`] gives.

    Source: Algorithm 1 of [LEASH](https://huggingface.co/papers/2512.21540).

    Lambda belongs to the trainer: it is saved with every checkpoint (`leash_state.json`: the value *after* that step's
    dual step, while a log row shows the value the step *used*) and restored by `resume_from_checkpoint`. A second
    call of `train` goes on with the lambda that the first one left. Evaluation logs shaped and task reward and leaves
    lambda alone.

    Args:
        model (`str` or [`~transformers.PreTrainedModel`]):
            As for [`~trl.GRPOTrainer`].
        reward_funcs (`RewardFunc | list[RewardFunc]`, *optional*):
            Task rewards, as for [`~trl.GRPOTrainer`]; functions, async functions and reward models, with
            `reward_weights`. Do not add a length reward of your own.
        args ([`LeashGRPOConfig`]):
            Configuration; `target_length` has no default, so neither has this.
        kwargs:
            All other arguments of [`~trl.GRPOTrainer`].

    Raises:
        `TypeError`: If `args` is not a [`LeashGRPOConfig`].

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
    _paper = {
        "title": "Leash: Adaptive Length Penalty and Reward Shaping for Efficient Large Reasoning Model",
        "id": "2512.21540",
        # docstyle-ignore
        "citation": """\
@article{li2025leash,
    title        = {{Leash: Adaptive Length Penalty and Reward Shaping for Efficient Large Reasoning Model}},
    author       = {Yanhao Li and Lu Ma and Jiaran Zhang and Lexiang Tang and Wentao Zhang and Guibo Luo},
    year         = 2025,
    eprint       = {arXiv:2512.21540},
}""",
    }

    def __init__(self, model, reward_funcs=None, args: LeashGRPOConfig | None = None, *more_args, **kwargs):
        if not isinstance(args, LeashGRPOConfig):
            raise TypeError(
                f"args is a {type(args).__name__}, but must be a LeashGRPOConfig, such as "
                "LeashGRPOConfig(target_length=4096)"
            )
        super().__init__(model, reward_funcs, args, *more_args, **kwargs)
        self.length_control = Leash(
            cast(int, args.target_length), args.lambda_init, args.lambda_lr, args.lambda_min, args.lambda_max
        )
        self._epoch_shuffle = EpochShuffleCallback()
        self.add_callback(DualStepCallback(self.length_control))
        self.add_callback(self._epoch_shuffle)
        self._group_tensorboard_curves()
        self._is_evaluating = False
        self._knows_reward_scale = False
        self._lengths: list[int] = []
        self._advantages = torch.empty(0)

    def _group_tensorboard_curves(self) -> None:
        for callback in self.callback_handler.callbacks:
            if type(callback) is TensorBoardCallback:  # a subclass is the user's own business
                self.remove_callback(callback)
                self.add_callback(LeashTensorBoardCallback(callback.tb_writer))
                return

    @property
    def _mode(self) -> str:
        # A flag of our own: continuous batching leaves the model in train mode during evaluation.
        return "eval" if self._is_evaluating else "train"

    def _get_train_sampler(self, dataset=None):
        """Keeps hold of TRL's sampler, so that a resumed run can go on with its epoch's order."""
        sampler = super()._get_train_sampler(dataset)
        self._epoch_shuffle.sampler = sampler
        return sampler

    def prediction_step(self, *args, **kwargs):
        """Marks evaluation, during which lambda must not move."""
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

    def _generate(self, prompts):
        """Counts the tokens that the model generated, before masking, padding and truncation rules touch them."""
        output = super()._generate(prompts)
        # TRL: GRPOTrainer._generate returns (prompt_ids, completion_ids, tool_mask, ...); the mask is 0 on tool output
        completion_ids, tool_mask = output[1], output[2]
        self._lengths = (
            [sum(mask) for mask in tool_mask] if tool_mask is not None else [len(x) for x in completion_ids]
        )
        return output

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        """Hands the task rewards to length control and returns them unchanged; they stay logged under their names."""
        rewards_per_func = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        rollouts = self._gather_rollouts(rewards_per_func)
        shaped_rewards = self.length_control.shape(rollouts)
        self._advantages = group_advantages(
            shaped_rewards, rollouts.num_generations, self.scale_rewards, self.args.advantage_epsilon
        )
        self._log_length_control(rollouts, shaped_rewards)
        if self._mode == "train":
            self.length_control.observe(rollouts)
            if not self._knows_reward_scale:
                self._warn_about_reward_scale(rollouts)
        return rewards_per_func

    def _gather_rollouts(self, rewards_per_func: torch.Tensor) -> Rollouts:
        lengths = torch.tensor(self._lengths, device=self.accelerator.device)
        return Rollouts(
            task_rewards=weighted_task_rewards(rewards_per_func.cpu(), self.reward_weights.cpu()),
            lengths=self.accelerator.gather(lengths).cpu(),
            num_generations=self.num_generations if self._mode == "train" else self.num_generations_eval,
        )

    def _warn_about_reward_scale(self, rollouts: Rollouts) -> None:
        """Looks at every training batch until a reward below 0 or above 1 has shown the scale."""
        problem = reward_scale_problem(rollouts.task_rewards)
        self._knows_reward_scale = problem is not None or bool((rollouts.task_rewards < 0).any())
        if problem is not None and self.accelerator.is_main_process:
            warnings.warn(problem, UserWarning, stacklevel=2)

    def _local_slice(self, num_local: int) -> slice:
        return slice(self.accelerator.process_index * num_local, (self.accelerator.process_index + 1) * num_local)

    def _log_length_control(self, rollouts: Rollouts, shaped_rewards: torch.Tensor) -> None:
        penalty = self.length_control.penalty(rollouts)
        statistics = length_statistics(rollouts, penalty, shaped_rewards, self.args.target_length)
        for name, value in {"lambda": self.length_control.lam, **statistics}.items():
            self._metrics[self._mode][f"leash/{name}"].append(value)
        local = self._local_slice(len(self._lengths))
        columns = {"length": rollouts.lengths, "task_reward": rollouts.task_rewards}
        for column, values in {**columns, "penalty": penalty, "shaped_reward": shaped_rewards}.items():
            self._log_completion_extra(column, values[local].tolist())

    def _generate_and_score_completions(self, inputs):
        """Swaps the advantages of the task reward for those of the shaped reward, in the batch and in the table."""
        output = super()._generate_and_score_completions(inputs)
        advantages = output["advantages"]
        local = self._advantages[self._local_slice(len(advantages))]
        output["advantages"] = local.to(advantages.device, advantages.dtype)
        # TRL: GRPOTrainer._generate_and_score_completions has just appended the advantages of all processes
        logged = self._logs["advantages"]
        for _ in range(min(len(self._advantages), len(logged))):
            logged.pop()
        logged.extend(self._advantages.tolist())
        return output

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False):
        """Saves the controller's state beside the weights, before a checkpoint is pushed to the Hub."""
        super().save_model(output_dir, _internal_call)
        folder = Path(output_dir or self.args.output_dir)
        if _internal_call and folder.name.startswith(PREFIX_CHECKPOINT_DIR) and not self.args.save_only_model:
            self._save_rollout_window(folder)
        if self.args.should_save:
            write_state(folder, self._state_record())

    def _state_record(self) -> dict[str, Any]:
        return {
            "method": self.length_control.name,
            "controller": self.length_control.state_dict(),
            "target_length": self.args.target_length,
            "global_step": self.state.global_step,
            "micro_step": self._step,
            "batching": self._batching(),
        }

    def _batching(self) -> dict[str, int]:
        """What must be unchanged for a saved generation window to fit."""
        return {
            "num_processes": self.accelerator.num_processes,
            "per_device_train_batch_size": self.args.per_device_train_batch_size,
            "steps_per_generation": self.args.steps_per_generation,
            "num_iterations": self.num_iterations,
        }

    def _rollout_window_path(self, folder: Path) -> Path:
        return folder / f"leash_rollouts_{self.accelerator.process_index}.pt"

    def _save_rollout_window(self, folder: Path) -> None:
        """Saves the completions that are still to be trained on, so that a resumed run need not generate others."""
        # TRL: GRPOTrainer._prepare_inputs generates when this is 0 and reads its buffer otherwise
        if self._step % (self.args.steps_per_generation * self.num_iterations) != 0:
            folder.mkdir(parents=True, exist_ok=True)
            torch.save(self._buffered_inputs, self._rollout_window_path(folder))

    def _load_optimizer_and_scheduler(self, checkpoint):
        """Restores the controller, and where in a generation window the checkpoint was taken."""
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            self._restore_rollout_window(Path(checkpoint), self._restore_controller(Path(checkpoint)))

    def train(self, resume_from_checkpoint: str | bool | None = None, *args, **kwargs):
        """Resumes from the last checkpoint that is whole, and from a bare model folder such as a Hub root."""
        if resume_from_checkpoint is True:
            resume_from_checkpoint = str(last_whole_checkpoint(self.args.output_dir))
        elif isinstance(resume_from_checkpoint, str) and not is_whole(folder := Path(resume_from_checkpoint)):
            self._restore_bare_model(folder)
            resume_from_checkpoint = None
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def _restore_bare_model(self, folder: Path) -> None:
        """Weights and lambda of a folder without trainer state, which transformers would refuse."""
        if folder.name.startswith(PREFIX_CHECKPOINT_DIR):
            raise ValueError(f"{folder} is not whole, its run was stopped while saving it; take an earlier one")
        if self.is_deepspeed_enabled or self.is_fsdp_enabled:
            raise ValueError(
                f"{folder} holds no {TRAINER_STATE_FILE}; under DeepSpeed and FSDP pass it as the model instead"
            )
        self._restore_controller(folder)
        self._load_from_checkpoint(str(folder))

    def _restore_controller(self, checkpoint: Path) -> dict[str, Any]:
        self._warn_about_partial_checkpoint(checkpoint)
        record = read_state(checkpoint)
        if (saved_by := record.get("method", self.length_control.name)) != self.length_control.name:
            raise ValueError(
                f"{checkpoint} was saved by length control {saved_by!r}, this is {self.length_control.name!r}"
            )
        self.length_control.load_state_dict(record["controller"])
        self._check_resumed_target(record)
        return record

    def _warn_about_partial_checkpoint(self, checkpoint: Path) -> None:
        # DeepSpeed keeps its optimizer in global_step*/, FSDP in optimizer_*/
        if not any([*checkpoint.glob("optimizer*"), *checkpoint.glob("global_step*")]):
            warnings.warn(
                f"{checkpoint} holds no optimizer state (saved with save_only_model, or the root of a Hub "
                "repository): weights and lambda are restored, the optimizer and the random generators start afresh"
                + ("" if is_whole(checkpoint) else ", and so do the steps and the schedule"),
                UserWarning,
                stacklevel=2,
            )

    def _check_resumed_target(self, record: dict[str, Any]) -> None:
        if (saved := record.get("target_length")) not in (None, self.args.target_length):
            warnings.warn(
                f"resuming with target_length={self.args.target_length}, but the checkpoint was trained for {saved}; "
                f"lambda={self.length_control.lam} is kept",
                UserWarning,
                stacklevel=2,
            )

    def _restore_rollout_window(self, checkpoint: Path, record: dict[str, Any]) -> None:
        # What an interrupted call of `train` on this trainer has left must not be trained on.
        self._step, self._buffered_inputs = record.get("micro_step", 0), None
        self._metrics["train"].clear()
        if self._step % (self.args.steps_per_generation * self.num_iterations) == 0:
            return
        path = self._rollout_window_path(checkpoint)
        fits = path.is_file() and record.get("batching") == self._batching()
        # One process that generates while the others do not would wait for them for ever.
        if self.accelerator.gather(torch.tensor([fits], device=self.accelerator.device)).all():
            # not accelerator.device: with several CPU processes it is cpu:0, which torch.load does not know
            device = "cpu" if self.accelerator.device.type == "cpu" else self.accelerator.device
            self._buffered_inputs = torch.load(path, map_location=device, weights_only=True)
            return
        self._step = 0
        warnings.warn(
            f"{checkpoint} was saved inside a generation window that does not fit here (it was made with "
            f"{record.get('batching')}, this run has {self._batching()}, or files are missing): completions are "
            "generated anew, so the run differs from an uninterrupted one. Save at multiples of steps_per_generation "
            "* num_iterations / gradient_accumulation_steps to avoid this.",
            UserWarning,
            stacklevel=2,
        )

    def _push_from_checkpoint(self, checkpoint_folder: str):
        """Puts the state at the root of the Hub repository too, where transformers copies only the model's files."""
        if self.is_world_process_zero():
            write_state(self.args.output_dir, read_state(checkpoint_folder))
        super()._push_from_checkpoint(checkpoint_folder)
