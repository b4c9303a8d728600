"""`LengthControl`, the base class of all methods: it turns rollouts into shaped rewards and moves its own state."""

import copy
import json
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from inspect import formatannotation
from types import UnionType
from typing import Any, ClassVar, Literal, NamedTuple, Union, dataclass_transform, get_args, get_origin, get_type_hints

import torch

from leash_trl.length_control import dual
from leash_trl.length_control.advantages import AdvantageRule
from leash_trl.length_control.rollouts import Rollouts, Score


# what the file of a method needs
__all__ = [
    "AdvantageRule",
    "LengthControl",
    "Paper",
    "Rollouts",
    "Score",
    "hyperparameter",
    "is_number",
    "state_field",
]

BOUNDS = {"ge": operator.ge, "le": operator.le, "gt": operator.gt, "lt": operator.lt}
SYMBOLS = {"ge": ">=", "le": "<=", "gt": ">", "lt": "<"}


class Paper(NamedTuple):
    """The paper of a method: its title, its arXiv id such as `2512.21540`, and its authors as BibTeX has them."""

    title: str
    id: str
    authors: str = ""


def hyperparameter(default: Any, **bounds: float) -> Any:
    """Declares a hyper-parameter with optional bounds: `ge` and `le` are inclusive, `gt` and `lt` exclusive."""
    return field(default=default, metadata=bounds)


def state_field(make: Callable[[], Any]) -> Any:
    """Declares a field that holds training state rather than a hyper-parameter: `make` gives its first value.
    Checkpoints save and restore it."""
    return field(init=False, compare=False, default_factory=make)


def is_number(value: Any) -> bool:
    """Whether a value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value is of an annotated kind; what a table or a list holds is the method's to check."""
    plain = get_origin(kind) or kind
    if plain in (Union, UnionType):
        return any(_fits(value, each) for each in get_args(kind))
    if plain is Literal:
        return value in get_args(kind)
    if plain in (int, float):
        return is_number(value) and isinstance(value, int | plain)
    return plain is Any or isinstance(value, plain)


