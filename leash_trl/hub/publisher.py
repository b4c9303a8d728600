"""`Publisher`: writes a training run's recipe, model card and curves, and pushes its checkpoints to the Hub."""

import logging
import os
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from huggingface_hub import CommitInfo
from peft import PeftModel
from transformers import PreTrainedModel, TrainingArguments
from transformers.trainer_utils import HubStrategy

from leash_trl.hub import repository
from leash_trl.hub.card import write_model_card
from leash_trl.hub.repository import HubRepository, found_files
from leash_trl.saved_recipe import changed_fields, write_recipe


logger = logging.getLogger(__name__)

SNAPSHOT = "_hub_push"  # folder in the run's, for the checkpoints that are being pushed


class Publisher:
    """Recipe, model card and pushes of one training run; a trainer owns it and calls it on its main process.

    With `push_to_hub`, every save is one commit with the model, the state of length control, recipe, card and, by
    `hub_strategy`, the checkpoint, pushed in a thread of its own while training continues. A push that fails, or is
    skipped because the one before it still runs, does not stop training: the next save and the end of training also
    push what is missing, so that `hub_always_push` has nothing to add.

    Attributes:
        recipe (`dict[str, Any]`): The content of `leash_recipe.yaml`: by default the model and the fields of `args`
            that differ from their defaults; data and reward functions of a Python program are not known.
        draw (`Callable`): Draws the curves of a trainer state into a file, as
            [`~leash_trl.figures.training.write_curves`] does; by default there is no drawing.
    """

    def __init__(self, args: TrainingArguments, model: PreTrainedModel | PeftModel):
        self.recipe: dict[str, Any] = {
            "model_name_or_path": model.config.name_or_path,
            "dtype": str(model.dtype).removeprefix("torch."),
            **changed_fields(args),
        }
        self.draw: Callable[[Mapping[str, Any], Path], None] | None = None
        self._args = args
        self._output_dir = Path(str(args.output_dir))
        self._is_adapter = isinstance(model, PeftModel)
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="hub-push")
        self._job: Future[None] = Future()  # the newest
        self._job.set_result(None)
        self._missing: dict[Path, None] = {}  # checkpoints that are not on the Hub, the oldest first

    def write_beside_model(self, folder: Path, is_checkpoint: bool) -> None:
        """Writes the recipe into a folder and, if it is a checkpoint, copies the run's card and curves there."""
        write_recipe(folder, self.recipe)
        if is_checkpoint:  # over PEFT's card, which is an empty form
            for path in found_files(self._output_dir, (repository.CARD_FILE, repository.CURVES_FILE)).values():
                shutil.copy(path, folder)

    def write_card(self, trainer_state: Mapping[str, Any], repo_id: str | None, is_in_train: bool) -> None:
        """Writes the model card into the run's folder; for a push and after training, also draws the curves.

        A failure to write them is only a warning: `leash push` writes them again.

        `trainer_state` is the content of `trainer_state.json`; `is_in_train` says whether training goes on.
        """
        try:
            if self.draw is not None and (self._args.push_to_hub or not is_in_train):
                self.draw(trainer_state, self._output_dir / repository.CURVES_FILE)
            write_model_card(self._output_dir, trainer_state, self.recipe, repo_id, self._is_adapter)
        except Exception:
            logger.warning("the model card of %s could not be written", self._output_dir, exc_info=True)

    def push_checkpoint(self, checkpoint: Path, repo_id: str) -> None:
        """Pushes a checkpoint as `hub_strategy` says, now or, if another push is running, with the next one."""
        if self._args.hub_strategy is not HubStrategy.ALL_CHECKPOINTS:
            self._missing.clear()  # the new one takes the place of older ones
        self._missing[checkpoint] = None
        self._destination = HubRepository(repo_id, self._args.hub_token, self._args.hub_revision)
        if self._job.done():
            self._start()

    def finish(self) -> None:
        """Waits for the running push, tries once more what is missing, and says what still is."""
        self._job.result()
        if self._missing:
            self._start()
            self._job.result()
        if self._missing:
            missing, folder = ", ".join(path.name for path in self._missing), shlex.quote(str(self._output_dir))
            remedy = f"leash push {folder} --repo {self._destination.repo_id}"
            logger.error("not on the Hub: %s; what is left of it is in %s, try again with %s", missing, folder, remedy)

    def push_model(self, repo_id: str, message: str, token: str | None, revision: str | None) -> Future[CommitInfo]:
        """Pushes the model in the run's folder in one commit, after the pushes of checkpoints that are running.

        Without `token` and `revision`, those of the configuration count.
        """
        destination = HubRepository(repo_id, token or self._args.hub_token, revision or self._args.hub_revision)
        return self._worker.submit(destination.commit, repository.model_files(self._output_dir), message)

    def _start(self) -> None:
        """Hands what is missing to the worker, as a snapshot that nothing deletes or changes during the push."""
        snapshot = self._output_dir / SNAPSHOT
        shutil.rmtree(snapshot, ignore_errors=True)  # of a run that was killed
        # event files grow while they are sent
        events = {name: path.read_bytes() for name, path in found_files(self._output_dir, [repository.EVENTS]).items()}
        files: dict[str, Path | bytes] = {**events}
        for path in self._missing:
            folder = _linked(path, snapshot)
            places = {HubStrategy.CHECKPOINT: repository.LAST_CHECKPOINT, HubStrategy.ALL_CHECKPOINTS: path.name}
            if place := places.get(self._args.hub_strategy):
                files |= repository.checkpoint_files(folder, place)
        files |= repository.model_files(folder)  # of the newest; none if it was deleted
        self._job = self._worker.submit(self._push, [*self._missing], files)

    def _push(self, checkpoints: Sequence[Path], files: Mapping[str, Path | bytes]) -> None:
        names = ", ".join(path.name for path in checkpoints)
        try:
            self._destination.commit(files, f"Training in progress, {names}")
        except ValueError as error:  # whatever the Hub or the network does, training goes on
            logger.warning("%s; the next save and the end try %s again", error, names)
        else:
            for path in checkpoints:
                self._missing.pop(path, None)
        shutil.rmtree(self._output_dir / SNAPSHOT, ignore_errors=True)


def _linked(checkpoint: Path, folder: Path) -> Path:
    """A copy of hard links, which takes no space; the checkpoint itself where links cannot be, or it was deleted."""
    try:
        return Path(shutil.copytree(checkpoint, folder / checkpoint.name, copy_function=os.link))
    except OSError:
        return checkpoint
