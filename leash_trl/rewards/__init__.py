"""Task rewards with TRL's signature. The folder `grader` holds the grader behind them."""

from leash_trl.rewards.math_reward import get_math_reward, heeding_opened_thinking, lenient_math_reward, math_reward


__all__ = ["get_math_reward", "heeding_opened_thinking", "lenient_math_reward", "math_reward"]
