"""Describes a method from its own code and docstrings, for `leash methods` and the README's table."""

import inspect
import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import MISSING, fields
from typing import Any

from leash_trl.length_control.method import LengthControl
from leash_trl.length_control.toggle import refusal


# What a method does beyond shaping rewards, by the function that it overrides, or by the property that says so
OVERRIDDEN = {
    "state_dict": "state",
    "generation_cap": "cuts generation",
    "prompt_suffix": "writes into prompts",
}
SAID = {
    "has_own_advantages": "own advantages",
    "may_leave_out": "leaves completions out",
    "may_cut": "cuts completions and grades them again",
}
REFERENCE = re.compile(r"\[`(\w+)`\]")
LINK = re.compile(r"\[[^\]]+\]\([^)]+\)")
FORMULA = re.compile(r"\$\$.*?\$\$", re.DOTALL)


def traits(method: type[LengthControl]) -> list[str]:
    """What a method, with its defaults, needs and may do, in a few words each.

    Example:
        >>> from leash_trl.length_control.methods import METHODS
        >>> traits(METHODS["leash"]), traits(METHODS["none"])
        (['target', 'state'], [])
    """
    made = method()
    needs = ["target"] if made.target_use == "required" else []
    does = [word for name, word in OVERRIDDEN.items() if getattr(method, name) is not getattr(LengthControl, name)]
    return [*needs, *does, *(word for name, word in SAID.items() if getattr(made, name))]


def first_line(method: type[LengthControl]) -> str:
    """What a method does, in one line."""
    return _docstring(method).partition("\n")[0]


def hyper_parameters(method: type[LengthControl]) -> dict[str, Any]:
    """Defaults of a method's fields, by name."""
    return {
        field.name: field.default_factory() if field.default_factory is not MISSING else field.default
        for field in fields(method)
    }


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


def _yaml(value: Any) -> str:
    if isinstance(value, dict):  # JSON has text only for keys
        return str(value)
    text = json.dumps(value)
    return (
        text.replace("e", ".0e") if isinstance(value, float) and "." not in text else text
    )  # YAML reads 1e-7 as text


def markdown_table(methods: Iterable[type[LengthControl]]) -> str:
    """A row for each method: name, what it does, its source, and three hyper-parameters, inherited ones last.

    `README.md` beside this file holds the table of all methods; a test compares them.
    """
    rows = ["| `length_control` | what it does | source | main knobs |", "|---|---|---|---|"]
    for method in methods:
        source = LINK.search(sys.modules[method.__module__].__doc__ or "")
        link = " ".join(source[0].split()) if source else ""
        defaults = hyper_parameters(method)
        names = sorted(defaults, key=lambda name: name not in method.__annotations__)[:3]
        knobs = ", ".join(f"`{name}: {_yaml(defaults[name])}`" for name in names)
        rows.append(f"| `{method.name}` | {first_line(method)} | {link} | {knobs} |")
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
    """A page about a method: what it does, formulas, when to use it, source, differences, traits and defaults."""
    text = _docstring(method).partition("\nArgs:\n")[0]
    arguments = _explained(method)
    parts = [
        f"{method.name}\n{'=' * len(method.name)}\n\n{text.strip()}",
        *(f"{name}:\n\n{formula}" for name, formula in _formulas(method, text).items()),
        f"Needs and does: {', '.join(traits(method)) or 'nothing beyond the task reward'}.",
        f"In a recipe, with its defaults:\n\n{textwrap.indent(recipe_lines(method), '    ')}",
        *([f"Hyper-parameters:\n\n{arguments}"] if arguments else []),
    ]
    return "\n\n".join(parts)


def _docstring(method: type[LengthControl]) -> str:
    return inspect.cleandoc(method.__doc__ or "")


def _explained(method: type[LengthControl]) -> str:
    """The docstring's text on the hyper-parameters; those it does not repeat come from the base class."""
    explained = ""
    for base in method.__mro__:
        if all(f"{name} (`" in explained for name in hyper_parameters(method)):
            break
        if issubclass(base, LengthControl) and base is not LengthControl:
            text = inspect.cleandoc(base.__doc__ or "").partition("\nArgs:\n")[2].partition("\nRaises:\n")[0]
            entries = re.split(r"\n(?=    \S)", text.rstrip())
            new = [entry for entry in entries if not _is_in(explained, entry)]
            heading = "" if base is method else f"\nFrom {base.name}:\n\n"
            explained += heading + "\n".join(new) + "\n"
    return explained.rstrip()


def _is_in(explained: str, entry: str) -> bool:
    """Whether all hyper-parameters of an entry, which its first line names, are explained already."""
    names = re.findall(r"(\w+) \(`", entry.partition("\n")[0])
    return bool(names) and all(f"{name} (`" in explained for name in names)


def _formulas(method: type[LengthControl], text: str) -> dict[str, str]:
    """Formulas of the functions to which a docstring refers, by the function's name."""
    names = vars(sys.modules[method.__module__])
    functions: dict[str, Callable] = {
        name: names[name] for name in REFERENCE.findall(text) if inspect.isfunction(names.get(name))
    }
    found = {name: FORMULA.findall(inspect.getdoc(function) or "") for name, function in functions.items()}
    return {name: "\n\n".join(formulas) for name, formulas in found.items() if formulas}
