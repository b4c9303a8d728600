"""Writes files atomically: after a crash, a file has either its complete old content or its complete new content."""

import os
from pathlib import Path


def write_whole(path: str | Path, content: str | bytes) -> None:
    """Writes a file atomically, replaces an existing file, and creates missing parent folders.

    If `path` is a symbolic link, its target is replaced and the link is kept.

    Args:
        path (`str` or `Path`): Path of the file.
        content (`str` or `bytes`): Content of the file; text is encoded as UTF-8.
    """
    data = content if isinstance(content, bytes) else content.encode("utf-8")
    path = Path(path).resolve()  # follows symbolic links
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # the content is on the disk before the name is
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
