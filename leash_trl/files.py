"""Writes a file atomically: after a crash it holds the complete old content or the complete new one."""

import os
from pathlib import Path


def write_whole(path: str | Path, content: str | bytes) -> None:
    """Writes a file atomically, over an existing one; makes missing parent folders.

    Args:
        path (`str` or `Path`):
            The file.
        content (`str` or `bytes`):
            Its content; text is written as UTF-8.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.tmp")
    with open(temporary, "wb") as file:
        file.write(content if isinstance(content, bytes) else content.encode("utf-8"))
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
