"""`LengthControl`, the base class of all methods: it turns rollouts into shaped rewards and moves its own state."""

import copy
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

import torch

from leash_trl.length_control import dual
from leash_trl.length_control.advantages import AdvantageRule
from leash_trl.length_control.rollouts import Rollouts, Score


# what the file of a method needs
__all__ = ["AdvantageRule", "LengthControl", "Paper", "Rollouts", "Score", "check_limit", "is_number", "knob"]

# what a field of these types holds; what their own fields hold is the method's to check
PLAIN = {bool: "True or False", str: "text", dict: "a mapping", list: "a list", tuple: "a tuple", NoneType: "None"}


@dataclass(frozen=True)
class Paper:
    """The paper of a method.

    Args:
        title (`str`):
            Its title.
        id (`str`):
            Its arXiv id, such as `2512.21540`.
        authors (`str`, *optional*):
            Its authors, as BibTeX has them.
    """

    title: str
    id: str
    authors: str = ""

    @property
    def link(self) -> str:
        """The paper as a Markdown link."""
        return f"[{self.title}](https://huggingface.co/papers/{self.id})"

    @property
    def citation(self) -> str:
        """The paper in BibTeX."""
        author = f"  author = {{{self.authors}}},\n" if self.authors else ""
        return (
            f"@misc{{arxiv{self.id},\n  title = {{{{{self.title}}}}},\n{author}"
            f"  year = {{20{self.id[:2]}}},\n  eprint = {{{self.id}}},\n  archivePrefix = {{arXiv}},\n}}"
        )


def knob(
    default: Any,
    least: float = -math.inf,
    most: float = math.inf,
    above: float = -math.inf,
    below: float = math.inf,
) -> Any:
    """A field of a method that is a number within a range; without one, its annotation alone says what it may be.

    Args:
        default (`Any`):
            The paper's value.
        least (`float`), most (`float`), above (`float`), below (`float`):
            Bounds; the first two are allowed values themselves.
    """
    return field(default=default, metadata={"at least": least, "at most": most, "above": above, "below": below})


