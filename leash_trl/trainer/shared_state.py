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
        self._last_version = (0, 0)  # time and inode of the state that was read last
        weakref.finalize(self, _remove, self.folder, owner_pid=os.getpid())

    def read_if_replaced(self) -> Any:
        """Returns the state if it was replaced since the last call, else `None`."""
        path = self.folder / "state"
        file = path.stat()
        version = (file.st_mtime_ns, file.st_ino)
        if version == self._last_version:
            return None
        self._last_version = version
        return pickle.loads(path.read_bytes())

    def pop_scored(self) -> list[Scored]:
        """Returns what copies have written since the last call, oldest first, and removes it from the folder."""
        paths = sorted(self.folder.glob("scored-*"))  # their names begin with the time
        scored = [pickle.loads(path.read_bytes()) for path in paths]
        for path in paths:
            path.unlink()
        return scored

    def append(self, scored: Scored) -> None:
        """Writes what a copy has scored, for the owner to take."""
        self.write(f"scored-{time.time_ns()}-{os.getpid()}", scored)

    def write(self, name: str, content: Any) -> None:
        """Writes a file and replaces the one of the same name."""
        unfinished = self.folder / f"part-{os.getpid()}"
        unfinished.write_bytes(pickle.dumps(content))
        unfinished.replace(self.folder / name)


def _remove(folder: Path, owner_pid: int) -> None:
    """Removes a folder, unless this process is a fork of its owner."""
    if os.getpid() != owner_pid:
        return
    # another process may still be writing into the folder: under another name, nothing is added while it is removed
    renamed = folder.rename(f"{folder}.gone")
    shutil.rmtree(renamed, ignore_errors=True)
