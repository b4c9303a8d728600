"""Task rewards with TRL's signature, and the grader behind them.

`answer` finds the answer in the completion. `grading` then asks these in turn: `typography` gives its signs one
spelling, `wording` looks at the words around it, `multiple_choice` at letters of a choice, `reading` parses it (with
`rational` for numbers and `units` for units), `comparison` compares it with the gold. Cases that stay open go through
`grader_pool` to processes of `grader_worker`, where `algebra` compares formulas and asks math-verify.
"""

from leash_trl.rewards.math_reward import get_math_reward, heeding_opened_thinking, lenient_math_reward, math_reward


__all__ = ["get_math_reward", "heeding_opened_thinking", "lenient_math_reward", "math_reward"]