def is_number(value: Any) -> bool:
    """Whether a value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_within(value: float, bounds: Mapping[str, float]) -> bool:
    least, most, above, below = bounds.values() or (-math.inf, math.inf, -math.inf, math.inf)
    return least <= value <= most and above < value < below


def _needed(value: Any, annotation: Any, bounds: Mapping[str, float]) -> str | None:
    """What the value of a field must be; `None` if it is that, or if only the method itself can say so."""
    kinds = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    needed = []
    for kind in kinds:
        plain = get_origin(kind) or kind
        if plain in (int, float):
            is_right = is_number(value) and (plain is float or type(value) is int) and _is_within(value, bounds)
            text = "a whole number" if plain is int else "a finite number"
            text += "".join(f", {name} {bound}" for name, bound in bounds.items() if math.isfinite(bound))
        elif plain is Literal:
            is_right, text = value in get_args(kind), " or ".join(map(repr, get_args(kind)))
        elif plain in PLAIN:
            is_right, text = isinstance(value, plain), PLAIN[plain]
        else:
            return None
        if is_right:
            return None
        needed.append(text)
    is_text = isinstance(value, str) and {int, float} & {*kinds}
    return " or ".join(needed) + ("; YAML reads 5e-1 as text, 0.5 not" if is_text else "")


def check_limit(method: "LengthControl", max_length: float) -> None:
    """Raises `ValueError` if neither the method nor the run sets the greatest length, in tokens, that it needs."""
    if math.isinf(max_length):
        raise ValueError(
            f"max_completion_length is None, but length_control={method.name!r} measures by the generation limit; set "
            "it to the most tokens that a completion may have"
        )


@dataclass
class LengthControl:
    """A method. Only `name` and `shape` are required; all else has a default that leaves plain GRPO as it is.

    A subclass is a dataclass. Its fields are the method's hyper-parameters, which `length_control_kwargs` sets; their
    defaults are the paper's values. A value that does not fit its field's annotation, or the range of its [`knob`], is
    a `ValueError`. State that changes during training is made in `__post_init__`, and its attributes' names stand in
    `state`.

    For every training batch the trainer calls `score` and `observe`, in this order, and `step` after the policy
    update. If mixed precision skips the update, the observed batch waits for the next one, and a checkpoint must hold
    it. With dynamic sampling, the trainer calls `score` for each round, and once more for the batch that remains;
    `observe` gets all generated completions, replaced groups included. Evaluation and the log also call `score`,
    `violation` and `statistics`.
    Only `observe`, `step` and `load_state_dict` may change anything. Every process sees the same rollouts, those of
    all processes, as float64 on the CPU. `README.md` beside this file has an example.
    """

    name: ClassVar[str]
    paper: ClassVar[Paper | None] = None
    # Markdown link to the code of a method that has no paper
    code: ClassVar[str] = ""
    # attributes that a checkpoint holds, in types of JSON; a hyper-parameter among them must be as it was saved
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
    # True: `Score.cut` is set, so completions must be of one turn
    cuts: ClassVar[bool] = False
    # True: `Score.keep` is set
    leaves_out: ClassVar[bool] = False

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for each in fields(self):
            value = getattr(self, each.name)
            if (needed := _needed(value, hints[each.name], each.metadata)) is not None:
                raise ValueError(f"{each.name} is {value!r}, but must be {needed}")

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

    def shape(self, rollouts: Rollouts) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: Shaped rewards in float64; NaN where the task reward is NaN."""
        raise NotImplementedError

    def score(self, rollouts: Rollouts, rule: AdvantageRule) -> Score:
        """Everything that the method says of some completions, by its present state.

        A method with advantages of its own, one that leaves completions out or cuts them, or one whose price is not
        what the shaped reward lacks, because it clips, replaces these parts of what this function returns.

        Args:
            rollouts (`Rollouts`):
                Completions of all processes, or one group of a process.
            rule ([`~leash_trl.length_control.advantages.AdvantageRule`]):
                The run's rule for advantages.
        """
        base, shaped = self.base_rewards(rollouts), self.shape(rollouts)
        return Score(base, base - shaped, shaped, rule(base, shaped, rollouts))

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
        """A copy of the state for a checkpoint, in types of JSON, which keeps every number to the last bit."""
        values = {name: getattr(self, name) for name in self.state}
        held = {name: value.state_dict() for name, value in values.items() if isinstance(value, LengthControl)}
        copied: dict[str, Any] = json.loads(json.dumps({**values, **held}))
        return copied

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a saved state.

        Raises:
            `ValueError`: If it lacks a part of this method's state, or a hyper-parameter in it is another one's.
        """
        if missing := [name for name in self.state if name not in state]:
            raise ValueError(f"the saved state has no {missing[0]}, which {self.name} needs; it holds {[*state]}")
        for each in fields(self):
            if each.name in self.state and state[each.name] != (value := getattr(self, each.name)):
                raise ValueError(
                    f"{each.name} is {value!r}, but {state[each.name]!r} in the saved state; set the same in "
                    "length_control_kwargs, or start a run of its own from the weights"
                )
        for name in self.state:
            if isinstance(held := getattr(self, name), LengthControl):
                held.load_state_dict(state[name])
            else:
                setattr(self, name, copy.deepcopy(state[name]))

    def target_for(self, question: int, target_length: float | None) -> float | None:
        """The target in tokens of a prompt that has none in the data set."""
        return target_length

    def prompt_suffix(self, target_length: float | None, generation_limit: float) -> str:
        """Text to append to a prompt, which states its target.

        Args:
            target_length (`float`, *optional*):
                Target of the prompt in tokens.
            generation_limit (`float`):
                The run's generation limit in tokens; infinite for none.
        """
        return ""

    def generation_cap(self, target_length: float | None) -> int | None:
        """Generation limit of the next training batch in tokens, if below the run's own; `None` for that."""
        return None
