"""A small training run that can kill itself in a step, or push to a Hub.

python tests/support/killable_run.py MODEL OUTPUT_DIR [--kill_in_step STEP] [--resume] [--changes JSON]
"""

import argparse
import json
import os
import signal

from conftest import eos_bias, gym_tokenizer, parity_reward, quiet

from leash_trl import LeashGRPOConfig, LeashGRPOTrainer
from leash_trl.gym.dataset import gym_problems


def make_trainer(model_path, output_dir, kill_in_step=None, hub_model_id=None, **changes):
    """A run of eight steps with a checkpoint at every second one; on the Hub, where one is named. `changes` are to the
    configuration."""

    class KillableTrainer(LeashGRPOTrainer):
        def compute_loss(self, *args, **kwargs):
            loss = super().compute_loss(*args, **kwargs)
            if self.state.global_step + 1 == kill_in_step:
                os.kill(os.getpid(), signal.SIGKILL)
            return loss

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
    return KillableTrainer(model_path, parity_reward, args, train_dataset=gym_problems("train", 64))


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
