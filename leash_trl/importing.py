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
    module, _, name = path.rpartition(":" if ".py:" in path else ".")
    file = None
    folder = os.getcwd()
    if module.endswith(".py"):
        file = Path(existing_path(module, f"the file in {field} {path!r}")).resolve()
        folder = str(file.parent)
        module = file.stem
    import_first_from(folder)
    try:
        # with the colon, errors inside the imported module are raised unchanged
        imported_object = pkgutil.resolve_name(f"{module}:{name}")
    except (ImportError, AttributeError, ValueError) as error:
        accepted = ", ".join([*names, f"my_module.{example}"])
        raise ValueError(
            f"{field}: cannot load {path!r} ({error}); give {accepted} or my_file.py:{example}"
        ) from error
    if file is not None:
        imported_file = sys.modules[module].__file__
        if imported_file != str(file):
            raise ValueError(f"{field} is {path!r}, but {imported_file} has the same name; rename the file")
    return imported_object
