"""`Publishing`: writes a training run's recipe, model card and curves, and pushes its checkpoints to the Hub."""

import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from huggingface_hub import CommitInfo
from peft import PeftModel
from transformers import PreTrainedModel, TrainingArguments
from transformers.trainer_utils import HubStrategy

from leash_trl.hub.checkpoint_files import LAST_CHECKPOINT, model_files
from leash_trl.hub.model_card import CARD_FILE, CURVES_FILE, write_curves, write_model_card
from leash_trl.hub.pushes import HubPushes
from leash_trl.hub.recipe import changed_fields, write_recipe
from leash_trl.hub.repository import PATIENT, HubRepository, what_went_wrong, with_attempts
from leash_trl.hub.run_record import RunRecord


logger = logging.getLogger(__name__)


class Publishing:
    """Recipe, model card and pushes of one training run; a trainer owns it and calls it on its main process.

    With `push_to_hub`, every save is one commit with the model, the state of length control, recipe, card and, by
    `hub_strategy`, the checkpoint. A push that fails, or is skipped because the one before it still runs, does not
    stop training. The next save and the end of training try it again; `pushes.report` lists the results.

    Args:
        args ([`~transformers.TrainingArguments`]):
            The trainer's configuration.
        model ([`~transformers.PreTrainedModel`] or [`~peft.PeftModel`]):
            The model that is trained.

    Attributes:
        recipe (`dict[str, Any]`):
            The content of `leash_recipe.yaml`: by default the model and the fields of `args` that differ from their
            defaults; data and reward functions of a Python program are not known.
        pushes (`HubPushes`, *optional*):
            The pushes of checkpoints, after the first one.
    """

    def __init__(self, args: TrainingArguments, model: PreTrainedModel | PeftModel):
        self.recipe: dict[str, Any] = {
            "model_name_or_path": model.config.name_or_path,
            "dtype": str(model.dtype).removeprefix("torch."),
            **changed_fields(args),
        }
        self.pushes: HubPushes | None = None
        self._args = args
        self._output_dir = Path(str(args.output_dir))
        self._model = model

    def write_beside_model(self, folder: Path, is_checkpoint: bool) -> None:
        """Writes the recipe into a folder and, if it is a checkpoint, copies the run's card and curves there."""
        write_recipe(folder, self.recipe)
        if is_checkpoint:
            for path in (self._output_dir / CARD_FILE, self._output_dir / CURVES_FILE):
                if path.is_file():  # over PEFT's card, which is an empty form
                    shutil.copy(path, folder / path.name)

    def write_card(
        self,
        state: Mapping[str, Any],
        log_history: Sequence[Mapping[str, Any]],
        name: str | None = None,
        repo_id: str | None = None,
        is_in_train: bool = False,
    ) -> None:
        """Writes the model card into the run's folder; for a push and after training, also draws the curves.

        During training, a failure to write the card is only a warning.

        Args:
            state (`Mapping[str, Any]`):
                The content of `leash_state.json`.
            log_history (`Sequence[Mapping[str, Any]]`):
                Rows that the trainer logged.
            name (`str`, *optional*):
                Title; the repository's or the folder's name without it.
            repo_id (`str`, *optional*):
                Repository on the Hub.
            is_in_train (`bool`, *optional*, defaults to `False`):
                Whether training goes on.
        """
        record = RunRecord(state, log_history, self.recipe, isinstance(self._model, PeftModel))
        name = name or (repo_id or self._output_dir.resolve().name).split("/")[-1]
        tags = getattr(self._model, "model_tags", None) or ()
        try:
            if self._args.push_to_hub or not is_in_train:
                write_curves(self._output_dir, record, name)
            write_model_card(self._output_dir, record, name, repo_id, tags=tags)
        except Exception:
            if not is_in_train:
                raise
            logger.warning("the model card could not be written; training goes on", exc_info=True)

    def push_checkpoint(self, checkpoint: Path, step: int, repo_id: str) -> None:
        """Pushes a checkpoint as `hub_strategy` says, while training goes on."""
        if self.pushes is None:
            repository = HubRepository(repo_id, self._args.hub_token, self._args.hub_revision)
            self.pushes = HubPushes(repository, self._output_dir, self._args.hub_always_push)
        paths = {HubStrategy.CHECKPOINT: LAST_CHECKPOINT, HubStrategy.ALL_CHECKPOINTS: checkpoint.name}
        self.pushes.submit(f"step {step}", checkpoint, paths.get(HubStrategy(self._args.hub_strategy)))

    def finish(self) -> None:
        """Waits for the running push, and tries once more those that were skipped or failed."""
        if self.pushes is not None:
            self.pushes.finish()

    def push_model(
        self,
        repo_id: str,
        message: str | None = None,
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
    ) -> CommitInfo | Future:
        """Pushes the model in the run's folder in one commit, then the checkpoints that were skipped or failed.

        Args:
            repo_id (`str`), token (`str`, *optional*), revision (`str`, *optional*):
                Destination; token and revision default to those of the configuration.
            message (`str`, *optional*):
                Message of the commit.
            blocking (`bool`, *optional*, defaults to `True`):
                Whether to wait for the push; otherwise the method returns a `Future`.
        """
        repository = HubRepository(repo_id, token or self._args.hub_token, revision or self._args.hub_revision)
        push = partial(self._push_model, repository, message or "End of training")
        return push() if blocking else ThreadPoolExecutor(max_workers=1).submit(push)

    def _push_model(self, repository: HubRepository, message: str) -> CommitInfo:
        if self.pushes is not None:
            self.pushes.wait()
        info = with_attempts(partial(repository.commit, {**model_files(self._output_dir)}, message), PATIENT)
        if self.pushes is not None:
            self.pushes.finish(has_newer_model=True)
        return info


@contextmanager
def write_access(args: TrainingArguments, token: str | None = None) -> Iterator[None]:
    """Turns the Hub's exceptions into a `ValueError` that says what to do; `token` is one that `args` do not hold."""
    try:
        yield
    except Exception as error:  # the Hub and the network have many ways to say no
        raise ValueError(
            f"push_to_hub: cannot write to {args.hub_model_id or Path(str(args.output_dir)).name} on the Hub "
            f"({what_went_wrong(error, token or args.hub_token)}); set push_to_hub to false to train without it"
        ) from None  # some errors quote the token
