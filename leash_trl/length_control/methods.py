"""Finds a method of length control by the name or import path that `length_control` has in a recipe."""

import os
import sys
from importlib import import_module

from leash_trl.length_control.method import LengthControl


# Module and class of each method of the package, in the order in which they are listed.
CLASSES = (
    "leash.Leash",
    "leash.LeashC",
    "leash_predictive.LeashPredictive",
    "laconic.Laconic",
    "l1.L1Exact",
    "l1.L1Max",
    "thinkprune.ThinkPrune",
    "laser.Laser",
    "laser.LaserD",
    "laser.LaserDE",
    "kimi.Kimi",
    "dapo_overlong.DapoOverlong",
    "efficient.Efficient",
    "a_dlp.ADLP",
    "acoer.ACOER",
    "alp.ALP",
    "gfpo.GFPO",
    "dler.DLER",
    "cosine.Cosine",
    "grpo_lead.GRPOLead",
    "prime_rl.PrimeRL",
    "mai.MAI",
    "nemo_rl.NemoRL",
    "gr3.GR3",
    "grlc.GRLC",
    "hapo.HAPO",
    "shorter_better.ShorterBetter",
    "lead.LEAD",
    "drpo.DRPO",
    "toggle.Toggle",
    "none.NoControl",
)


def _class_at(path: str) -> type[LengthControl]:
    """Returns the class of a method at an import path such as `my_lib.methods.Mine`."""
    module_path, _, attribute = path.rpartition(".")
    try:
        method: type[LengthControl] = getattr(import_module(module_path), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"length_control: cannot load {path!r} ({error}); it must be module.Class") from error
    return method


METHODS = {method.name: method for method in (_class_at(f"{__package__}.{path}") for path in CLASSES)}


def find_method(name: str) -> type[LengthControl]:
    """Returns the class of a method by its name, or by its import path such as `my_lib.methods.Mine`."""
    if name in METHODS:
        return METHODS[name]
    if "." not in name:
        raise ValueError(f"length_control is {name!r}, but must be one of {', '.join(METHODS)}, or an import path")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    return _class_at(name)
