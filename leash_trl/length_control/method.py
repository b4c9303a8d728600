"""What a length-control method is: rollouts in, shaped rewards out, and how its state moves."""

import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from leash_trl.length_control import dual
from leash_trl.length_control.advantages import Scaling, group_advantages
from leash_trl.length_control.rollouts import Rollouts


@dataclass
class LengthControl:
    """A method; only `name` and `shape` must be written, all else has a default that leaves plain GRPO as it is.

    A subclass is a dataclass whose fields are the method's hyper-parameters with the paper's values as defaults; they
    are what `length_control_kwargs` sets, and one out of its range is a `ValueError`. What changes during training are
    attributes made in `__post_init__`.

    For every training batch the trainer calls `shape`, `advantages`, `is_trained_on` and `observe`, in this order, and
    `step` after the policy update, unless mixed precision skipped that: then what was observed awaits the next one,
    and a checkpoint must hold it. With dynamic sampling, `shape` and `advantages` are called for each round and again
    `advantages` for what remains, which alone `is_trained_on` sees; `observe` gets all that was generated, replaced
    groups included. `shape`, `base_rewards`, `penalty`, `violation` and `statistics` are called in evaluation and for
    the log too. All but `observe`, `step` and `load_state_dict` must not change anything. Every process sees the same
    rollouts, those of all processes, as float64 on the CPU. An example is in `README.md` beside this file.
    """

    name: ClassVar[str]
    authors: ClassVar[str] = ""  # of the paper, as BibTeX has them
    # whether `target_length` must be set, may be set (or come from the data set), or plays no part
    target_use: ClassVar[Literal["required", "optional", "none"]] = "none"
    # False: task rewards are taken as they are, and what is correct plays no part
    uses_correctness: ClassVar[bool] = True
    # True: truncated completions are what teaches, or what the state counts, so they must not be masked
    needs_truncated: ClassVar[bool] = False
    # most tokens of a completion in this run, as the configuration sets it; without an annotation, so no field
    generation_limit = math.inf

    def check(self, target_length: int | None, max_completion_length: float, num_generations: int) -> None:
        """Raises `ValueError` where the method and the rest of the configuration cannot go together.

        Args:
            target_length (`int`, *optional*):
                The configured target, one of a prompt's own, or what a schedule makes of them at a milestone, in
                tokens; each is checked.
            max_completion_length (`float`):
                Generation limit in tokens, infinite for none.
            num_generations (`int`):
                Completions per prompt.
        """

    def base_rewards(self, rollouts: Rollouts) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: Rewards before length, on the method's own scale; NaN where unscorable."""
        return rollouts.correctness if self.uses_correctness else rollouts.task_rewards

    def shape(self, rollouts: Rollouts) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: Shaped rewards in float64; NaN where the task reward is NaN."""
        raise NotImplementedError

    def penalty(self, rollouts: Rollouts) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: What length costs each completion in reward units; a bonus is negative.

        A method that clips its rewards gives the price before the clip here, so that the log can show both.
        """
        return self.base_rewards(rollouts) - self.shape(rollouts)

    def advantages(
        self, shaped_rewards: torch.Tensor, rollouts: Rollouts, scale_rewards: Scaling, epsilon: float
    ) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: Advantages; 0 where the shaped reward is NaN."""
        return group_advantages(shaped_rewards, rollouts.num_generations, scale_rewards, epsilon)

    def is_trained_on(self, rollouts: Rollouts) -> torch.Tensor | None:
        """`torch.Tensor` of shape `(N,)`, *optional*: False for completions to be left out of the loss."""
        return None

    def observe(self, rollouts: Rollouts) -> None:
        """Takes in a training batch; several may come before one `step`."""

    def step(self) -> None:
        """Moves the state, once per policy update, by what was observed since the last step."""

    def violation(self, lengths: Sequence[float], target_lengths: Sequence[float]) -> float:
        """How far completions are over their targets, dimensionless, as the log shows it and a dual step takes it.

        Args:
            lengths (`Sequence[float]`), target_lengths (`Sequence[float]`):
                Length and target of each completion in tokens; a target may be NaN.
        """
        return dual.violation(lengths, target_lengths)

    def statistics(self) -> dict[str, float]:
        """The state as numbers to log, under keys without the `leash/` prefix; NaN for what is not known yet."""
        return {}

    def reward_scale_problem(self, rollouts: Rollouts) -> str | None:
        """What is wrong with the scale of the task rewards; `None` for methods with a scale of their own."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must hold, as JSON can keep it: numbers, lists, and dictionaries with text for keys."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over a saved state, or raises `ValueError` if something is missing or damaged."""

    def target_for(self, question: int, target_length: float | None) -> float | None:
        """The target of a prompt that has none of its own in the data set, in tokens."""
        return target_length

    def prompt_suffix(self, target_length: float | None) -> str:
        """What is appended to the prompt, so that the model can read its target."""
        return ""

    def generation_cap(self, target_length: float | None) -> int | None:
        """Generation limit of the next training batch in tokens, or `None` for `max_completion_length`."""
        return None

    @classmethod
    def paper(cls) -> dict[str, str]:
        """Title, id and BibTeX of the paper that the method's module names first; nothing without one."""
        text = sys.modules[cls.__module__].__doc__ or ""
        found = re.search(r"\[([^\]]+)\]\(https://huggingface\.co/papers/([\d.]+)\)", text)
        if found is None:
            return {}
        title, paper_id = " ".join(found[1].split()), found[2]
        author = f"  author = {{{cls.authors}}},\n" if cls.authors else ""
        citation = (
            f"@misc{{arxiv{paper_id},\n  title = {{{{{title}}}}},\n{author}"
            f"  year = {{20{paper_id[:2]}}},\n  eprint = {{{paper_id}}},\n  archivePrefix = {{arXiv}},\n}}"
        )
        return {"title": title, "id": paper_id, "citation": citation}
