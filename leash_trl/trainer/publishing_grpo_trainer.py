"""`PublishingGRPOTrainer`: a `GRPOTrainer` whose checkpoints tell what made them, and reach the Hub whole."""

import logging
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from huggingface_hub import CommitInfo
from peft import PeftModel
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, HubStrategy

from leash_trl.hub.checkpoint_files import MODEL_PATTERNS, card_files, model_files
from leash_trl.hub.model_card import write_curves, write_model_card
from leash_trl.hub.pushes import HubPushes, Push
from leash_trl.hub.recipe import changed_fields, write_recipe
from leash_trl.hub.repository import PATIENT, HubRepository, what_went_wrong, with_attempts
from leash_trl.hub.run_record import RunRecord
from leash_trl.microbatching.length_grouped_grpo_trainer import LengthGroupedGRPOTrainer


logger = logging.getLogger(__name__)


class PublishingGRPOTrainer(LengthGroupedGRPOTrainer):
    """`GRPOTrainer` that writes recipe and model card beside every model, and pushes checkpoints in single commits.

    With `push_to_hub`, every save is one commit with the model, the state of length control, recipe, card and, by
    `hub_strategy`, the checkpoint. A push that fails or is skipped because the one before it is still running does not
    stop training; it is made up for with the next save and at the end, as `hub_pushes.report` says.

    `recipe` is what `leash_recipe.yaml` will hold: by default the model and the fields of `args` that differ from
    their defaults; data and reward functions of a Python program are not known.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        model = self.accelerator.unwrap_model(self.model)
        self.recipe: dict[str, Any] = {
            "model_name_or_path": model.config._name_or_path,
            "dtype": str(model.dtype).removeprefix("torch."),
            **changed_fields(self.args),
        }
        self.hub_pushes: HubPushes | None = None

    def init_hf_repo(self, token: str | None = None, private: bool | None = None):
        """Makes the repository, and the branch of `hub_revision`, before anything is trained.

        Raises:
            `ValueError`: If the Hub cannot be reached or does not let this user write.
        """
        token = token or self.args.hub_token
        try:
            super().init_hf_repo(token, private)
            if self.is_world_process_zero() and self.args.hub_revision is not None:
                HubRepository(self.hub_model_id, token, self.args.hub_revision).create_branch()
        except Exception as error:  # the Hub and the network have many ways to say no
            raise ValueError(
                f"push_to_hub: cannot write to {self.args.hub_model_id or Path(self.args.output_dir).name} on the Hub "
                f"({what_went_wrong(error, token)}); set push_to_hub to false to train without it"
            ) from None  # some errors quote the token

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False):
        """Saves recipe and, in a checkpoint, the model card beside the weights."""
        super().save_model(output_dir, _internal_call)
        if not self.args.should_save:
            return
        folder = Path(output_dir or self.args.output_dir)
        write_recipe(folder, self.recipe)
        if _internal_call and folder.name.startswith(PREFIX_CHECKPOINT_DIR):
            for path in card_files(Path(self.args.output_dir)):  # over PEFT's, which is an empty form
                shutil.copy(path, folder / path.name)

    def create_model_card(
        self, model_name: str | None = None, dataset_name: str | None = None, tags: str | list[str] | None = None
    ):
        """Writes a card with method, paper, target, final state, recipe and how training went.

        `training_curves.png` is drawn where the card is going to be read: for a push, and when training is over.
        """
        super().create_model_card(model_name, dataset_name, tags)  # TRL's metadata and links to trackers are kept
        if not self.is_world_process_zero():
            return
        try:
            self._write_card(model_name or Path(self.args.output_dir).resolve().name)
        except Exception:
            if not self.is_in_train:
                raise
            logger.warning("the model card could not be written; training goes on", exc_info=True)

    def _write_card(self, name: str) -> None:
        folder = Path(self.args.output_dir)
        is_adapter = isinstance(self.accelerator.unwrap_model(self.model), PeftModel)
        record = RunRecord(self._state_record(), self.state.log_history, self.recipe, is_adapter)
        if self.args.push_to_hub or not self.is_in_train:
            write_curves(folder, record, name)
        write_model_card(folder, record, name, self.hub_model_id)

    def _push_from_checkpoint(self, checkpoint_folder: str):
        """Pushes a checkpoint in one commit. Does not call super, which makes two that can fail apart, and forgets
        those that fail or come too early.
        """
        strategy = self.args.hub_strategy
        self.accelerator.wait_for_everyone()  # each process has saved its part of the checkpoint
        if not self.is_world_process_zero() or strategy == HubStrategy.END:
            return
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        if self.hub_pushes is None:
            repository = HubRepository(self.hub_model_id, self.args.hub_token, self.args.hub_revision)
            self.hub_pushes = HubPushes(repository, Path(self.args.output_dir), self.args.hub_always_push)
        checkpoint = Path(checkpoint_folder)
        path_in_repo = {HubStrategy.CHECKPOINT: "last-checkpoint", HubStrategy.ALL_CHECKPOINTS: checkpoint.name}
        self.hub_pushes.submit(Push(f"step {self.state.global_step}", checkpoint, path_in_repo.get(strategy)))

    def _finish_current_push(self):
        """Waits for the push of a checkpoint, and makes up for those that were skipped or failed."""
        super()._finish_current_push()
        if self.hub_pushes is not None:
            self.hub_pushes.finish()

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **kwargs,
    ):
        """As [`~transformers.Trainer.push_to_hub`], in one commit, and a Hub that is busy or away is asked again.

        Does not call super: `upload_folder` may split a folder into several commits, and trying all of it again would
        save the model again, which other processes would have to take part in.
        """
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        if self.hub_model_id is None:
            self.init_hf_repo(token, private)
        self.save_model(_internal_call=True)
        if not self.is_world_process_zero():
            return None
        self.create_model_card(**self._card_arguments(kwargs))
        repository = HubRepository(self.hub_model_id, token or self.args.hub_token, revision or self.args.hub_revision)
        commit = partial(
            repository.commit,
            {**model_files(Path(self.args.output_dir))},
            commit_message or "End of training",
            MODEL_PATTERNS,
        )
        push = partial(self._last_push, commit)
        return push() if blocking else ThreadPoolExecutor(max_workers=1).submit(push)

    def _card_arguments(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        tags = kwargs.get("tags") or []
        # TRL: Trainer.push_to_hub adds the model's own tags
        own = getattr(self.model, "model_tags", None) or []
        model_name = kwargs.get("model_name") or self.hub_model_id.split("/")[-1]
        return {**kwargs, "model_name": model_name, "tags": [*([tags] if isinstance(tags, str) else tags), *own]}

    def _last_push(self, commit: Callable[[], CommitInfo]) -> CommitInfo:
        """Pushes the model, then makes up for the checkpoints that were skipped or failed."""
        if self.hub_pushes is not None:
            self.hub_pushes.wait()
        info = with_attempts(commit, PATIENT, "the push at the end of training")
        if self.hub_pushes is not None:
            self.hub_pushes.finish(has_newer_model=True)
        return info
