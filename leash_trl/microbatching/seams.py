"""Checks that TRL still has, with the arguments that we know, what our trainers override, call or write inside it."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import trl
from trl import GRPOTrainer


Seams = Mapping[str, Sequence[str] | None]
"""Names of a trainer's members: for a method its parameters as we pass them, in order; `None` for an attribute."""


def check_seams(trainer: GRPOTrainer, seams: Seams) -> None:
    """Raises an error unless TRL's trainer has every member that ours leans on; a changed one could train wrongly.

    Args:
        trainer ([`~trl.GRPOTrainer`]): The trainer, made by TRL's own constructor.
        seams (`Mapping`): What it leans on.

    Raises:
        `ImportError`: If one is missing, or takes other arguments.
    """
    for name, parameters in seams.items():
        exists = hasattr(trainer, name) if parameters is None else _takes(getattr(GRPOTrainer, name, None), parameters)
        if not exists:
            raise ImportError(
                f"{type(trainer).__name__} needs GRPOTrainer.{name}{'' if parameters is None else tuple(parameters)}, "
                f"which trl {trl.__version__} does not have: pip install 'trl==1.16.*', or give TRL's own "
                "trainer a LengthControlledReward, which needs nothing inside of it (recipes/any_trainer.md)"
            )


def _takes(method: Any, parameters: Sequence[str]) -> bool:
    """Whether a method has these parameters in this order, and no other that must be given."""
    if method is None:
        return False
    known = inspect.signature(method).parameters
    needed = {
        name for name, one in known.items() if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD
    }
    return [name for name in known if name in parameters] == [*parameters] and needed <= {"self", *parameters}
