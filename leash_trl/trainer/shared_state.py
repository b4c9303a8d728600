"""`SharedState`: what a reward and its copies in other processes, as of asynchronous trainers, tell each other."""

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
    """Completions of one call, how many dual steps the method had done then, and whether a copy scored them."""

    rollouts: Rollouts
    version: int
    is_from_copy: bool


class SharedState:
    """A temporary folder in which copies of a reward, in other processes, follow the one that owns the method.

    The owner writes the method's `state`; copies write what they `scored`. Every file appears as a whole, so that
    nobody reads half of one. The folder goes with the object that made it, at the end of its process at the latest.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="length_control_"))
        self._seen = (0, 0)
        weakref.finalize(self, _remove, self.folder, os.getpid())

    def news(self) -> Any:
        """The state if it was replaced since the last call, else `None`."""
        file = (self.folder / "state").stat()
        if self._seen == (file.st_mtime_ns, file.st_ino):
            return None
        self._seen = (file.st_mtime_ns, file.st_ino)
        return pickle.loads((self.folder / "state").read_bytes())

    def take(self) -> list[Scored]:
        """What copies have written since the last call, in the order in which they did."""
        files = sorted(self.folder.glob("scored-*"))
        taken = [pickle.loads(file.read_bytes()) for file in files]
        for file in files:
            file.unlink()
        return taken

    def append(self, scored: Scored) -> None:
        """Shows the owner what a copy has scored."""
        self.write(f"scored-{time.time_ns()}-{os.getpid()}", scored)

    def write(self, name: str, content: Any) -> None:
        """Writes a file, over the one of this name."""
        part = self.folder / f"part-{os.getpid()}"
        part.write_bytes(pickle.dumps(content))
        part.replace(self.folder / name)


def _remove(folder: Path, owner: int) -> None:
    """Removes a folder in which another process may still be writing; a fork of its owner leaves it."""
    if os.getpid() == owner:
        shutil.rmtree(folder.rename(f"{folder}.gone"), ignore_errors=True)
