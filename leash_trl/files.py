"""Writes a file atomically: after a crash it holds the complete old content or the complete new one."""

import os
from pathlib import Path


def write_whole(path: str | Path, content: str | bytes) -> None:
    """Writes a file atomically, over an existing one; makes missing parent folders.

    A link stays, and the file that it names is written. What is no regular file, such as a pipe, is written into.

    Args:
        path (`str` or `Path`): The file.
        content (`str` or `bytes`): Its content; text is written as UTF-8.
    """
    path = Path(path)
    data = content if isinstance(content, bytes) else content.encode("utf-8")
    if path.exists() and not path.is_file():  # a folder is open's error
        path.write_bytes(data)
        return
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
