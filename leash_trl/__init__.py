"""LEASH for TRL: teach reasoning models to think shorter. Public names are imported on first use."""

import importlib
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from leash_trl.engines.shrinking_batch import shrinking_rollout as shrinking_rollout
    from leash_trl.length_control.method import LengthControl as LengthControl
    from leash_trl.length_control.rollouts import Rollouts as Rollouts
    from leash_trl.microbatching.length_grouped_grpo_config import LengthGroupedGRPOConfig as LengthGroupedGRPOConfig
    from leash_trl.microbatching.length_grouped_grpo_trainer import (
        LengthGroupedGRPOTrainer as LengthGroupedGRPOTrainer,
    )
    from leash_trl.trainer.callbacks import LengthControlCallback as LengthControlCallback
    from leash_trl.trainer.leash_grpo_config import LeashGRPOConfig as LeashGRPOConfig
    from leash_trl.trainer.leash_grpo_trainer import LeashGRPOTrainer as LeashGRPOTrainer
    from leash_trl.trainer.length_controlled_reward import LengthControlledReward as LengthControlledReward

__version__ = "0.2.0"

_MODULES = {
    "LeashGRPOConfig": "leash_trl.trainer.leash_grpo_config",
    "LeashGRPOTrainer": "leash_trl.trainer.leash_grpo_trainer",
    "LengthControl": "leash_trl.length_control.method",
    "LengthControlCallback": "leash_trl.trainer.callbacks",
    "LengthControlledReward": "leash_trl.trainer.length_controlled_reward",
    "LengthGroupedGRPOConfig": "leash_trl.microbatching.length_grouped_grpo_config",
    "LengthGroupedGRPOTrainer": "leash_trl.microbatching.length_grouped_grpo_trainer",
    "Rollouts": "leash_trl.length_control.rollouts",
    "shrinking_rollout": "leash_trl.engines.shrinking_batch",
}

__all__ = [*_MODULES]


def __getattr__(name: str) -> object:
    """Imports a public name when it is first used; Python calls this for names that the module does not have."""
    if name not in _MODULES:
        raise AttributeError(f"module 'leash_trl' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
