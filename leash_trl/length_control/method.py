"""`LengthControl`, the base class of all methods: it turns rollouts into shaped rewards and moves its own state."""

import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from leash_trl.length_control import dual
from leash_trl.length_control.advantages import AdvantageRule, Scaling, decoupled_advantages, group_advantages
from leash_trl.length_control.rollouts import Rollouts, Score


# of methods written for earlier releases
RENAMED = {
    "needs_target": "target_use = 'required'",
    "uses_target": "target_use = 'optional'",
    "may_aim_at_limit": "generation_cap",
    "needs_limit": "check",
    "owns_scale": "uses_correctness",
    "own_scaling": "advantages",
    "num_monitor_prompts": "observe, which sees every training batch",
    "monitor": "observe, which sees every training batch",
}


@dataclass
class LengthControl:
    """A method. Only `name` and `shape` are required; all else has a default that leaves plain GRPO as it is.

    A subclass is a dataclass. Its fields are the method's hyper-parameters, which `length_control_kwargs` sets; their
    defaults are the paper's values, and a value out of range is a `ValueError`. State that changes during training is
    made in `__post_init__`.

    For every training batch the trainer calls `cut_lengths`, `shape`, `advantages`, `is_trained_on` and `observe`, in
    this order, and `step` after the policy update. If mixed precision skips the update, the observed batch waits for
    the next one, and a checkpoint must hold it. With dynamic sampling, the trainer calls the first three for each
    round, then `advantages` and `is_trained_on` for the batch that remains; `observe` gets all generated completions,
    replaced groups included. Evaluation and the log also call `shape`, `base_rewards`, `penalty`, `violation` and
    `statistics`.
    Only `observe`, `step` and `load_state_dict` may change anything. Every process sees the same rollouts, those of
    all processes, as float64 on the CPU. `README.md` beside this file has an example.
    """

    name: ClassVar[str]
    authors: ClassVar[str] = ""  # of the paper, as BibTeX has them
    # whether `target_length` must be set, may be set (or come from the data set), or has no effect
    target_use: ClassVar[Literal["required", "optional", "none"]] = "none"
    # False: the method uses task rewards as they are and does not ask what is correct
    uses_correctness: ClassVar[bool] = True
    # True: the method learns from truncated completions, or its state counts them, so they must not be masked
    needs_truncated: ClassVar[bool] = False
    # True: advantages follow a rule of the method, which the configuration's cannot change
    own_advantages: ClassVar[bool] = False
    # True: completions are cut, graded again and trained on up to the cut
    cuts: ClassVar[bool] = False
    # True: a reward depends on the other completions of its prompt
    needs_group: ClassVar[bool] = False
    # `set_for_run` sets these, as the configuration has them; without an annotation, so no field:
    # most tokens of a completion
    generation_limit = math.inf
    # how `advantages` compares the completions of a prompt
    reward_baseline = "mean"
    multi_objective_aggregation = "sum_then_normalize"
    length_objective_weight = 1.0
    # Adam's first beta
    optimizer_momentum = 0.9

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in RENAMED.keys() & vars(cls).keys():
            raise TypeError(f"{cls.__name__}.{name} has no effect any more; write {RENAMED[name]}")

    def set_for_run(self, **settings: Any) -> None:
        """Sets attributes that the configuration gives to every new method; a method that holds another hands them on.

        Args:
            settings (`Any`):
                `generation_limit`, `reward_baseline`, `multi_objective_aggregation`, `length_objective_weight` and
                `optimizer_momentum`.
        """
        for name, value in settings.items():
            setattr(self, name, value)

    def check(self, target_length: int | None, max_completion_length: float, num_generations: int) -> None:
        """Raises `ValueError` if the method does not work with the rest of the configuration.

        Args:
            target_length (`int`, *optional*):
                A target in tokens. Each is checked: the configured one, every prompt's own, and those of a schedule's
                milestones.
            max_completion_length (`float`):
                Generation limit in tokens; infinite for no limit.
            num_generations (`int`):
                Completions per prompt.
        """

    def columns_read(self) -> tuple[str, ...]:
        """Columns of the data set that the method reads as `rollouts.columns`; each must be there to train."""
        return ()

    def check_columns(self, columns: Mapping[str, Sequence[Any]]) -> str | None:
        """Checks the columns of [`columns_read`] in a training data set, before training.

        Args:
            columns (`Mapping[str, Sequence]`):
                Values of all rows; `None` where a row has none.

        Returns:
            `str`, *optional*: A warning.

        Raises:
            `ValueError`: If the method cannot use a value; the message names row, column and remedy.
        """
        return None

    def budgets(self, rollouts: Rollouts) -> Sequence[str] | None:
        """Name of the budget that each of the N completions counts to; `None` if there is one for all.

        The log has lengths, accuracy and the state of the constraint for each, such as `leash/mean_length/low`.
        """
        return None

    def base_rewards(self, rollouts: Rollouts) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: Rewards before length, on the method's own scale; NaN where unscorable."""
        return rollouts.correctness if self.uses_correctness else rollouts.task_rewards

    @property
    def may_cut(self) -> bool:
        """Whether the method has a `cut_lengths` of its own; then completions must be of one turn."""
        return type(self).cut_lengths is not LengthControl.cut_lengths

    def score(self, rollouts: Rollouts, rule: AdvantageRule) -> Score:
        """Everything that the method says of some completions, by its present state.

        Args:
            rollouts (`Rollouts`):
                Completions of all processes, or one group of a process.
            rule ([`~leash_trl.length_control.advantages.AdvantageRule`]):
                The run's rule for advantages.
        """
        base, shaped = self.base_rewards(rollouts), self.shape(rollouts)
        keep, cut = self.is_trained_on(rollouts), self.cut_lengths(rollouts)
        advantages = (
            self.advantages(shaped, rollouts, rule.scale_rewards, rule.epsilon)
            if self.has_own_advantages
            else rule(base, shaped, rollouts, keep, cut)
        )
        return Score(base, self.penalty(rollouts), shaped, advantages, keep, cut)

    def cut_lengths(self, rollouts: Rollouts) -> torch.Tensor | None:
        """`torch.Tensor` of shape `(N,)`, *optional*: Tokens to keep of each completion; its own length to keep all.

        In training, a shorter completion is graded again, and its tail leaves the loss. Rollouts that other functions
        see have the second rewards, but lengths, ends and truncation of what was generated. A method that cuts always
        returns a tensor, also when it cuts nothing; `None` means that it never cuts.
        """
        return None

    def shape(self, rollouts: Rollouts) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: Shaped rewards in float64; NaN where the task reward is NaN."""
        raise NotImplementedError

    def penalty(self, rollouts: Rollouts) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: Price of each completion's length in reward units; a bonus is negative.

        A method that clips its rewards returns the price before the clip, so that the log can show both.
        """
        return self.base_rewards(rollouts) - self.shape(rollouts)

    @property
    def has_own_advantages(self) -> bool:
        """Whether advantages follow a rule of the method, which the configuration's cannot change."""
        return type(self).advantages is not LengthControl.advantages

    def advantages(
        self, shaped_rewards: torch.Tensor, rollouts: Rollouts, scale_rewards: Scaling, epsilon: float
    ) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: Advantages; 0 where the shaped reward is NaN.

        A method with a rule of its own writes this function anew. The configuration's `reward_baseline` and
        `multi_objective_aggregation` have no effect then, and are refused. With `normalize_then_sum` the objectives
        are the reward before length and what length added to it; `scale_rewards` has no effect.
        """
        if self.multi_objective_aggregation == "normalize_then_sum":
            base = self.base_rewards(rollouts)
            weights = (1.0, self.length_objective_weight)
            return decoupled_advantages((base, shaped_rewards - base), weights, rollouts.num_generations, epsilon)
        weighted = rollouts.lengths if self.reward_baseline == "length_weighted" else None
        return group_advantages(shaped_rewards, rollouts.num_generations, scale_rewards, epsilon, weights=weighted)

    @property
    def may_leave_out(self) -> bool:
        """Whether the method has an `is_trained_on` of its own."""
        return type(self).is_trained_on is not LengthControl.is_trained_on

    def is_trained_on(self, rollouts: Rollouts) -> torch.Tensor | None:
        """`torch.Tensor` of shape `(N,)`, *optional*: False for completions to leave out of the loss."""
        return None

    def observe(self, rollouts: Rollouts) -> None:
        """Records a training batch; several may come before one `step`."""

    def step(self) -> None:
        """Moves the state, once per policy update, by the batches observed since the last step."""

    def violation(self, lengths: Sequence[float], target_lengths: Sequence[float]) -> float:
        """How far completions are over their targets, dimensionless, for the log and the dual step.

        Args:
            lengths (`Sequence[float]`), target_lengths (`Sequence[float]`):
                Length and target of each completion in tokens; a target may be NaN.
        """
        return dual.violation(lengths, target_lengths)

    def budget_statistics(self, name: str) -> dict[str, float]:
        """The state of one of the `budgets` as numbers to log; the log's `lambda` is then a mean over completions."""
        return {}

    def statistics(self) -> dict[str, float]:
        """The state as numbers to log, by key without the `leash/` prefix; NaN for values that are not known yet."""
        return {}

    def reward_scale_problem(self, rollouts: Rollouts) -> str | None:
        """A warning about the scale of the task rewards; `None` for methods with their own scale."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """The state for a checkpoint, in types of JSON: numbers, lists, and dictionaries with text keys."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a saved state, or raises `ValueError` if something is missing or damaged."""

    def target_for(self, question: int, target_length: float | None) -> float | None:
        """The target in tokens of a prompt that has none in the data set."""
        return target_length

    def prompt_suffix(self, target_length: float | None) -> str:
        """Text to append to the prompt, so that the model can read its target."""
        return ""

    def generation_cap(self, target_length: float | None) -> int | None:
        """Generation limit of the next training batch in tokens, or `None` for `max_completion_length`."""
        return None

    @classmethod
    def paper(cls) -> dict[str, str]:
        """Title, id and BibTeX of the first paper in the docstring of the method's module; empty if there is none."""
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
