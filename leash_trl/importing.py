"""Imports what a user's recipe or command line names: a reward function, a rollout function or a method."""

import os
import pkgutil
import sys
from pathlib import Path
from typing import Any

from leash_trl.paths import existing_path
from leash_trl.process import put_first_on_import_path


def import_by_path(field: str, path: str, *names: str) -> Any:
    """Imports an object by `module.name`, where the module may be in the working folder, or by `file.py:name`.

    Args:
        field (`str`): Field of the recipe, for messages.
        path (`str`): The path to import, in one of these two forms.
        names (`str`): Names that the field also accepts, for messages.

    Raises:
        `ValueError`: If there is no such file or object, or if Python has already imported another module with the
            name of the file.
    """
    # such as "my_module" and "my_reward", or "folder/my_file.py" and "my_reward"
    module, _, name = path.rpartition(":" if ".py:" in path else ".")
    accepted = ", ".join([*names, "my_module.name"])
    if not module:
        raise ValueError(f"{field} is {path!r}, but must be {accepted} or my_file.py:name")
    file = None
    if module.endswith(".py"):
        file = Path(existing_path(module, f"the file in {field} {path!r}")).resolve()
        module = file.stem
    put_first_on_import_path(os.getcwd() if file is None else str(file.parent))
    try:
        # With a colon, `resolve_name` imports only what is before the colon as a module. With a dot, it would also try
        # to import the name as a module, and hide an ImportError that is raised inside the user's module.
        imported_object = pkgutil.resolve_name(f"{module}:{name}")
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{field}: cannot load {path!r} ({error}); give {accepted} or my_file.py:name") from error
    # If Python has imported another module of this name before, it does not look into the folder of the file.
    if file is not None and sys.modules[module].__file__ != str(file):
        raise ValueError(f"{field} is {path!r}, but {sys.modules[module].__file__} has the same name; rename the file")
    return imported_object
