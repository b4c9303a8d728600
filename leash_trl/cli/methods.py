"""`leash methods`: the table of length-control methods, and a page about each."""

from dataclasses import dataclass, field

from leash_trl.cli.arguments import parse
from leash_trl.cli.errors import user_errors


@dataclass
class MethodsArguments:
    """Without a name, the table of all methods; with one, its formula, defaults, source and use.

    Args:
        method (`str`): A name, or the import path of your own method's class.
    """

    method: str | None = field(default=None, metadata={"positional": True, "nargs": "?"})


def main(argv: list[str]) -> None:
    """Runs `leash methods`."""
    arguments = parse(MethodsArguments, argv, "leash methods")

    from leash_trl.length_control.description import description
    from leash_trl.length_control.methods import find_method

    with user_errors():
        print(description(find_method(arguments.method)) if arguments.method else table())


def table() -> str:
    """One line per method: its name and what it is."""
    from leash_trl.length_control.description import first_line
    from leash_trl.length_control.methods import METHODS

    lines = [f"{name:<18}{first_line(method)}" for name, method in METHODS.items()]
    return "\n".join([*lines, "", "leash methods NAME shows formula, defaults, source and when to use it."])
