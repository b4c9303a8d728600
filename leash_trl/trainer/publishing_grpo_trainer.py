"""`PublishingGRPOTrainer`: a `GRPOTrainer` that owns a [`~leash_trl.hub.publishing.Publishing`] and calls it."""

from pathlib import Path

from leash_trl.hub.publishing import Publishing, write_access
from leash_trl.hub.repository import HubRepository
from leash_trl.microbatching.length_grouped_grpo_trainer import LengthGroupedGRPOTrainer


class PublishingGRPOTrainer(LengthGroupedGRPOTrainer):
    """`GRPOTrainer` that writes recipe and model card beside every model, and pushes checkpoints in single commits."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.publishing = Publishing(self.args, self.accelerator.unwrap_model(self.model))

    def init_hf_repo(self, token=None, private=None):
        """Makes the repository, and the branch of `hub_revision`, or raises `ValueError` before any training."""
        with write_access(self.args, token):
            super().init_hf_repo(token, private)
            if self.is_world_process_zero():
                HubRepository(self.hub_model_id, token or self.args.hub_token, self.args.hub_revision).create_branch()

    def save_model(self, output_dir=None, _internal_call=False):
        """Saves the recipe and, in a checkpoint, the model card beside the weights."""
        super().save_model(output_dir, _internal_call)
        if self.args.should_save:
            self.publishing.write_beside_model(Path(output_dir or self.args.output_dir), is_checkpoint=_internal_call)

    def create_model_card(self, model_name=None, dataset_name=None, tags=None):
        """Writes our card over TRL's, of which metadata and links to trackers are kept."""
        super().create_model_card(model_name, dataset_name, tags)
        if self.is_world_process_zero():
            known = (self._state_record(), self.state.log_history)
            self.publishing.write_card(*known, model_name, self.hub_model_id, self.is_in_train)

    def _push_from_checkpoint(self, checkpoint_folder):
        """Does not call super, which makes two commits, and forgets those that fail or come too early."""
        self.accelerator.wait_for_everyone()  # each process has saved its part of the checkpoint
        if self.is_world_process_zero() and self.args.hub_strategy != "end":
            self.callback_handler.on_push_begin(self.args, self.state, self.control)
            self.publishing.push_checkpoint(Path(checkpoint_folder), self.state.global_step, self.hub_model_id)

    def push_to_hub(
        self, commit_message="End of training", blocking=True, token=None, revision=None, private=None, **kwargs
    ):
        """As [`~transformers.Trainer.push_to_hub`], which may make several commits; this one makes one, patiently."""
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        if self.hub_model_id is None:
            self.init_hf_repo(token, private)
        self.save_model(_internal_call=True)
        if not self.is_world_process_zero():
            return None
        self.create_model_card(**kwargs)
        return self.publishing.push_model(self.hub_model_id, commit_message, blocking, token, revision)

    def train(self, *args, **kwargs):
        """Waits at the end for the pushes of checkpoints, and tries once more those that were skipped or failed."""
        output = super().train(*args, **kwargs)
        self.publishing.finish()
        return output