@dataclass_transform(field_specifiers=(field,))
@dataclass
class LengthControl:
    """A method. Only `name` is required; all else, `shape` too, has a default that leaves plain GRPO as it is.

    Every subclass is made a dataclass, whose fields are the method's hyper-parameters. A value that does not fit its
    field's annotation, or the bounds of its [`hyperparameter`], is a `ValueError`. State is declared by
    [`state_field`], or made in `__post_init__` and named in `state`.

    For every training batch the trainer calls `score` and `observe`, in this order, and `step` after the policy
    update. If mixed precision skips the update, the observed batch waits for the next one, and a checkpoint must hold
    it. With dynamic sampling, `score` comes for each round and for the batch that remains; `observe` gets all
    generated completions, replaced groups included. Only `observe`, `step` and `load_state_dict` may change anything.
    Every process sees the same rollouts, those of all processes, as float64 on the CPU. `README.md` has an example.
    """

    name: ClassVar[str]
    paper: ClassVar[Paper | None] = None
    # attributes that a checkpoint holds, in types of JSON: those named here, of which a hyper-parameter must be as it
    # was saved, and fields made by `state_field`
    state: ClassVar[tuple[str, ...]] = ()
    # whether `target_length` must be set, may be set (or come from the data set), or has no effect
    target_use: ClassVar[Literal["required", "optional", "none"]] = "none"
    # False: the method uses task rewards as they are and does not ask what is correct
    uses_correctness: ClassVar[bool] = True
    # True: the method learns from truncated completions, or its state counts them, so they must not be masked
    needs_truncated: ClassVar[bool] = False
    # True: the shaped reward of a completion depends on the others of its prompt
    needs_group: ClassVar[bool] = False
    # True: advantages follow a rule of the method, which the configuration's cannot change; "group" if they also have
    # mean 0 over every prompt and follow from it alone, "batch" if they have that mean, but follow from all prompts
    own_advantages: ClassVar[bool | Literal["group", "batch"]] = False

    # bounds of the fields made by `hyperparameter`, which a second `@dataclass` would lose
    bounds: ClassVar[Mapping[str, Mapping[str, float]]] = {}

    def __init_subclass__(cls) -> None:
        dataclass(cls)
        cls.state = tuple(dict.fromkeys([*cls.state, *(each.name for each in fields(cls) if not each.init)]))
        cls.bounds = {**cls.bounds, **{each.name: each.metadata for each in fields(cls) if each.metadata}}

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for each in fields(self):
            value, kind, bounds = getattr(self, each.name), hints[each.name], self.bounds.get(each.name, {})
            checked = bounds if is_number(value) else {}
            if not (_fits(value, kind) and all(BOUNDS[name](value, bound) for name, bound in checked.items())):
                needed = [formatannotation(kind), *(f"{SYMBOLS[name]} {bound}" for name, bound in bounds.items())]
                raise ValueError(f"{each.name} is {value!r}, but must be {', '.join(needed)}")

    def check(self, target_length: int | None, max_completion_length: float, num_generations: int) -> None:
        """Raises `ValueError` if the method does not work with the rest of the configuration.

        Lengths are in tokens. Each target is checked: the configured one, prompts' own, and those of milestones.
        """

    def columns_read(self) -> tuple[str, ...]:
        """Columns of the data set that the method reads as `rollouts.columns`; each must be there to train."""
        return ()

    def check_columns(self, columns: Mapping[str, Sequence[Any]]) -> str | None:
        """A warning about the columns of [`columns_read`], given before training with the values of all rows.

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

    def shape(self, rollouts: Rollouts) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: Shaped rewards in float64; NaN where the task reward is NaN."""
        return self.base_rewards(rollouts)

    def penalty(self, rollouts: Rollouts) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: Price of each length in reward units, before any clip."""
        return self.base_rewards(rollouts) - self.shape(rollouts)

    def score(self, rollouts: Rollouts, rule: AdvantageRule) -> Score:
        """Everything that the method says of some completions, by its present state.

        A method with advantages of its own replaces this part.
        """
        base, shaped = self.base_rewards(rollouts), self.shape(rollouts)
        score = Score(base, self.penalty(rollouts), shaped, shaped)
        return replace(score, advantages=rule(score, rollouts))

    def observe(self, rollouts: Rollouts) -> None:
        """Records a training batch; several may come before one `step`."""

    def step(self) -> None:
        """Moves the state, once per policy update, by the batches observed since the last step."""

    def violation(self, lengths: Sequence[float], target_lengths: Sequence[float]) -> float:
        """How far lengths are over targets, in tokens: dimensionless, for the log and the dual step."""
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
        """A copy of the state for a checkpoint, in types of JSON, which keeps every number to the last bit."""
        values = {name: getattr(self, name) for name in self.state}
        copied: dict[str, Any] = json.loads(json.dumps(values, default=operator.methodcaller("state_dict")))
        return copied

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a saved state; `ValueError` if a hyper-parameter in it is another one's."""
        for name in self.state:
            value, saved = getattr(self, name), copy.deepcopy(state[name])
            if isinstance(value, LengthControl):
                value.load_state_dict(saved)
            elif name in {each.name for each in fields(self) if each.init} and value != saved:
                raise ValueError(f"{name} is {value!r}, but {saved!r} in the saved state; set that")
            else:
                setattr(self, name, saved)

    def target_for(self, question: int, target_length: float | None) -> float | None:
        """The target in tokens of a prompt that has none in the data set."""
        return target_length

    def prompt_suffix(self, target_length: float | None, generation_limit: float) -> str:
        """Text to append to a prompt, which states its target; both lengths are in tokens."""
        return ""

    def generation_cap(self, target_length: float | None) -> int | None:
        """Generation limit of the next training batch in tokens, if below the run's own; `None` for that."""
        return None
