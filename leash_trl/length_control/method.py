"""`LengthControl`, the base class of all methods: turns rollouts into shaped rewards and updates its own state."""

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple, dataclass_transform

import torch
from torch.nn.functional import normalize

from leash_trl.errors import TrainingError
from leash_trl.length_control.advantages import AdvantageRule, Scaling
from leash_trl.length_control.fields import check_values, state_names
from leash_trl.length_control.rollouts import Rollouts, Score


class Paper(NamedTuple):
    """The paper of a method: its title, its arXiv id such as `2512.21540`, its authors in the format of BibTeX, and
    where it was published, as fields of BibTeX's `@inproceedings`."""

    title: str
    id: str
    authors: str = ""
    published: Mapping[str, str] | None = None


@dataclass_transform(field_specifiers=(field,))
@dataclass
class LengthControl:
    """Base class of the methods of length control. A subclass must set `name`. With the defaults of everything else, a
    method is GRPO on correctness (1 or 0), without length control.

    Every subclass automatically becomes a dataclass, whose fields are the method's hyper-parameters. A value of the
    wrong type, or outside the bounds of its [`hyperparameter`], raises `ValueError`. Declare training state with
    [`state_field`]; checkpoints save and restore it, so it must consist of types that JSON can hold.

    For every training batch, the trainer calls `score` and then `observe`, and calls `step` after the policy update.
    If several updates share a batch, each is followed by `step`, but only the first has a new batch. If mixed
    precision skips an update, `step` is called only after the next one, so the state must include what was observed.
    With dynamic sampling, `score` is called for each round and again after each replacement of groups, and `observe`
    receives all generated completions, including those of replaced groups. Only `begin_update`, `observe`, `step` and
    `load_state_dict` may change the state. Every process receives the same rollouts, which are those of all processes,
    in float64 on the CPU. `README.md` has an example.
    """

    name: ClassVar[str]
    paper: ClassVar[Paper | None] = None
    # where the formula comes from if not from the paper, such as "prime-rl"; `leash methods` shows this
    formula_from: ClassVar[str | None] = None
    # whether `target_length` must be set, may be set (or come from the data set), or has no effect
    target_use: ClassVar[Literal["required", "optional", "none"]] = "none"
    # True: the method learns from truncated completions, or its state uses them, so they must not be masked
    needs_truncated: ClassVar[bool] = False
    # on what the shaped reward of a completion depends, and its advantage if the method computes its own: on this
    # completion alone, on all completions of its prompt, or on all prompts of the batch
    depends_on: ClassVar[Literal["completion", "prompt", "batch"]] = "completion"
    # whether its own advantages have mean 0 over every prompt, so that GRPO and RLOO can compute them from rewards
    advantages_have_mean_zero: ClassVar[bool] = False
    # standard deviation by which advantages are divided; `None`: that of the run's `scale_rewards`
    scale_rewards: ClassVar[Scaling | None] = None

    def __init_subclass__(cls) -> None:
        dataclass(cls)

    def __post_init__(self) -> None:
        if not hasattr(self, "name"):
            raise ValueError(
                f"name of the method {type(self).__name__} is missing; set it in the class: name = 'mine'"
            )
        check_values(self)

    def check(self, target_length: int | None, max_completion_length: float) -> None:
        """Raises `ValueError` if the method does not work with the rest of the configuration.

        The method is called for every target: the configured one, those of prompts, and those of milestones.

        Args:
            target_length (`int`): Target in what `length_of` counts, rounded up; `None` if there is none.
            max_completion_length (`float`): Largest length that a completion can have; infinite for no limit, or if
                `length_of` counts no tokens.
        """

    @property
    def own_advantages(self) -> bool:
        """Whether the advantages are not those of the run's `scale_rewards` for the shaped rewards."""
        return type(self).advantages is not LengthControl.advantages or self.scale_rewards is not None

    def columns_read(self) -> tuple[str, ...]:
        """Returns the columns of the data set that the method reads from `rollouts.columns`; training requires all of
        them."""
        return ()

    def check_columns(self, columns: Mapping[str, Sequence[Any]]) -> str | None:
        """Checks the values of all rows in the columns of [`columns_read`] before training; returns a warning or
        `None`.

        Raises:
            `ValueError`: If the method cannot use a value; the message names the row, the column and the remedy.
        """
        return None

    def budgets(self, rollouts: Rollouts) -> Sequence[str] | None:
        """Returns the name of the budget of each of the N completions, or `None` if all share one budget.

        Lengths, accuracy and the state of the constraint are logged for each budget, such as `leash/mean_length/low`.
        """
        return None

    def needs_correctness(self) -> str | None:
        """Returns what needs to know which answers are correct, for the error if this is not known: by default the
        method, or a hyper-parameter such as `"min_accuracy"`. `None` if nothing needs to know this, as in a method
        that uses the task rewards alone."""
        return f"length_control {self.name!r}"

    def base_rewards(self, rollouts: Rollouts) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: Rewards without the length term, on the method's own scale; NaN for
        completions without a reward. A batch of such completions alone has no gradient and leaves the state as it
        is."""
        return rollouts.correctness if self.needs_correctness() else rollouts.task_rewards

    def shaped_rewards(self, rollouts: Rollouts) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: Shaped rewards in float64; NaN where `base_rewards` are NaN."""
        return self.base_rewards(rollouts)

    def penalty(self, rollouts: Rollouts) -> torch.Tensor | None:
        """`torch.Tensor` of shape `(N,)`: Length penalty in reward units, before any clipping; by default `None`, for
        what `shaped_rewards` subtracts from `base_rewards`."""
        return None

    def advantages(self, rollouts: Rollouts, shaped: torch.Tensor, rule: AdvantageRule) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: Advantages in float64, of all processes; 0 for completions without a reward.

        Args:
            shaped (`torch.Tensor` of shape `(N,)`): What `shaped_rewards` has returned.
            rule ([`AdvantageRule`]): GRPO's, with the `scale_rewards` of the method or of the run.
        """
        return rule(shaped, rollouts.num_generations)

    def score(self, rollouts: Rollouts, rule: AdvantageRule) -> Score:
        """Returns rewards, penalties and advantages of some completions in the current state, by `base_rewards`,
        `shaped_rewards`, `penalty` and `advantages`.

        Raises:
            `TrainingError`: If `shaped_rewards` returns NaN or infinity for a completion that has a reward.
        """
        base = self.base_rewards(rollouts)
        shaped = self.shaped_rewards(rollouts)
        self._check_finite(shaped[~base.isnan()])
        # `rule` turns rewards into advantages. A method may fix the standard deviation by which the rule divides;
        # otherwise the run's `scale_rewards` applies.
        if self.scale_rewards is not None:
            rule = replace(rule, scale_rewards=self.scale_rewards)
        advantages = self.advantages(rollouts, shaped, rule)
        penalty = self.penalty(rollouts)
        if penalty is None:
            penalty = base - shaped
        return Score(base=base, penalty=penalty, shaped=shaped, advantages=advantages)

    def _check_finite(self, shaped_with_reward: torch.Tensor) -> None:
        """Raises `TrainingError` if one of these shaped rewards, of completions with a base reward, is NaN or
        infinite."""
        broken = shaped_with_reward[~shaped_with_reward.isfinite()]
        if len(broken):
            raise TrainingError(
                f"shaped_rewards of length_control {self.name!r} returned {broken[0].item()} for a completion that "
                "has a reward, but must return a finite number there"
            )

    def begin_update(self, num_done: int, num_updates: int) -> None:
        """Prepares the state for the next policy update; `num_done` of the `num_updates` of the run are done."""

    def observe(self, rollouts: Rollouts) -> None:
        """Records a training batch; there may be several before one `step`, or none."""

    def step(self) -> None:
        """Updates the state from the batches observed since the last call; the trainer calls it once per policy
        update."""

    def budget_statistics(self, name: str) -> dict[str, float]:
        """Returns the state of one of the `budgets` as numbers to log; `lambda` in the log is then the mean over
        completions."""
        return {}

    def statistics(self) -> dict[str, float]:
        """Returns the state as numbers to log, by key without the prefix `leash/`; NaN for a value that is not known
        yet."""
        return {}

    def reward_warning(self, rollouts: Rollouts) -> str | None:
        """Returns a warning if the method does not suit the task rewards of a batch, for example since it uses only
        the function that decides correctness; else `None`."""
        if rollouts.correctness_rewards is None:  # the task reward itself decides what is correct
            return None
        # If `correctness_func` is the only reward function, the task rewards are its rewards times its weight. The two
        # vectors over the N completions then have the same direction.
        task_direction_N = normalize(rollouts.task_rewards.nan_to_num(), dim=0)
        correctness_direction_N = normalize(rollouts.correctness_rewards.double().nan_to_num(), dim=0)
        has_other_functions = not torch.allclose(task_direction_N, correctness_direction_N)
        # The other functions have no effect if the rewards are the same without any task reward.
        without_task_rewards = replace(rollouts, task_rewards=torch.zeros_like(rollouts.task_rewards))
        base_without_N = self.base_rewards(without_task_rewards)
        if has_other_functions and torch.allclose(self.base_rewards(rollouts), base_without_N, equal_nan=True):
            return (
                f"length_control {self.name!r} rewards only correctness_func, so other reward functions have no effect"
            )
        return None

    def state_dict(self) -> dict[str, Any]:
        """Returns a copy of the state for a checkpoint, in types that JSON can hold, without any loss of precision.

        Raises:
            `ValueError`: If a dictionary has keys that JSON would turn into text.
        """
        # values of the fields made by `state_field`, such as {"steps_done": 3}; a dataclass is saved as a mapping
        values = {name: getattr(self, name) for name in state_names(type(self))}
        copied: dict[str, Any] = json.loads(json.dumps(values, default=asdict))
        # JSON turns {64: 0.1} into {"64": 0.1}, in which a method that resumes would not find 64.
        for name, value in values.items():
            if isinstance(value, dict) and value.keys() != copied[name].keys():
                raise ValueError(f"{name} of {self.name} has the keys {[*value]}, but JSON has text keys; use text")
        return copied

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a saved state."""
        for name in state_names(type(self)):
            setattr(self, name, copy.deepcopy(state[name]))

    def restart(self) -> None:
        """Sets the state back to what it was at the first call of this function, which comes before the first
        training."""
        first_state = vars(self).setdefault("_first_state", self.state_dict())
        self.load_state_dict(first_state)

    def target_for(self, question: int, target_length: float | None) -> float | None:
        """Returns the target, in what `length_of` counts, of a prompt for which the data set has none."""
        return target_length

    def prompt_suffix(self, target_length: float | None, generation_limit: float) -> str:
        """Returns text to append to a prompt, such as a request to keep to the target; both lengths are in tokens."""
        return ""

    def generation_cap(self, target_length: float | None) -> int | None:
        """Returns a generation limit in tokens for the next training batch, or `None` for the limit of the run."""
        return None
