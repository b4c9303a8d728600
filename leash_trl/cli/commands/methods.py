"""`leash methods`: prints a table of the methods of length control, or a page about one of them."""

import inspect
import textwrap
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

import yaml

from leash_trl.cli.arguments import parse
from leash_trl.cli.errors import user_errors


if TYPE_CHECKING:
    from leash_trl.length_control.method import LengthControl

EXAMPLE_TARGET = 4096  # tokens; that of the LEASH paper


@dataclass
class MethodsArguments:
    """Show a table of all methods, or the formula, defaults, source and use of one method.

    Args:
        method (`str`): Name of a method, or your own class, as my_file.py:MyMethod or its import path.
    """

    method: str | None = field(default=None, metadata={"positional": True, "nargs": "?"})


def main(argv: list[str]) -> None:
    """Runs `leash methods`."""
    arguments = parse(MethodsArguments, argv, "leash methods")

    from leash_trl.length_control.methods import find_method

    with user_errors():
        print(description(find_method(arguments.method), arguments.method) if arguments.method else table())


def table() -> str:
    """Returns one line per method, with its name and what it does."""
    from leash_trl.length_control.methods import METHODS

    lines = []
    for name, method in METHODS.items():
        origin = f" Formula from {method.formula_from}, not from the paper." if method.formula_from else ""
        lines.append(f"{name:<18}{first_line(method)}{origin}")
    return "\n".join([*lines, "", "leash methods NAME shows formula, defaults, source and use of a method."])


def first_line(method: "type[LengthControl]") -> str:
    """Returns the first line of a method's docstring, which says what it does."""
    return (inspect.getdoc(method) or "").partition("\n")[0]


def recipe_lines(method: "type[LengthControl]", path: str | None = None) -> str:
    """Returns the YAML that selects a method, by its name or the `path` of a user's class, with its default
    hyper-parameters and, if it needs a target, an example of one in tokens.

    Example:
        >>> from leash_trl.length_control.methods import METHODS
        >>> print(recipe_lines(METHODS["kimi"]))
        length_control: kimi
        length_control_kwargs:
          weight: 0.4
          warmup_steps: 0
    """
    from leash_trl.length_control.methods import METHODS

    is_ours = method in METHODS.values()
    name = method.name if is_ours else path or f"{method.__module__}.{method.__qualname__}"
    target = {"target_length": EXAMPLE_TARGET} if method.target_use == "required" else {}
    with_defaults = method()
    defaults = {each.name: getattr(with_defaults, each.name) for each in fields(method) if each.init}
    recipe = {"length_control": name, **target, "length_control_kwargs": defaults}
    return yaml.safe_dump(recipe, sort_keys=False).strip()


def description(method: "type[LengthControl]", path: str | None = None) -> str:
    """Returns a page about a method: its docstring, its defaults, and the arguments that it inherits from other
    methods."""
    from leash_trl.length_control.method import LengthControl

    example = " and a target as an example" if method.target_use == "required" else ""
    recipe = f"In a recipe, with its defaults{example}:\n\n{textwrap.indent(recipe_lines(method, path), '    ')}"
    title = f"{method.name}\n{'=' * len(method.name)}"
    inherited = []
    for base in method.__mro__[1:]:
        if issubclass(base, LengthControl) and fields(base):
            name = getattr(base, "name", base.__name__)
            arguments = textwrap.dedent((inspect.getdoc(base) or "").partition("Args:")[2]).strip()
            inherited.append(f"From {name}:\n\n{arguments}")
    return "\n\n".join([title, inspect.getdoc(method) or "", recipe, *inherited])
