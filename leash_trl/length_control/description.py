"""Describes a method from its own code and docstrings, for `leash methods` and the README's tables."""

import inspect
import json
import math
import textwrap
from collections.abc import Iterable
from dataclasses import MISSING, fields
from typing import Any

from leash_trl.length_control.method import LengthControl
from leash_trl.length_control.toggle import refusal


def traits(method: type[LengthControl]) -> list[str]:
    """What a method, with its defaults, needs and may do, in a few words each.

    Example:
        >>> from leash_trl.length_control.methods import METHODS
        >>> traits(METHODS["leash"]), traits(METHODS["none"])
        (['target', 'state'], [])
    """
    made = method()
    said = {
        "target": made.target_use == "required",
        "state": bool(made.state),
        "cuts generation": made.generation_cap(1.0) is not None,
        "writes into prompts": bool(made.prompt_suffix(1.0, math.inf)),
        "own advantages": bool(made.own_advantages),
        "leaves completions out": made.leaves_out,
        "cuts completions and grades them again": made.cuts,
    }
    return [word for word, is_so in said.items() if is_so]


def first_line(method: type[LengthControl]) -> str:
    """What a method does, in one line."""
    return _docstring(method).partition("\n")[0]


def hyper_parameters(method: type[LengthControl]) -> dict[str, Any]:
    """Defaults of a method's fields, by name."""
    return {
        field.name: field.default_factory() if field.default_factory is not MISSING else field.default
        for field in fields(method)
    }


def _yaml(value: Any) -> str:
    if isinstance(value, dict):  # JSON has text only for keys
        return str(value)
    text = json.dumps(value)
    # YAML reads 1e-7 as text
    return text.replace("e", ".0e") if isinstance(value, float) and "." not in text else text


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
    lines = [f"  {name}: {_yaml(value)}" for name, value in hyper_parameters(method).items()]
    is_ours = method.__module__.startswith(f"{__package__}.")
    name = method.name if is_ours else f"{method.__module__}.{method.__qualname__}"
    return "\n".join([f"length_control: {name}", *(["length_control_kwargs:", *lines] if lines else [])])


def markdown_table(methods: Iterable[type[LengthControl]]) -> str:
    """A row for each method: name, what it does, its source, and three hyper-parameters, inherited ones last.

    `README.md` beside this file holds the table of all methods; a test compares them.
    """
    rows = ["| `length_control` | what it does | source | main knobs |", "|---|---|---|---|"]
    for method in methods:
        source = method.code if method.paper is None else method.paper.link
        defaults = hyper_parameters(method)
        names = sorted(defaults, key=lambda name: name not in method.__annotations__)[:3]
        knobs = ", ".join(f"`{name}: {_yaml(defaults[name])}`" for name in names)
        rows.append(f"| `{method.name}` | {first_line(method)} | {source} | {knobs} |")
    return "\n".join(rows)


def composition(method: type[LengthControl]) -> dict[str, str]:
    """How a method, with its defaults, goes together with what the trainer can do beside it. Dynamic sampling is not
    among these: every method goes with it.

    Returns:
        `dict[str, str]`: For each option `"yes"`, `"log only"` or `"no: "` and the reason of the error.

    Example:
        >>> from leash_trl.length_control.methods import METHODS
        >>> composition(METHODS["kimi"])
        {'toggle': 'yes', 'target schedule': 'log only', 'targets per row': 'log only'}
    """
    made = method()
    reason = refusal(made)
    moves = "yes" if method.target_use != "none" else "log only"
    # a cut is for the complete batch, so it takes the configured target, not a row's own
    is_cut = moves == "yes" and made.generation_cap(1.0) is not None
    return {
        "toggle": "yes" if reason is None else f"no: {reason}",
        "target schedule": moves,
        "targets per row": "up to the cut" if is_cut else moves,
    }


def composition_table(methods: Iterable[type[LengthControl]]) -> str:
    """A row for each method and a column for each option of [`composition`].

    `README.md` beside this file holds the table of all methods; a test compares them.
    """
    cells = {method.name: composition(method) for method in methods}
    options = list(next(iter(cells.values())))
    rows = [f"| `length_control` | {' | '.join(options)} |", "|---" * (1 + len(options)) + "|"]
    rows += [f"| `{name}` | {' | '.join(found.values())} |" for name, found in cells.items()]
    return "\n".join(rows)


def description(method: type[LengthControl]) -> str:
    """A page about a method: what it does, formula, when to use it, source, differences, traits and defaults.

    Hyper-parameters that its docstring leaves to those of the methods from which it is made are explained by these.
    """
    parts = [
        f"{method.name}\n{'=' * len(method.name)}",
        _docstring(method),
        f"Needs and does: {', '.join(traits(method)) or 'nothing beyond the task reward'}.",
        f"In a recipe, with its defaults:\n\n{textwrap.indent(recipe_lines(method), '    ')}",
        *(
            f"From {base.name}:\n\n{_docstring(base).partition('Args:')[2].strip()}"
            for base in method.__mro__[1:]
            if issubclass(base, LengthControl) and base is not LengthControl and fields(base)
        ),
    ]
    return "\n\n".join(parts)


def _docstring(method: type[LengthControl]) -> str:
    return inspect.cleandoc(method.__doc__ or "")
