"""`leash methods`: the table of length-control methods, and a page about each."""

from dataclasses import dataclass

from leash_trl.cli.arguments import option, parse
from leash_trl.cli.errors import user_errors


@dataclass
class MethodsArguments:
    """Without a name, the table of all methods; with one, its formula, defaults, source and use."""

    method: str | None = option("a name, or the import path of your own method's class", positional=True, nargs="?")


def main(argv: list[str]) -> None:
    """Runs `leash methods`."""
    arguments = parse(MethodsArguments, argv, "leash methods")

    from leash_trl.length_control.description import description
    from leash_trl.length_control.methods import find_method

    with user_errors():
        print(description(find_method(arguments.method)) if arguments.method else table())


def table() -> str:
    """One line per method: its name, its needs and effects beyond shaping rewards, and its description."""
    from leash_trl.length_control.description import first_line, traits
    from leash_trl.length_control.methods import METHODS

    rows = [("method", "needs and does", "what it is")]
    rows += [(method.name, ", ".join(traits(method)), first_line(method)) for method in METHODS.values()]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    lines = [f"{name:<{widths[0]}}  {needs:<{widths[1]}}  {what}" for name, needs, what in rows]
    return "\n".join([*lines, "", "leash methods NAME shows formula, defaults, source and when to use it."])
