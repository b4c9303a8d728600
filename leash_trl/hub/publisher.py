"""`Publisher`: writes a training run's recipe, model card and curves, and pushes its checkpoints to the Hub."""

import contextlib
import itertools
import logging
import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from huggingface_hub import CommitInfo
from peft import PeftModel
from transformers import PreTrainedModel, TrainingArguments
from transformers.trainer_utils import HubStrategy

from leash_trl.hub import repository
from leash_trl.hub.card import write_curves, write_model_card
from leash_trl.hub.recipe import changed_fields, write_recipe
from leash_trl.hub.repository import HubRepository, found_files, what_went_wrong


logger = logging.getLogger(__name__)

SNAPSHOTS = "_hub_push"  # folder in the run's, for the checkpoints that are being pushed


class Publisher:
    """Recipe, model card and pushes of one training run; a trainer owns it and calls it on its main process.

    With `push_to_hub`, every save is one commit with the model, the state of length control, recipe, card and, by
    `hub_strategy`, the checkpoint, pushed in a thread of its own while training continues. A push that fails, or is
    skipped because the one before it still runs, does not stop training: the next save and the end of training also
    push what is missing. With `hub_always_push` each save becomes its own commit, in a queue.

    Args:
        args ([`~transformers.TrainingArguments`]):
            The trainer's configuration.
        model ([`~transformers.PreTrainedModel`] or [`~peft.PeftModel`]):
            The model that is trained.

    Attributes:
        recipe (`dict[str, Any]`):
            The content of `leash_recipe.yaml`: by default the model and the fields of `args` that differ from their
            defaults; data and reward functions of a Python program are not known.
    """

    def __init__(self, args: TrainingArguments, model: PreTrainedModel | PeftModel):
        self.recipe: dict[str, Any] = {
            "model_name_or_path": model.config.name_or_path,
            "dtype": str(model.dtype).removeprefix("torch."),
            **changed_fields(args),
        }
        self._args = args
        self._output_dir = Path(str(args.output_dir))
        self._is_adapter = isinstance(model, PeftModel)
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="hub-push")
        self._job: Future[None] | None = None  # the newest
        self._numbers = itertools.count()
        self._newest: Path | None = None
        self._missing: dict[Path, None] = {}  # checkpoints that are not on the Hub, the oldest first
        self._problem = ""
        self._num_pushed = 0

    def write_beside_model(self, folder: Path, is_checkpoint: bool) -> None:
        """Writes the recipe into a folder and, if it is a checkpoint, copies the run's card and curves there."""
        write_recipe(folder, self.recipe)
        if is_checkpoint:  # over PEFT's card, which is an empty form
            for path in found_files(self._output_dir, (repository.CARD_FILE, repository.CURVES_FILE)).values():
                shutil.copy(path, folder)

    def write_card(self, trainer_state: Mapping[str, Any], repo_id: str | None, is_in_train: bool) -> None:
        """Writes the model card into the run's folder; for a push and after training, also draws the curves.

        During training, a failure to write the card is only a warning.

        Args:
            trainer_state (`Mapping[str, Any]`):
                What `trainer_state.json` holds of the weights: `global_step`, `log_history`, and `stateful_callbacks`
                with the state of length control.
            repo_id (`str`, *optional*):
                Repository on the Hub.
            is_in_train (`bool`):
                Whether training goes on.
        """
        try:
            if self._args.push_to_hub or not is_in_train:
                write_curves(self._output_dir, trainer_state)
            write_model_card(self._output_dir, trainer_state, self.recipe, repo_id, self._is_adapter)
        except Exception:
            if not is_in_train:
                raise
            logger.warning("the model card could not be written; training goes on", exc_info=True)

    def push_checkpoint(self, checkpoint: Path, repo_id: str) -> None:
        """Pushes a checkpoint as `hub_strategy` says, now or, if another push is running, with the next one."""
        if self._newest is None:
            shutil.rmtree(self._output_dir / SNAPSHOTS, ignore_errors=True)  # of a run that was killed
        if HubStrategy(self._args.hub_strategy) is not HubStrategy.ALL_CHECKPOINTS:
            self._missing.clear()  # the new one takes the place of older ones
        self._newest = checkpoint
        self._missing[checkpoint] = None
        self._destination = HubRepository(repo_id, self._args.hub_token, self._args.hub_revision)
        if self._args.hub_always_push or self._job is None or self._job.done():
            self._start()
        else:
            self._problem = "the push before it was still running"

    def finish(self) -> None:
        """Waits for the running push, tries once more what is missing, and reports what still is."""
        if self._job is not None:
            self._job.result()
        if self._missing:
            self._start()
            self._job.result()
        if self._missing:
            folder, repo_id = self._output_dir, self._destination.repo_id
            remedy = f"leash push {shlex.quote(str(folder))} --repo {repo_id}"
            logger.error("%s; what is left of it is in %s, try again with %s", self.report, folder, remedy)

    @property
    def report(self) -> str:
        """How many pushes of checkpoints succeeded, and which checkpoints are not on the Hub."""
        missing = ", ".join(path.name for path in [*self._missing])
        return f"{self._num_pushed} pushed" + (f"; not on the Hub: {missing} ({self._problem})" if missing else "")

    def push_model(
        self, repo_id: str, message: str, token: str | None = None, revision: str | None = None
    ) -> Future[CommitInfo]:
        """Pushes the model in the run's folder in one commit, after the pushes of checkpoints that are running.

        Args:
            repo_id (`str`), token (`str`, *optional*), revision (`str`, *optional*):
                Destination; token and revision default to those of the configuration.
            message (`str`):
                Message of the commit.
        """
        destination = HubRepository(repo_id, token or self._args.hub_token, revision or self._args.hub_revision)
        return self._worker.submit(destination.commit, repository.model_files(self._output_dir), message)

    def _start(self) -> None:
        """Hands what is missing to the worker, as a snapshot that nothing deletes or changes during the push."""
        taken = [path for path in self._missing if path.is_dir()]  # save_total_limit deletes others
        files = {}
        for path in taken:
            places = {HubStrategy.CHECKPOINT: repository.LAST_CHECKPOINT, HubStrategy.ALL_CHECKPOINTS: path.name}
            if place := places.get(HubStrategy(self._args.hub_strategy)):
                files |= repository.checkpoint_files(path, place)
        if self._newest in taken:  # else the repository has a newer model
            files |= {**repository.model_files(self._newest), **found_files(self._output_dir, (repository.EVENTS,))}
        folder = self._output_dir / SNAPSHOTS / str(next(self._numbers))
        try:
            files = {name: _snapshot(path, folder / name) for name, path in files.items()}
        except OSError as error:  # no room for it
            self._problem = what_went_wrong(error)
        else:
            self._job = self._worker.submit(self._push, taken, files, folder)

    def _push(self, taken: Sequence[Path], files: dict[str, Path], folder: Path) -> None:
        names = ", ".join(path.name for path in taken)
        try:
            self._destination.commit(files, f"Training in progress, {names}")
            self._num_pushed += 1
            for path in taken:
                self._missing.pop(path, None)
        except Exception as error:  # whatever the Hub or the network does, training goes on
            self._problem = what_went_wrong(error, self._args.hub_token)
            logger.warning("pushing %s failed (%s); the next save and the end try again", names, self._problem)
        shutil.rmtree(folder, ignore_errors=True)


def _snapshot(path: Path, copy: Path) -> Path:
    """A hard link to a file, which takes no space, or a copy: of event files, which grow, or where links cannot be."""
    copy.parent.mkdir(parents=True, exist_ok=True)
    if "tfevents" not in path.name:
        with contextlib.suppress(OSError):
            os.link(path, copy)
            return copy
    return Path(shutil.copyfile(path, copy))
