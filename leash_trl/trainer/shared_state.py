"""`SharedState`: files through which a reward and its copies in other processes exchange state and completions."""

import os
import pickle
import shutil
import tempfile
import time
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leash_trl.length_control.rollouts import Rollouts


@dataclass(frozen=True)
class Scored:
    """Completions of one call, the number of dual steps that the method had done, and whether a copy scored them."""

    rollouts: Rollouts
    version: int
    is_from_copy: bool


class SharedState:
    """A temporary folder that connects a reward, which owns the method, with its copies in other processes, such as
    those of asynchronous trainers.

    The owner writes the method's `state`; each copy writes the completions that it `scored`. Files are replaced
    atomically, so that no process reads half of one. The folder is removed with the object that created it, at the
    latest when its process ends.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="length_control_"))
        self._seen = (0, 0)
        weakref.finalize(self, _remove, self.folder, os.getpid())

    def read_if_replaced(self) -> Any:
        """Returns the state if it was replaced since the last call, else `None`."""
        file = (self.folder / "state").stat()
        if self._seen == (file.st_mtime_ns, file.st_ino):
            return None
        self._seen = (file.st_mtime_ns, file.st_ino)
        return pickle.loads((self.folder / "state").read_bytes())

    def pop_scored(self) -> list[Scored]:
        """Returns what copies have written since the last call, oldest first, and removes it from the folder."""
        files = sorted(self.folder.glob("scored-*"))
        taken = [pickle.loads(file.read_bytes()) for file in files]
        for file in files:
            file.unlink()
        return taken

    def append(self, scored: Scored) -> None:
        """Writes what a copy has scored, for the owner to take."""
        self.write(f"scored-{time.time_ns()}-{os.getpid()}", scored)

    def write(self, name: str, content: Any) -> None:
        """Writes a file and replaces the one of the same name."""
        part = self.folder / f"part-{os.getpid()}"
        part.write_bytes(pickle.dumps(content))
        part.replace(self.folder / name)


def _remove(folder: Path, owner: int) -> None:
    """Removes a folder in which another process may still be writing, unless this process is a fork of the owner."""
    if os.getpid() == owner:
        shutil.rmtree(folder.rename(f"{folder}.gone"), ignore_errors=True)
