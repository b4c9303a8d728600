"""`Publisher`: writes a training run's recipe, model card and curves, and pushes its checkpoints to the Hub."""

import logging
import os
import shlex
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from huggingface_hub import CommitInfo
from peft import PeftModel
from transformers import PreTrainedModel, TrainingArguments
from transformers.trainer_utils import HubStrategy

from leash_trl.hub import repository
from leash_trl.hub.card import write_model_card
from leash_trl.hub.repository import HubRepository, matching_files
from leash_trl.saved_recipe import non_default_fields


logger = logging.getLogger(__name__)

SNAPSHOT_FOLDER = "_hub_push"  # subfolder of the run's folder, for copies of the checkpoints during a push


class Publisher:
    """Writes the recipe and the model card of one training run, and pushes its checkpoints. The trainer creates the
    publisher, and calls it in the main process only.

    With `push_to_hub`, every save is one commit, which contains the model, the state of length control, the recipe,
    the card and, depending on `hub_strategy`, the checkpoint. A separate thread pushes one commit after the other
    while training continues. If a checkpoint still waits for its push when the next one is saved, it is left out,
    unless `hub_strategy` is `"all_checkpoints"`. If a push fails, training continues, and a warning names the command
    to push the run later. `hub_always_push` has no effect.

    Attributes:
        recipe (`dict[str, Any]`): The content of `leash_recipe.yaml`: by default the model and the fields of `args`
            that differ from their defaults. The dataset and reward functions of a Python program are not recorded.
        draw (`Callable`): Draws the curves of a trainer state into a file, such as
            [`~leash_trl.figures.training.write_curves_figure`]. By default, no curves are drawn.
    """

    def __init__(self, args: TrainingArguments, model: PreTrainedModel | PeftModel):
        self.recipe: dict[str, Any] = {
            "model_name_or_path": model.config.name_or_path,
            "dtype": str(model.dtype).removeprefix("torch."),
            **non_default_fields(args),
        }
        self.draw: Callable[[Mapping[str, Any], Path], None] | None = None
        self._args = args
        self._output_dir = Path(str(args.output_dir))
        self._is_adapter = isinstance(model, PeftModel)
        # One thread, so that pushes wait for each other and reach the Hub in the order of the checkpoints.
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="hub-push")
        self._pushes: list[Future[None]] = []
        self._newest_checkpoint: Path | None = None  # the last one that was saved; its push may still wait

    def copy_card_and_curves(self, checkpoint: Path) -> None:
        """Copies the card of the run and its curves into a checkpoint."""
        # The card of the run replaces the empty template of a card that PEFT wrote beside its adapter.
        for name in (repository.CARD_FILE, repository.CURVES_FILE):
            if (self._output_dir / name).is_file():
                shutil.copy(self._output_dir / name, checkpoint)

    def write_card(self, trainer_state: Mapping[str, Any], repo_id: str | None, is_in_train: bool) -> None:
        """Writes the model card into the run's folder, and draws the curves for a push and at the end of training.

        If writing fails, a warning is logged and training continues; `leash push` writes the card again.

        `trainer_state` is the content of `trainer_state.json`; `is_in_train` is whether training is still running.
        """
        try:
            # The card is written at every save. Curves are drawn at the end, and before the end only for the Hub.
            if self.draw is not None and (self._args.push_to_hub or not is_in_train):
                self.draw(trainer_state, self._output_dir / repository.CURVES_FILE)
            write_model_card(self._output_dir, trainer_state, self.recipe, repo_id, self._is_adapter)
        except Exception:  # no error of a drawing or a template may end a training of days
            logger.warning("the model card of %s could not be written", self._output_dir, exc_info=True)

    def push_checkpoint(self, checkpoint: Path, repo_id: str) -> None:
        """Queues a push of a checkpoint according to `hub_strategy`, and returns at once."""
        destination = HubRepository(repo_id, self._args.hub_token, self._args.hub_revision)
        self._newest_checkpoint = checkpoint
        self._pushes.append(self._worker.submit(self._push, checkpoint, destination))

    def _push(self, checkpoint: Path, destination: HubRepository) -> None:
        """Pushes a checkpoint in one commit; runs in the thread of the pushes, while training continues."""
        # While this push waited, training may have saved a newer checkpoint, which is pushed instead, or deleted this
        # checkpoint because of `save_total_limit`.
        pushes_all = self._args.hub_strategy is HubStrategy.ALL_CHECKPOINTS
        is_replaced = checkpoint != self._newest_checkpoint and not pushes_all
        if is_replaced or not checkpoint.is_dir():
            return
        # Training may also delete the checkpoint during the upload, so a copy is uploaded. A run that was killed may
        # have left an older copy.
        snapshot = self._output_dir / SNAPSHOT_FOLDER
        shutil.rmtree(snapshot, ignore_errors=True)
        copy = _hard_link_copy(checkpoint, snapshot)
        try:
            destination.commit(self._files_to_push(copy), f"Training in progress, {checkpoint.name}")
        except (OSError, ValueError) as error:  # training continues despite errors of the Hub or the network
            command = f"leash push {shlex.quote(str(self._output_dir))} --repo {destination.repo_id}"
            logger.warning("%s; %s is not on the Hub, so run %s after training", error, checkpoint.name, command)
        shutil.rmtree(snapshot, ignore_errors=True)

    def _files_to_push(self, checkpoint: Path) -> dict[str, Path | bytes]:
        """Returns the files of a commit by path in the repository: the model in the root and, depending on
        `hub_strategy`, the checkpoint in a folder, with the event files of TensorBoard."""
        strategy = self._args.hub_strategy
        files: dict[str, Path | bytes] = dict(repository.model_files(checkpoint))
        if strategy is HubStrategy.CHECKPOINT:
            files |= repository.checkpoint_files(checkpoint, repository.LAST_CHECKPOINT)
        elif strategy is HubStrategy.ALL_CHECKPOINTS:
            files |= repository.checkpoint_files(checkpoint, checkpoint.name)
        for name, path in matching_files(self._output_dir, [repository.EVENT_FILE_PATTERN]).items():
            # The content is read now, since TensorBoard's event file may grow while it is uploaded.
            files[name] = path.read_bytes()
        return files

    def wait_for_pushes(self) -> None:
        """Waits for the pushes of checkpoints."""
        wait(self._pushes)

    def push_model(self, repo_id: str, message: str, token: str | None, revision: str | None) -> Future[CommitInfo]:
        """Queues a push of the model in the run's folder, in one commit, after the pushes of checkpoints.

        `token` and `revision` default to `hub_token` and `hub_revision` of the training arguments.
        """
        destination = HubRepository(repo_id, token or self._args.hub_token, revision or self._args.hub_revision)
        return self._worker.submit(destination.commit, repository.model_files(self._output_dir), message)


def _hard_link_copy(checkpoint: Path, folder: Path) -> Path:
    """Copies a checkpoint with hard links, which take no space and outlive the checkpoint, and returns the copy;
    returns the checkpoint itself if the file system has no hard links."""
    try:
        return Path(shutil.copytree(checkpoint, folder / checkpoint.name, copy_function=os.link))
    except OSError:
        return checkpoint
