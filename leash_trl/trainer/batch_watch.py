"""`BatchWatch`: warns if the first training batches show that completions never end, or that rewards have the wrong
scale."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from leash_trl.length_control.method import LengthControl
from leash_trl.length_control.rollouts import Rollouts


ENOUGH = 32  # completions without an end token before a warning says that none ends


@dataclass
class BatchWatch:
    """Finds mistakes that only show in batches: completions that never end, and rewards on a wrong scale.

    Args:
        end_tokens (`Mapping[str, int]`):
            Tokens that end a completion, with their ids.
        turn_end (`Mapping[str, int]`):
            The token with which the chat template ends an answer, and its id; empty if it is not known.
    """

    end_tokens: Mapping[str, int]
    turn_end: Mapping[str, int]
    knows_endings: bool = field(default=False, init=False)
    knows_reward_scale: bool = field(default=False, init=False)
    num_unended: int = field(default=0, init=False)
    num_rewarded: int = field(default=0, init=False)

    def problems(self, rollouts: Rollouts, method: LengthControl) -> list[str]:
        """Problems that this training batch shows for the first time, each with its remedy; at most two.

        Args:
            rollouts (`Rollouts`):
                Completions of all processes.
            method (`LengthControl`):
                Knows which scale its rewards should have.
        """
        found = (self._problem_of_endings(rollouts), self._problem_of_reward_scale(rollouts, method))
        return [problem for problem in found if problem is not None]

    def _problem_of_reward_scale(self, rollouts: Rollouts, method: LengthControl) -> str | None:
        if self.knows_reward_scale:
            return None
        problem = method.reward_scale_problem(rollouts)
        self.knows_reward_scale = problem is not None or bool((rollouts.task_rewards < 0).any())
        return problem

    def _problem_of_endings(self, rollouts: Rollouts) -> str | None:
        if self.knows_endings:
            return None
        self.num_unended += len(rollouts.lengths)
        self.num_rewarded += int((rollouts.is_truncated & rollouts.is_correct).sum())
        has_end = not bool(rollouts.is_truncated.all())
        self.knows_endings = has_end or self.num_unended >= ENOUGH
        if has_end or not self.knows_endings:
            return None
        limit = rollouts.max_completion_length
        remedy = "raise max_completion_length"
        if self.num_rewarded > 0:
            remedy += (
                f" (now {limit}), or take a model that ends its answers, as base models often do not; let the reward "
                "give nothing for an answer without an end, or set mask_truncated_completions: true"
            )
        for token, number in self.turn_end.items():
            if number not in self.end_tokens.values():
                remedy = (
                    f"the chat template ends answers with {token} ({number}), which ends no completion: add {number} "
                    "to eos_token_id in the model's generation_config.json, or set it as the tokenizer's eos_token"
                )
        if self.num_rewarded == 0:
            return (
                f"all of the first {self.num_unended} completions were cut off at max_completion_length={limit}, and "
                f"none was right, so no answer is rewarded: {remedy}"
            )
        known = ", ".join(f"{token}, {number}" for token, number in self.end_tokens.items())
        return (
            f"none of the first {self.num_unended} completions ended with an end token ({known}), yet "
            f"{self.num_rewarded} of them were rewarded as right, so a length of {limit} tokens says nothing: {remedy}"
        )
