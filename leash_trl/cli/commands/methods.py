"""`leash methods`: prints a table of the methods of length control, a page about one of them, or what to cite."""

import inspect
import textwrap
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from leash_trl.cli.arguments import parse
from leash_trl.cli.errors import errors_to_user_errors


if TYPE_CHECKING:
    from leash_trl.length_control.method import LengthControl

EXAMPLE_TARGET = 4096  # tokens; that of the LEASH paper


@dataclass
class MethodsArguments:
    """Show a table of all methods, or the formula, defaults, source and use of one method.

    Args:
        method (`str`): Name of a method, or your own class, as my_file.py:MyMethod or its import path.
        cite (`str`): Method, or folder of a run or a checkpoint; prints the BibTeX of everything that it uses.
    """

    method: str | None = field(default=None, metadata={"positional": True, "nargs": "?"})
    cite: str | None = None


def main(argv: list[str]) -> None:
    """Prints the page about the method that is named, what to cite, or else the table of all methods."""
    arguments = parse(MethodsArguments, argv, "leash methods")
    from leash_trl.length_control.methods import find_method

    with errors_to_user_errors(always_names_option=True, cite=arguments.cite):
        if arguments.cite:
            text = citation_text(arguments.cite)
        elif arguments.method:
            text = method_page(find_method(arguments.method), arguments.method)
        else:
            text = methods_table()
    print(text)


def methods_table() -> str:
    """Returns one line per method, with its name and what it does."""
    from leash_trl.length_control.methods import METHODS

    lines = []
    for name, method in METHODS.items():
        line = f"{name:<18}{first_docstring_line(method)}"
        # such as "the authors' release", if the formula is not from the method's paper
        if method.formula_from:
            line += f" Formula from {method.formula_from}, not from the paper."
        lines.append(line)
    lines += [
        "",
        "leash methods NAME shows formula, defaults, source and use of a method.",
        "leash methods --cite NAME prints the BibTeX of what a run with it uses; NAME may also be a run's folder.",
    ]
    return "\n".join(lines)


def citation_text(name: str) -> str:
    """Returns the BibTeX of what a run uses. `name` is the folder of the run or, for a run with the defaults, the name
    of its method.

    Raises:
        `ValueError`: If the name is neither a method nor the folder of a run.
    """
    from leash_trl.citations import citations
    from leash_trl.length_control.methods import find_method
    from leash_trl.saved_recipe import recipe_of_model
    from leash_trl.trainer.leash_grpo_config import LeashGRPOConfig

    # The recipe says what else a run used, such as dynamic sampling. For a method alone, an empty recipe stands for
    # the defaults.
    recipe = recipe_of_model(name) if Path(name).is_dir() else {}
    if recipe:
        name = recipe.get("length_control", LeashGRPOConfig.length_control)
    method = find_method(name)
    entries = citations(method, recipe)
    if method.paper is None:
        entries.insert(0, f"% {method.name} has no paper of its own; see leash methods {method.name}")
    return "\n\n".join(entries)


def first_docstring_line(method: "type[LengthControl]") -> str:
    """Returns the first line of a method's docstring, which says what it does."""
    return (inspect.getdoc(method) or "").partition("\n")[0]


def recipe_yaml(method: "type[LengthControl]", path: str) -> str:
    """Returns the YAML that selects a method, with its default hyper-parameters and, if the method needs a target, an
    example of a target in tokens. A method of ours is selected by its name, a user's class by `path`.

    Example:
        >>> from leash_trl.length_control.methods import METHODS
        >>> print(recipe_yaml(METHODS["kimi"], path="kimi"))
        length_control: kimi
        length_control_kwargs:
          weight: 0.4
          warmup_steps: 0
    """
    from leash_trl.length_control.fields import hyperparameter_names
    from leash_trl.length_control.methods import METHODS

    is_ours = method in METHODS.values()
    recipe: dict[str, Any] = {"length_control": method.name if is_ours else path}
    # Other methods use no target, or also work without one.
    if method.target_use == "required":
        recipe["target_length"] = EXAMPLE_TARGET
    with_defaults = method()  # every hyper-parameter has a default, which is an attribute of the instance
    recipe["length_control_kwargs"] = {name: getattr(with_defaults, name) for name in hyperparameter_names(method)}
    return yaml.safe_dump(recipe, sort_keys=False).strip()


def method_page(method: "type[LengthControl]", path: str) -> str:
    """Returns a page about a method: its docstring, its defaults, and the arguments that it inherits from other
    methods."""
    from leash_trl.length_control.method import LengthControl

    recipe = textwrap.indent(recipe_yaml(method, path), "    ")  # raises if the method has no name
    example = " and a target as an example" if method.target_use == "required" else ""
    title = f"{method.name}\n{'=' * len(method.name)}"
    docstring = inspect.getdoc(method) or ""
    paragraphs = [title, docstring, f"In a recipe, with its defaults{example}:", recipe]
    # A method also has the hyper-parameters of its base classes, which describe them in their docstrings.
    for base in method.__mro__[1:]:
        if issubclass(base, LengthControl) and fields(base):
            name = getattr(base, "name", base.__name__)
            # what follows "Args:" in the docstring
            arguments = textwrap.dedent((inspect.getdoc(base) or "").partition("Args:")[2]).strip()
            paragraphs += [f"From {name}:", arguments]
    return "\n\n".join(paragraphs)
