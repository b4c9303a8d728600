"""Imports what a user's recipe or command line names: a reward function, a rollout function or a method."""

import os
import pkgutil
import sys
from pathlib import Path
from typing import Any

from leash_trl.paths import existing_path
from leash_trl.process import put_first_on_import_path


def import_by_path(field: str, path: str, *names: str, example: str = "my_function") -> Any:
    """Imports `module.name`, also from the working folder, or `file.py:name`.

    Args:
        field (`str`): Field of the recipe, for messages.
        path (`str`): What to import.
        names (`str`): Names that the field also accepts, for messages.
        example (`str`): Name of an object such as this field takes, for messages.

    Raises:
        `ValueError`: If there is no such object, or another module has the name of the file.
    """
    # such as "my_module" and "my_reward", or "folder/my_file.py" and "my_reward"
    module, _, name = path.rpartition(":" if ".py:" in path else ".")
    file = None
    folder = os.getcwd()
    if module.endswith(".py"):
        file = Path(existing_path(module, f"the file in {field} {path!r}")).resolve()
        folder = str(file.parent)
        module = file.stem
    put_first_on_import_path(folder)
    try:
        # With a colon, only what is before it is imported as a module. With a dot, `resolve_name` would also try the
        # name as a module, and hide an ImportError that is raised inside the user's module.
        imported_object = pkgutil.resolve_name(f"{module}:{name}")
    except (ImportError, AttributeError, ValueError) as error:
        accepted = ", ".join([*names, f"my_module.{example}"])
        raise ValueError(
            f"{field}: cannot load {path!r} ({error}); give {accepted} or my_file.py:{example}"
        ) from error
    if file is not None:
        # Python may have imported another module of this name before, and does not look into the folder then.
        imported_file = sys.modules[module].__file__
        if imported_file != str(file):
            raise ValueError(f"{field} is {path!r}, but {imported_file} has the same name; rename the file")
    return imported_object
