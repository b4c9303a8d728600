"""Old place of `trainer/leash_grpo_config.py`: pickles of earlier checkpoints, `training_args.bin`, name it."""

from leash_trl.trainer.leash_grpo_config import LeashGRPOConfig as LeashGRPOConfig
