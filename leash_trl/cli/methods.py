"""`leash methods`: prints a table of the methods of length control, or a page about one of them."""

from dataclasses import dataclass, field

from leash_trl.cli.arguments import parse
from leash_trl.cli.errors import user_errors


@dataclass
class MethodsArguments:
    """Show a table of all methods, or the formula, defaults, source and use of one method.

    Args:
        method (`str`): Name of a method, or the import path of your own class.
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
    """Returns one line per method, with its name and what it does."""
    from leash_trl.length_control.description import first_line
    from leash_trl.length_control.methods import METHODS

    lines = [f"{name:<18}{first_line(method)}" for name, method in METHODS.items()]
    return "\n".join([*lines, "", "leash methods NAME shows formula, defaults, source and use of a method."])
