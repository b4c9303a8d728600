"""Finds a method of length control by the name or import path that `length_control` has in a recipe."""

import pkgutil
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from leash_trl.importing import imported
from leash_trl.length_control.method import LengthControl


# fields of a configuration that are hyper-parameters of some methods
SHARED_FIELDS = ("lambda_init", "lambda_lr", "lambda_min", "lambda_max", "min_accuracy")
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


METHODS: dict[str, type[LengthControl]] = {
    method.name: method
    for method in (pkgutil.resolve_name(f"{__package__}.{path.replace('.', ':')}") for path in CLASSES)
}


def find_method(name: str) -> type[LengthControl]:
    """Returns the class of a method by its name, or by its place: `my_lib.methods.Mine` or `my_file.py:Mine`."""
    if not isinstance(name, str):
        raise ValueError(f"length_control is {name!r}, but must be text; set length_control_kwargs for its parameters")
    if name in METHODS:
        return METHODS[name]
    if "." not in name:
        raise ValueError(f"length_control is {name!r}, but must be one of {', '.join(METHODS)}, or an import path")
    method: type[LengthControl] = imported("length_control", name, example="MyMethod")
    if not (isinstance(method, type) and issubclass(method, LengthControl)):
        raise ValueError(f"length_control is {name!r}, which is no subclass of LengthControl; name one")
    return method


def hyper_parameters(method: type[LengthControl], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the hyper-parameters of a method that the fields of a run's configuration give it: those in
    `length_control_kwargs`, those of its own in `SHARED_FIELDS`, and `adam_beta1` as `momentum`."""
    known = {field.name for field in fields(method) if field.init}
    shared = {"momentum": settings.get("adam_beta1"), **{name: settings.get(name) for name in SHARED_FIELDS}}
    given = {name: value for name, value in shared.items() if name in known and value is not None}
    return given | (settings.get("length_control_kwargs") or {})
