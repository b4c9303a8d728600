"""Task rewards with TRL's signature."""

from leash_trl.rewards.math_reward import get_math_reward, lenient_math_reward, math_reward


__all__ = ["get_math_reward", "lenient_math_reward", "math_reward"]
