"""A small training run that can kill itself in a step or while saving, or push to a Hub.

python tests/support/killable_run.py MODEL OUTPUT_DIR [--kill_in_step STEP] [--resume] [--changes JSON]
"""

import argparse
import json
import os
import signal

from conftest import eos_bias, gym_tokenizer, parity_reward, quiet
from transformers import TrainerCallback

from leash_trl import LeashGRPOConfig, LeashGRPOTrainer
from leash_trl.gym.dataset import gym_problems


class SpoiledGradient(TrainerCallback):
    """Puts a value into one gradient of one micro-batch of an update, on the main process alone."""

    def __init__(self, update, value):
        self.update = update
        self.value = value

    def on_substep_end(self, args, state, control, model=None, **kwargs):
        if state.global_step + 1 == self.update and state.is_world_process_zero:
            *_, last = model.parameters()
            last.grad.view(-1)[0] = self.value


def make_trainer(model_path, output_dir, kill_in_step=None, hub_model_id=None, kill_in_saving=None, **changes):
    """A run of eight steps with a checkpoint at every second one; on the Hub, where one is named.

    The checkpoint of step `kill_in_saving` gets its weights but no optimizer; `changes` are to the configuration.
    """

    class KillableTrainer(LeashGRPOTrainer):
        def compute_loss(self, *args, **kwargs):
            loss = super().compute_loss(*args, **kwargs)
            if self.state.global_step + 1 == kill_in_step:
                os.kill(os.getpid(), signal.SIGKILL)
            return loss

        def _save_optimizer_and_scheduler(self, output_dir):
            if self.state.global_step == kill_in_saving:
                os.kill(os.getpid(), signal.SIGKILL)
            super()._save_optimizer_and_scheduler(output_dir)

    settings = {
        "max_steps": 8,
        "save_strategy": "steps",
        "save_steps": 2,
        "generation_kwargs": eos_bias(gym_tokenizer()),
        "push_to_hub": hub_model_id is not None,
        "hub_model_id": hub_model_id,
        "hub_strategy": "checkpoint",
        **changes,
    }
    args = LeashGRPOConfig(**quiet(output_dir, **settings))
    return KillableTrainer(
        model_path,
        parity_reward,
        args,
        train_dataset=gym_problems("train", 64),
        eval_dataset=gym_problems("test", 4),
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("model_path")
    parser.add_argument("output_dir")
    parser.add_argument("--kill_in_step", type=int)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--changes", type=json.loads, default={}, help="to the configuration, as JSON")
    options = parser.parse_args()
    trainer = make_trainer(options.model_path, options.output_dir, options.kill_in_step, **options.changes)
    trainer.train(resume_from_checkpoint=options.resume or None)
