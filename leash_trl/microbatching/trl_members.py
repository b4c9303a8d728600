"""Checks that TRL's trainer still has the members, with the arguments, that our trainers override, call or write."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import trl
from trl import GRPOTrainer


TRLMembers = Mapping[str, Sequence[str] | None]
"""Names of a trainer's members: a method has its parameters in the order in which we pass them, an attribute None."""


def check_trl_members(trainer: GRPOTrainer, members: TRLMembers) -> None:
    """Raises `ImportError` unless TRL's trainer has every member on which ours depends, since training could otherwise
    be silently wrong."""
    for name, parameters in members.items():
        exists = hasattr(trainer, name) if parameters is None else _takes(getattr(GRPOTrainer, name, None), parameters)
        if not exists:
            needed = f"GRPOTrainer.{name}{'' if parameters is None else tuple(parameters)}"
            raise ImportError(
                f"{type(trainer).__name__} needs {needed}, which trl {trl.__version__} does not have: pip install "
                "'trl==1.16.*', or use TRL's own trainer with a LengthControlledReward (recipes/any_trainer.md)"
            )


def _takes(method: Any, parameters: Sequence[str]) -> bool:
    """Returns whether a method has these parameters in this order, and no other required ones."""
    if method is None:
        return False
    known = inspect.signature(method).parameters
    needed = {
        name for name, one in known.items() if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD
    }
    return [name for name in known if name in parameters] == [*parameters] and needed <= {"self", *parameters}
