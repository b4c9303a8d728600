"""Digests of code and data. A run that is continued compares them, to notice that code or data have changed."""

import hashlib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def code_digests(objects: Iterable[Any]) -> dict[str, str]:
    """Returns the [`content_digest`] of each module that defines one of the classes or functions, by the name of the
    module. Modules without a file, such as a notebook, are left out."""
    digests: dict[str, str] = {}
    for function in objects:
        # A `functools.partial` has no `__module__` of its own; the function that it calls is its attribute `func`.
        unwrapped = getattr(function, "func", function)
        # The module is `None` for code that was executed without an import; a notebook has a module without a file.
        module = sys.modules.get(unwrapped.__module__)
        file = getattr(module, "__file__", None)
        if file is not None:
            digests[unwrapped.__module__] = content_digest(Path(file))
    return digests


def content_digest(path: Path) -> str:
    """Returns the SHA-256 of the content of a file, or of all files in a folder and its subfolders in the order of
    their paths; the digest of no content if there is neither."""
    sha = hashlib.sha256()
    # If the path is a file, `rglob` finds nothing, and the path itself is the only file.
    for file in sorted(path.rglob("*")) or [path]:
        sha.update(file.read_bytes() if file.is_file() else b"")
    return sha.hexdigest()
