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
        if parameters is None:
            is_fitting = hasattr(trainer, name)
            member = f"GRPOTrainer.{name}"
        else:
            is_fitting = _takes(getattr(GRPOTrainer, name, None), parameters)
            member = f"GRPOTrainer.{name}{tuple(parameters)}"
        if not is_fitting:
            raise ImportError(
                f"{type(trainer).__name__} needs {member}, which trl {trl.__version__} does not have: pip install "
                "'trl==1.16.*', or use TRL's own trainer with a LengthControlledReward (recipes/any_trainer.md)"
            )


def _takes(method: Any, names: Sequence[str]) -> bool:
    """Returns whether a method has parameters of these names in this order, and no other required ones."""
    if method is None:
        return False
    parameters = inspect.signature(method).parameters
    required = set()
    for name, parameter in parameters.items():
        can_be_positional = parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        if can_be_positional and parameter.default is inspect.Parameter.empty:
            required.add(name)
    shared = [name for name in parameters if name in names]  # in the order of the method
    return shared == list(names) and required <= {"self", *names}
