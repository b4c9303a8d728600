"""The methods of length control: they turn rollouts into shaped rewards and advantages, and update their own state.

- `method.py`: `LengthControl`, the base class of all methods, with every hook that a method may override
- `fields.py`: declares and checks hyper-parameters and state, `hyperparameter` and `state_field`
- `rollouts.py`: `Rollouts`, what a method receives, and `Score`, what `LengthControl.score` makes of it
- `advantages.py`: from shaped rewards to advantages, `AdvantageRule` and functions for methods with advantages of
  their own
- `dual.py`, `accuracy_floor.py`, `forecast.py`: LEASH's dual step, the floor that limits its penalty, and the
  forecast of LEASH-Predictive
- `leash.py`, `laser.py`, ...: one file per paper; `methods.py` lists them and finds a method by its name
- `targets.py`, `correctness.py`: which target applies to a prompt, and which reward decides correctness
- `statistics.py`: what is logged about a batch
- `check.py`: `check_length_control`, which checks a method of your own

`README.md` shows how to write a method. Everything that a method needs can be imported from here.
"""

from leash_trl.length_control.advantages import AdvantageRule, group_advantages, mean_and_std, standardized
from leash_trl.length_control.check import check_length_control
from leash_trl.length_control.fields import hyperparameter, state_field
from leash_trl.length_control.method import LengthControl, Paper
from leash_trl.length_control.rollouts import Rollouts


__all__ = [
    "AdvantageRule",
    "LengthControl",
    "Paper",
    "Rollouts",
    "check_length_control",
    "group_advantages",
    "hyperparameter",
    "mean_and_std",
    "standardized",
    "state_field",
]
