"""Task rewards with TRL's signature. The folder `grader` holds the grader behind them."""

from leash_trl.rewards.math_reward import lenient_math_reward, math_reward
from leash_trl.rewards.reasoning_gym_reward import reasoning_gym_reward


__all__ = ["lenient_math_reward", "math_reward", "reasoning_gym_reward"]
