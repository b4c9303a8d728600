"""`AdvisedGRPOTrainer`: looks for common mistakes before training, and says what to do when something runs out."""

import inspect
import warnings
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import PeftModel
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from trl import GRPOTrainer

from leash_trl.engines.checkpoint_path import checkpoint_path
from leash_trl.engines.endings import TEMPLATE_FAULTS, EndWatch, turn_end
from leash_trl.engines.eos import eos_token_ids
from leash_trl.engines.shrinking_batch import check_samples_plainly, shrinking_rollout
from leash_trl.length_control.method import LengthControl
from leash_trl.length_control.rollouts import Rollouts
from leash_trl.trainer import checks
from leash_trl.trainer.advice import advise, space_problem
from leash_trl.trainer.checked_rewards import check_finite, checked
from leash_trl.trainer.leash_grpo_config import LeashGRPOConfig
from leash_trl.trainer.publishing_grpo_trainer import PublishingGRPOTrainer


FULL_ADAMW = ("adamw_torch", "adamw_torch_fused")  # others keep smaller state, or none


class AdvisedGRPOTrainer(PublishingGRPOTrainer):
    """`GRPOTrainer` that checks columns, targets, chat template, tokenizer, context and free disk space before
    training, watches whether completions end, and adds advice to exceptions that mean "out of memory" or "disk full".

    The overrides of `_generate`, `training_step`, `prediction_step`, `train` and of saving only tell which phase an
    exception comes from.
    """

    _is_evaluating = False
    reward_funcs: list[Any]

    def __init__(
        self,
        model: Any,
        reward_funcs: Any,
        args: LeashGRPOConfig,
        train_dataset: Any = None,
        *more_args: Any,
        **kwargs: Any,
    ) -> None:
        checks.check_vllm(args)
        model = checkpoint_path(str(model)) if isinstance(model, str | Path) else model
        method = args.make_length_control()
        # TRL: GRPOTrainer.__init__ takes these by position too
        given = inspect.signature(GRPOTrainer).bind(model, reward_funcs, args, train_dataset, *more_args, **kwargs)
        elsewhere = (given.arguments.get("rollout_func"), given.arguments.get("environment_factory"))
        columns = checks.known_columns(train_dataset)
        checks.check_columns(columns, reward_funcs, *elsewhere)
        checks.check_own_targets(train_dataset, method, args)
        has_own_prompts = elsewhere[0] not in (None, shrinking_rollout) or elsewhere[1] is not None
        if not has_own_prompts:
            checks.check_asks(train_dataset)
        with advise("starting", args):
            super().__init__(model, reward_funcs, args, train_dataset, *more_args, **kwargs)
        checks.check_end_token(self._tokenizer)
        if self.rollout_func is shrinking_rollout:
            check_samples_plainly(self)
        if self.accelerator.is_main_process:
            checks.warn_about_misspelt_target(columns)
            if not has_own_prompts:
                checks.warn_about_strings(train_dataset, self._tokenizer)
            if not self.use_vllm and self.rollout_func in (None, shrinking_rollout):
                model_limits = self.accelerator.unwrap_model(self.model).generation_config
                checks.warn_about_no_limit(args, self.generation_config, model_limits)
        is_readable = isinstance(train_dataset, Dataset) and columns is not None and len(train_dataset) > 0
        # an image is more tokens than its place in text
        if is_readable and not has_own_prompts and not self._is_vlm:
            self._check_prompts(train_dataset, method)
        self._end_watch = EndWatch()

    def _check_prompts(self, dataset: Dataset, method: LengthControl) -> None:
        prompt = dataset[0]["prompt"]
        checks.check_messages(prompt, self.processing_class.chat_template)
        if self.accelerator.is_main_process:
            checks.warn_about_closed_thinking(prompt, self._prompt_text, self.chat_template_kwargs)
        self._check_context(dataset, method)

    def _check_context(self, dataset: Dataset, method: LengthControl) -> None:
        is_refused = checks.is_refused_beyond_context(self.args)
        config = checks.context_settings(self.accelerator.unwrap_model(self.model).config)
        known = checks.context_of(config, self.args)
        if known is None or not (is_refused or self.accelerator.is_main_process):
            return
        first = self._num_tokens([dataset[0]["prompt"]])
        prompts = checks.long_prompts(dataset, method, self.args, known[0], first[0]) if first else []
        lengths = self._num_tokens([placed.prompt for placed in prompts]) if prompts else []
        if lengths and is_refused:
            checks.check_refused(prompts, lengths, *known)
        if lengths and self.accelerator.is_main_process:
            checks.warn_about_context(prompts, lengths, self.args.generation_limit, *known)

    def _num_tokens(self, prompts: list[Any]) -> list[int]:
        """Tokens of prompts; none where the chat template fails, which generation says if it gets to that prompt."""
        try:
            # TRL: GRPOTrainer._generate begins with the same call
            return [len(ids) for ids in self._tokenize_prompts(prompts)[0]]
        except TEMPLATE_FAULTS:
            return []

    def _prompt_text(self, messages: list[dict[str, Any]]) -> str:
        return self.processing_class.apply_chat_template(
            messages,
            chat_template=self.chat_template,
            tokenize=False,
            add_generation_prompt=True,
            **self.chat_template_kwargs,
        )

    def _warn_about_endings(self, rollouts: Rollouts) -> None:
        """Looks at every training batch until a completion has ended, or enough have not."""
        if not self._end_watch.look(rollouts) or not self.accelerator.is_main_process:
            return
        ids = eos_token_ids(self.accelerator.unwrap_model(self.model), self._tokenizer)
        tokens = {self._tokenizer.convert_ids_to_tokens(number): number for number in ids}
        behind_answers = turn_end(self._tokenizer, self.chat_template, self.chat_template_kwargs)
        problem = self._end_watch.problem(tokens, behind_answers, rollouts.max_completion_length)
        warnings.warn(problem, UserWarning, stacklevel=2)

    def _checkpoint_bytes(self) -> int:
        """Bytes that a checkpoint takes at least: what is saved of the weights, AdamW's two moments, and a reference
        model that moves."""
        model = self.accelerator.unwrap_model(self.model)
        trained = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
        if isinstance(model, PeftModel):
            weights = trained
        else:
            weights = sum(p.numel() * p.element_size() for p in model.parameters())
        has_moments = self.args.optim in FULL_ADAMW and not self.args.save_only_model
        has_reference = self.args.sync_ref_model and not self.args.save_only_model
        return weights + (2 * trained if has_moments else 0) + (weights if has_reference else 0)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Refuses data for no step, and warns where a checkpoint will not fit on the disk; what fails outside the
        other phases is the update."""
        checks.check_size(self.train_dataset, self.args)
        saves = self.args.save_strategy != "no" and self.args.should_save
        problem = space_problem(self.args.output_dir, self._checkpoint_bytes()) if saves else None
        if problem is not None:
            warnings.warn(problem, UserWarning, stacklevel=2)
        with advise("updating the weights", self.args):
            return super().train(*args, **kwargs)

    def _generate(self, prompts: list[Any]) -> Any:
        """Marks generation, which in an evaluation has other knobs."""
        with advise("evaluating" if self._is_evaluating else "generating", self.args):
            return super()._generate(prompts)

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Holds what reward functions return to what is due; `reward_funcs` stays the user's own list."""
        given = self.reward_funcs
        self.reward_funcs = [checked(func, name) for func, name in zip(given, self.reward_func_names, strict=True)]
        try:
            rewards: torch.Tensor = super()._calculate_rewards(*args, **kwargs)
        finally:
            self.reward_funcs = given
        check_finite(rewards, self.reward_func_names)
        return rewards

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Marks the loss and its gradient; generation, which TRL starts from here, has marked itself."""
        with advise("computing the loss", self.args):
            return super().training_step(*args, **kwargs)

    def prediction_step(self, *args: Any, **kwargs: Any) -> Any:
        """Marks evaluation."""
        with advise("evaluating", self.args):
            return super().prediction_step(*args, **kwargs)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Marks the saving of a model."""
        with advise("saving", self.args, output_dir):
            super().save_model(output_dir, _internal_call)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Marks the saving of a checkpoint, optimizer state included, which `save_model` does not see."""
        folder = Path(self._get_output_dir(trial=trial)) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        with advise("saving", self.args, folder):
            super()._save_checkpoint(model, trial)
