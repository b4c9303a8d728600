"""The methods of length control: they turn rollouts into shaped rewards and advantages, and update their own state.

- `method.py`: `LengthControl`, the base class of all methods, with every hook that a method may override
- `fields.py`: declares and checks hyper-parameters and state, `hyperparameter` and `state_field`
- `rollouts.py`: `Rollouts`, what a method receives, and `Score`, what it returns
- `advantages.py`: from shaped rewards to advantages, `AdvantageRule` and the parts of rules of their own
- `dual.py`, `accuracy_floor.py`: LEASH's dual step, and the floor that limits its penalty
- `leash.py`, `laser.py`, ...: one file per paper; `methods.py` lists them and finds a method by its name
- `targets.py`, `correctness.py`: which target and which reward count, for both front doors
- `statistics.py`: what is logged about a batch
- `check.py`: `check_length_control`, which says what breaks the contract in a method of your own

`README.md` shows how to write a method. Everything that this needs is imported from here, and loads on first use.
"""

import importlib
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from leash_trl.length_control.advantages import AdvantageRule as AdvantageRule
    from leash_trl.length_control.advantages import group_advantages as group_advantages
    from leash_trl.length_control.advantages import mean_and_std as mean_and_std
    from leash_trl.length_control.advantages import standardized as standardized
    from leash_trl.length_control.check import check_length_control as check_length_control
    from leash_trl.length_control.fields import hyperparameter as hyperparameter
    from leash_trl.length_control.fields import state_field as state_field
    from leash_trl.length_control.method import LengthControl as LengthControl
    from leash_trl.length_control.method import Paper as Paper
    from leash_trl.length_control.rollouts import Rollouts as Rollouts
    from leash_trl.length_control.rollouts import Score as Score

_MODULES = {
    "AdvantageRule": "advantages",
    "LengthControl": "method",
    "Paper": "method",
    "Rollouts": "rollouts",
    "Score": "rollouts",
    "check_length_control": "check",
    "group_advantages": "advantages",
    "hyperparameter": "fields",
    "mean_and_std": "advantages",
    "standardized": "advantages",
    "state_field": "fields",
}

__all__ = [*_MODULES]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
