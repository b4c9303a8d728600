"""`SavedRunGRPOTrainer`: saves a run, resumes it to the last bit, and publishes it. `LeashGRPOTrainer` adds what
concerns length."""

import contextlib
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accelerate.utils import is_peft_model
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from leash_trl.errors import TrainingError
from leash_trl.hub.publisher import Publisher
from leash_trl.hub.repository import HubRepository, local_checkpoint
from leash_trl.microbatching.length_grouped_grpo_trainer import LengthGroupedGRPOTrainer
from leash_trl.run_folder import (
    ADAPTER_FILE,
    TRAINER_STATE_FILE,
    lock_folder,
    read_trainer_state,
)
from leash_trl.saved_recipe import write_recipe
from leash_trl.trainer import checks
from leash_trl.trainer.callbacks import DualStepCallback
from leash_trl.trainer.finite import check_finite_weights
from leash_trl.trainer.leash_grpo_config import LeashGRPOConfig
from leash_trl.trainer.resume import EpochShuffleCallback, WindowEndCallback, folder_to_resume


logger = logging.getLogger(__name__)


class SavedRunGRPOTrainer(LengthGroupedGRPOTrainer):
    """[`LengthGroupedGRPOTrainer`] whose checkpoints hold all that a resumed run needs to equal the uninterrupted one,
    and whose saves are pushed to the Hub in one commit each.

    Checkpoints are those of transformers. What they hold in addition is in `trainer_state.json`, where the dual step
    writes it: the state of the method, and what `_state_to_save` returns. A subclass extends `_state_to_save` and
    `_restore_state` by state of its own.
    """

    args: LeashGRPOConfig

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.publisher = Publisher(self.args, self.accelerator.unwrap_model(self.model))
        self.generated_tokens = 0
        self._num_done = 0  # policy updates of the checkpoint from which the run resumed

    def _add_saving_callbacks(self, dual_step: DualStepCallback) -> None:
        """Adds the dual step, and after it the callbacks that decide when the state that it leaves is saved."""
        self._dual_step = dual_step
        self.add_callback(dual_step)
        self.add_callback(EpochShuffleCallback())
        self.add_callback(WindowEndCallback(self._has_untrained_completions))

    def _has_untrained_completions(self) -> bool:
        """Returns whether completions of the current generation batch are still to be trained on."""
        # TRL: GRPOTrainer._prepare_inputs generates when this is 0
        return self._step % (self.args.steps_per_generation * self.args.num_iterations) != 0

    def _state_to_save(self) -> dict[str, Any]:
        """Returns what a checkpoint saves in addition to the method's state, in types that JSON can hold."""
        return {"generated_tokens": self.generated_tokens}

    def _restore_state(self, saved: Mapping[str, Any]) -> None:
        """Restores what `_state_to_save` returned for a checkpoint; a checkpoint of one of TRL's own trainers lacks
        it."""
        self.generated_tokens = saved.get("generated_tokens", self.generated_tokens)

    def train(self, resume_from_checkpoint: str | os.PathLike | bool | None = None, *args, **kwargs):
        """Trains from the start, or resumes a run that was stopped.

        Args:
            resume_from_checkpoint (`str`, `os.PathLike` or `bool`): `True` for the last complete checkpoint in
                `output_dir`, the path of a checkpoint or of a model folder that has a `trainer_state.json`, or an
                address on the Hub such as `"hf://owner/name/last-checkpoint"`; `None` or `False` for a new run.
            args, kwargs: As for [`~transformers.Trainer.train`].

        Raises:
            `ValueError`: If there is nothing to resume from, the checkpoint has no state of this method, another run
                uses `output_dir`, or the data set is too small for one policy update.
        """
        checks.check_enough_rows(self.train_dataset, self.args)
        # Only the process that writes the files of the run locks its folder against other runs.
        lock = lock_folder(self.args.output_dir) if self.args.should_save else contextlib.nullcontext()
        with lock:
            folder = self._checkpoint_to_resume(resume_from_checkpoint)
            self._reset_progress(folder)
            output = super().train(str(folder) if folder else None, *args, **kwargs)
            self.publisher.wait_for_pushes()
            return output

    def _checkpoint_to_resume(self, resume_from_checkpoint: str | os.PathLike | bool | None) -> Path | None:
        """Returns the folder of the checkpoint from which training resumes; `None` if it starts anew."""
        if isinstance(resume_from_checkpoint, str):
            resume_from_checkpoint = local_checkpoint(resume_from_checkpoint)
        folder = folder_to_resume(resume_from_checkpoint, self.args, self.publisher.recipe)
        # A checkpoint has this file if its weights are those of an adapter, without the model below it.
        if folder is not None and (folder / ADAPTER_FILE).is_file() != is_peft_model(self.model):
            raise TrainingError(
                f"resume_from_checkpoint is {str(folder)!r}, but only one of it and this run has an adapter; set "
                "use_peft as in the checkpoint's run, or training would start from the base model"
            )
        return folder

    def _reset_progress(self, checkpoint: Path | None) -> None:
        """Sets the trainer back to the beginning, or to where the checkpoint was saved."""
        # TRL: an interrupted call of train may have left these filled
        self._step = 0
        self._buffered_inputs = None
        self._metrics["train"].clear()

        self._num_done = 0  # policy updates
        trainer_state = None if checkpoint is None else read_trainer_state(checkpoint)
        if trainer_state is not None:
            self._num_done = trainer_state["global_step"]

    def set_initial_training_values(self, args, dataloader):
        """Returns 0 for the number of epochs if the checkpoint is the last of the run, where transformers would train
        one more step."""
        # transformers: the method returns the number of epochs first and max_steps last
        num_epochs, *others, max_steps = super().set_initial_training_values(args, dataloader)
        if self._num_done >= max_steps:
            logger.warning("%s of %s policy updates are done: nothing is left to train", self._num_done, max_steps)
            num_epochs = 0
        return num_epochs, *others, max_steps

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False):
        """Saves the weights with the recipe and the training state and, in a checkpoint, the model card.

        Raises:
            `FloatingPointError`: If a weight is not finite.
        """
        folder = Path(output_dir or self.args.output_dir)
        is_checkpoint = folder == Path(self.args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        check_finite_weights(self.model, self.state.global_step, self.args.output_dir)
        # A folder with a trainer state counts as complete. So an older state is removed first, and the new one is
        # written last, in case this save is killed in between. In a checkpoint, transformers writes the state.
        if self.args.should_save:
            (folder / TRAINER_STATE_FILE).unlink(missing_ok=True)
        self.args.move_hub_token()  # which `set_push_to_hub` may have set since; the arguments are saved too
        super().save_model(output_dir, _internal_call)
        if self.args.should_save:
            write_recipe(folder, self.publisher.recipe)
            if is_checkpoint:
                self.publisher.copy_card_and_curves(folder)
            else:
                self.state.save_to_json(str(folder / TRAINER_STATE_FILE))

    def init_hf_repo(self, token: str | None = None, private: bool | None = None):
        """Creates the repository and the branch of `hub_revision`; raises `ValueError` before training if it
        cannot."""
        if self.is_world_process_zero():
            name = self.args.hub_model_id or Path(self.args.output_dir).absolute().name
            private = self.args.hub_private_repo if private is None else private
            # `create` returns the complete name, such as owner/name.
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
        # All processes take part in saving the weights; only the main one pushes. `_internal_call` keeps transformers
        # from pushing by itself.
        self.save_model(_internal_call=True)
        if not self.is_world_process_zero():
            return None
        self.create_model_card(**kwargs)
        push = self.publisher.push_model(self.hub_model_id, commit_message, token, revision)
        return push.result() if blocking else push
