"""Describes a method from its own code and docstrings, for `leash methods`."""

import inspect
import textwrap
from dataclasses import fields

import yaml

from leash_trl.length_control.method import LengthControl


def first_line(method: type[LengthControl]) -> str:
    """Returns the first line of a method's docstring, which says what it does."""
    return (inspect.getdoc(method) or "").partition("\n")[0]


def recipe_lines(method: type[LengthControl]) -> str:
    """Returns the YAML that selects a method, with its default hyper-parameters.

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
    """Returns a page about a method: its docstring, its defaults, and the arguments that it inherits from other
    methods."""
    parts = [
        f"{method.name}\n{'=' * len(method.name)}",
        inspect.getdoc(method) or "",
        f"In a recipe, with its defaults:\n\n{textwrap.indent(recipe_lines(method), '    ')}",
        *(
            f"From {base.name}:\n\n{(inspect.getdoc(base) or '').partition('Args:')[2].strip()}"
            for base in method.__mro__[1:]
            if issubclass(base, LengthControl) and fields(base)
        ),
    ]
    return "\n\n".join(parts)
