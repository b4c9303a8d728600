"""A short text that changes with the files of a model: tells weights apart whose folders have the same name."""

import hashlib
from collections.abc import Iterable
from pathlib import Path


PIECES = 128
PIECE_BYTES = 2**16


def files_fingerprint(folder: str | Path, patterns: Iterable[str]) -> str | None:
    """The start of a SHA-256 over names, sizes and contents of a folder's files; `None` if it has none of them.

    Of a long file it reads `PIECES` pieces at even distances, both ends among them: 8 MiB, however many GB it has.
    Two ends alone would not do: where only some layers were trained, both may be as before.

    Args:
        folder (`str` or `Path`):
            Folder of a model.
        patterns (`Iterable[str]`):
            Which of its files count, as `Path.glob` reads them.
    """
    paths = sorted({path for pattern in patterns for path in Path(folder).glob(pattern)})
    sha = hashlib.sha256()
    for path in paths:
        size = path.stat().st_size
        sha.update(f"{path.name}:{size}:".encode())
        with open(path, "rb") as file:
            if size <= PIECES * PIECE_BYTES:
                sha.update(file.read())
                continue
            for piece in range(PIECES):
                file.seek(piece * (size - PIECE_BYTES) // (PIECES - 1))
                sha.update(file.read(PIECE_BYTES))
    return sha.hexdigest()[:16] if paths else None
