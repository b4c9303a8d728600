"""Imports what a user's recipe or command line names: a reward function, a rollout function or a method."""

import os
import pkgutil
import sys
from pathlib import Path
from typing import Any

from leash_trl.paths import existing_path
from leash_trl.process import import_first_from


def imported(field: str, path: str, *names: str, example: str = "my_function") -> Any:
    """Imports `module.name`, also from the working folder, or `file.py:name`.

    Args:
        field (`str`): Field of the recipe, for messages.
        path (`str`): What to import.
        names (`str`): Names that the field also accepts, for messages.
        example (`str`): Name of an object such as this field takes, for messages.

    Raises:
        `ValueError`: If there is no such object, or another module has the name of the file.
    """
    place, _, name = path.rpartition(":" if ".py:" in path else ".")
    file = None
    if place.endswith(".py"):
        file = Path(existing_path(place, f"the file in {field} {path!r}")).resolve()
    folder = str(file.parent) if file else os.getcwd()
    import_first_from(folder)
    try:
        # with the colon, errors inside the imported module are raised unchanged
        found = pkgutil.resolve_name(f"{file.stem if file else place}:{name}")
    except (ImportError, AttributeError, ValueError) as error:
        remedy = f"give {', '.join([*names, f'my_module.{example}'])} or my_file.py:{example}"
        raise ValueError(f"{field}: cannot load {path!r} ({error}); {remedy}") from error
    if file and (other := sys.modules[file.stem].__file__) != str(file):
        raise ValueError(f"{field} is {path!r}, but {other} has the same name; rename the file")
    return found
