"""Every length-control method by the name that a recipe's `length_control` gives it."""

import difflib
import importlib
import os
import sys

from leash_trl.length_control.a_dlp import ADLP
from leash_trl.length_control.alp import ALP
from leash_trl.length_control.cosine import Cosine
from leash_trl.length_control.dapo_overlong import DapoOverlong
from leash_trl.length_control.dler import DLER
from leash_trl.length_control.efficient import Efficient
from leash_trl.length_control.gfpo import GFPO
from leash_trl.length_control.gr3 import GR3
from leash_trl.length_control.grlc import GRLC
from leash_trl.length_control.grpo_lead import GRPOLead
from leash_trl.length_control.hapo import HAPO
from leash_trl.length_control.kimi import Kimi
from leash_trl.length_control.l1 import L1Exact, L1Max
from leash_trl.length_control.laconic import Laconic
from leash_trl.length_control.laser import Laser
from leash_trl.length_control.laser_d import LaserD, LaserDE
from leash_trl.length_control.leash import Leash, LeashC
from leash_trl.length_control.leash_pi import LeashPI
from leash_trl.length_control.method import LengthControl
from leash_trl.length_control.none import NoControl
from leash_trl.length_control.prime_rl import PrimeRL
from leash_trl.length_control.thinkprune import ThinkPrune


METHODS: dict[str, type[LengthControl]] = {
    "leash": Leash,
    "leash_c": LeashC,
    "leash_pi": LeashPI,
    "laconic": Laconic,
    "l1_exact": L1Exact,
    "l1_max": L1Max,
    "thinkprune": ThinkPrune,
    "laser": Laser,
    "laser_d": LaserD,
    "laser_de": LaserDE,
    "kimi": Kimi,
    "dapo_overlong": DapoOverlong,
    "efficient": Efficient,
    "a_dlp": ADLP,
    "alp": ALP,
    "gfpo": GFPO,
    "dler": DLER,
    "cosine": Cosine,
    "grpo_lead": GRPOLead,
    "prime_rl": PrimeRL,
    "gr3": GR3,
    "grlc": GRLC,
    "hapo": HAPO,
    "none": NoControl,
}


def find_method(name: str) -> type[LengthControl]:
    """A method by its name here, or by the import path of its class, such as `my_lib.methods.Mine`.

    Raises:
        `ValueError`: If there is no such method, or what the path leads to is none.
    """
    if name in METHODS:
        return METHODS[name]
    module_path, _, attribute = name.rpartition(".")
    if not module_path:
        similar = difflib.get_close_matches(name, METHODS, n=1)
        raise ValueError(
            f"length_control is {name!r}, but must be one of {', '.join(METHODS)}, or an import path such as "
            f"my_lib.methods.Mine{f'; did you mean {similar[0]}?' if similar else ''}"
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        method = getattr(importlib.import_module(module_path), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"length_control: cannot load {name!r} ({error}); it must be module.Class, importable from this folder"
        ) from error
    if not (isinstance(method, type) and issubclass(method, LengthControl) and "__dataclass_fields__" in vars(method)):
        raise ValueError(f"length_control: {name} must be a dataclass derived from leash_trl.LengthControl")
    if not isinstance(getattr(method, "name", None), str) or method.shape is LengthControl.shape:
        raise ValueError(f"length_control: {name} needs a `name` and a `shape` method of its own")
    return method
