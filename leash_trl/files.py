"""Writes files atomically: after a crash, a file has either its complete old content or its complete new content."""

import os
from pathlib import Path


def write_atomically(path: str | Path, content: str | bytes) -> None:
    """Writes a file atomically, replaces an existing file, and creates missing parent folders.

    If `path` is a symbolic link, its target is replaced and the link is kept.

    Args:
        path (`str` or `Path`): Path of the file.
        content (`str` or `bytes`): Content of the file; text is encoded as UTF-8.
    """
    data = content if isinstance(content, bytes) else content.encode("utf-8")
    # `os.replace` would replace a symbolic link itself, so the path of its target is used.
    path = Path(path).resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            # Otherwise, after a power failure, the disk might have the new name, but not yet the new content.
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        # The temporary file is left only if writing failed.
        temporary.unlink(missing_ok=True)
