"""`SharedFolder`: files between a `LengthControlledReward` and its copies in other processes."""

import atexit
import os
import pickle
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leash_trl.files import write_atomically
from leash_trl.length_control.rollouts import Rollouts


class SharedFolder:
    """A temporary folder, in which the process that trains leaves the state of the method, and the processes that
    score leave their completions. The folder is removed when the process that created it ends.

    All processes are on one machine. Files are written atomically, so that no process reads a part of one.
    """

    def __init__(self):
        self._process_id = os.getpid()
        self._folder = Path(tempfile.mkdtemp(prefix="length_control_"))
        atexit.register(shutil.rmtree, self._folder, ignore_errors=True)

    @property
    def is_of_other_process(self) -> bool:
        """Whether this object is a copy in another process than the one that created the folder."""
        return os.getpid() != self._process_id

    def write_state(self, version: int, state: Mapping[str, Any]) -> None:
        """Writes the method's state after `version` dual steps."""
        write_atomically(self._folder / "state", pickle.dumps((version, state)))

    def read_state(self) -> tuple[int, dict[str, Any]]:
        """Returns what `write_state` wrote last."""
        return pickle.loads((self._folder / "state").read_bytes())

    def add_scored(self, rollouts: Rollouts) -> None:
        """Writes completions that this process has scored."""
        write_atomically(self._folder / f"{time.time_ns()}-{os.getpid()}.scored", pickle.dumps(rollouts))

    def pop_scored(self) -> list[Rollouts]:
        """Removes and returns the completions of all processes since the last call."""
        scored = []
        # Names of the files begin with the time, so they are read in the order in which they were written.
        for path in sorted(self._folder.glob("*.scored")):
            scored.append(pickle.loads(path.read_bytes()))
            path.unlink()
        return scored
