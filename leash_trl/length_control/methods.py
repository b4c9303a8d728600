"""Finds a method of length control by the name or import path that `length_control` has in a recipe."""

import pkgutil
from collections.abc import Mapping
from typing import Any

from leash_trl.importing import import_by_path
from leash_trl.length_control.fields import hyperparameter_names
from leash_trl.length_control.method import LengthControl


# fields of a configuration that are hyper-parameters of some methods
SHARED_FIELDS = ("lambda_init", "lambda_lr", "lambda_min", "lambda_max")
# Module and class of each method of the package, in the order in which they are listed.
CLASS_PATHS = (
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
    "smart_thinker.SmartThinker",
    "lead.LEAD",
    "drpo.DRPO",
    "toggle.Toggle",
    "none.NoControl",
)


def _load_methods() -> dict[str, type[LengthControl]]:
    """Returns the methods of the package by name, such as `{"leash": Leash}`."""
    methods = {}
    # Each path is relative to this package, such as "leash.Leash", and `resolve_name` takes "package.leash:Leash".
    for path in CLASS_PATHS:
        module, _, class_name = path.partition(".")
        method = pkgutil.resolve_name(f"{__package__}.{module}:{class_name}")
        methods[method.name] = method
    return methods


METHODS = _load_methods()


def find_method(name: str) -> type[LengthControl]:
    """Returns the class of a method by its name, or by its path: `my_lib.methods.Mine` or `my_file.py:Mine`. Raises
    `ValueError` if there is no such method."""
    if name in METHODS:
        return METHODS[name]
    # An import path or a file may lead to any object.
    method: type[LengthControl] = import_by_path("length_control", name, *METHODS)
    if not (isinstance(method, type) and issubclass(method, LengthControl)):
        raise ValueError(f"length_control is {name!r}, which is no subclass of LengthControl; name one")
    return method


def hyperparameter_values(method: type[LengthControl], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the hyper-parameters of a method that a run's configuration sets.

    A value in `length_control_kwargs` takes precedence over those of `SHARED_FIELDS` and of `adam_beta1`, the momentum
    of the optimizer, which apply to methods that have a hyper-parameter of the same name.

    Args:
        settings (`Mapping[str, Any]`): Values of the configuration by field name; `None` for one that is not set.
    """
    values = {}
    # This argument is not left out for a method without an accuracy floor, so that the method raises an error instead
    # of ignoring it.
    if settings.get("min_accuracy") is not None:
        values["min_accuracy"] = settings["min_accuracy"]
    # These settings of the run go to methods that have a hyper-parameter of the same name.
    for name in (*SHARED_FIELDS, "adam_beta1"):
        if name in hyperparameter_names(method) and settings.get(name) is not None:
            values[name] = settings[name]
    # values in `length_control_kwargs` take precedence
    return values | (settings.get("length_control_kwargs") or {})
