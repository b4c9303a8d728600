"""Imports what a user's recipe or command line names: a reward function, a rollout function or a method."""

import os
import pkgutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from leash_trl.paths import existing_path
from leash_trl.process import put_first_on_import_path


def import_by_path(field: str, path: str, *names: str) -> Any:
    """Imports `module.name`, also from the working folder, or `file.py:name`.

    Args:
        field (`str`): Field of the recipe, for messages.
        path (`str`): What to import.
        names (`str`): Names that the field also accepts, for messages.

    Raises:
        `ValueError`: If there is no such object, or another module has the name of the file.
    """
    if ".py:" in path:
        file_name, _, name = path.rpartition(":")
        file = Path(existing_path(file_name, f"the file in {field} {path!r}")).resolve()
        put_first_on_import_path(str(file.parent))
        imported_object = _imported_object(field, path, names, f"{file.stem}:{name}")
        # Python may have imported another module of this name before, and does not look into the folder then.
        imported_file = sys.modules[file.stem].__file__
        if imported_file != str(file):
            raise ValueError(f"{field} is {path!r}, but {imported_file} has the same name; rename the file")
        return imported_object
    module, _, name = path.rpartition(".")
    put_first_on_import_path(os.getcwd())
    return _imported_object(field, path, names, f"{module}:{name}")


def _imported_object(field: str, path: str, names: Sequence[str], module_and_name: str) -> Any:
    """Imports what is given as `module:name`; `field`, `path` and `names` are for the message."""
    try:
        # With a colon, only what is before it is imported as a module. With a dot, `resolve_name` would also try the
        # name as a module, and hide an ImportError that is raised inside the user's module.
        return pkgutil.resolve_name(module_and_name)
    except (ImportError, AttributeError, ValueError) as error:
        accepted = ", ".join([*names, "my_module.my_function"])
        raise ValueError(
            f"{field}: cannot load {path!r} ({error}); give {accepted} or my_file.py:my_function"
        ) from error
