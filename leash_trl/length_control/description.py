"""Describes a method from its own code and docstrings, for `leash methods`."""

import inspect
import math
import textwrap
from dataclasses import fields

import yaml

from leash_trl.length_control.method import LengthControl


def traits(method: type[LengthControl]) -> list[str]:
    """What a method, with its defaults, needs and may do, in a few words each."""
    made = method()
    said = {
        "target": made.target_use == "required",
        "state": made.state,
        "cuts generation": made.generation_cap(1.0),
        "writes into prompts": made.prompt_suffix(1.0, math.inf),
        "own advantages": made.own_advantages,
        "leaves completions out": made.leaves_out,
        "cuts completions and grades them again": made.cuts,
    }
    return [word for word, is_so in said.items() if is_so]


def first_line(method: type[LengthControl]) -> str:
    """What a method does, in one line."""
    return (inspect.getdoc(method) or "").partition("\n")[0]


def recipe_lines(method: type[LengthControl]) -> str:
    """YAML that chooses a method, with its defaults.

    Example:
        >>> from leash_trl.length_control.methods import METHODS
        >>> print(recipe_lines(METHODS["kimi"]))
        length_control: kimi
        length_control_kwargs:
          weight: 0.4
          warmup_steps: 0
    """
    is_ours = method.__module__.startswith(f"{__package__}.")
    name = method.name if is_ours else f"{method.__module__}.{method.__qualname__}"
    knobs = {field.name: getattr(method(), field.name) for field in fields(method) if field.init}
    return yaml.safe_dump({"length_control": name, "length_control_kwargs": knobs}, sort_keys=False).strip()


def description(method: type[LengthControl]) -> str:
    """A page about a method: its docstring, traits and defaults, and the arguments of the methods it is made from."""
    parts = [
        f"{method.name}\n{'=' * len(method.name)}",
        inspect.getdoc(method) or "",
        f"Needs and does: {', '.join(traits(method)) or 'nothing beyond the task reward'}.",
        f"In a recipe, with its defaults:\n\n{textwrap.indent(recipe_lines(method), '    ')}",
        *(
            f"From {base.name}:\n\n{(inspect.getdoc(base) or '').partition('Args:')[2].strip()}"
            for base in method.__mro__[1:]
            if issubclass(base, LengthControl) and fields(base)
        ),
    ]
    return "\n\n".join(parts)
