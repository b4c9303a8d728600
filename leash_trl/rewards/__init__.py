"""Task rewards with TRL's signature."""

from leash_trl.rewards.math_reward import math_reward


__all__ = ["math_reward"]
