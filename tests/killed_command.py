"""Runs a `leash` command that kills itself in the middle of its work.

python tests/killed_command.py NUM_WRITES|METHOD COMMAND [ARGUMENT ...]

A method is one of `LeashGRPOTrainer`'s: the process dies when it is called. Writes are flushes of a file to disk and
files that are put in place: at the given one the process dies, half a line into the file that it flushed, or before
the file is in place.
"""

import os
import signal
import sys


def kill_at(num_writes: int) -> None:
    """Counts the process's writes and kills it at the given one."""
    flush, replace = os.fsync, os.replace
    left = num_writes

    def is_the_one() -> bool:
        nonlocal left
        left -= 1
        return left == 0

    def fsync(descriptor: int) -> None:
        flush(descriptor)
        if is_the_one():
            os.ftruncate(descriptor, max(0, os.fstat(descriptor).st_size - 40))
            os.kill(os.getpid(), signal.SIGKILL)

    def replace_or_die(*args, **kwargs) -> None:
        if is_the_one():
            os.kill(os.getpid(), signal.SIGKILL)
        replace(*args, **kwargs)

    os.fsync, os.replace = fsync, replace_or_die


def kill_in(method: str) -> None:
    """Kills the process when the trainer's method is called."""
    from leash_trl import LeashGRPOTrainer

    setattr(LeashGRPOTrainer, method, lambda *args, **kwargs: os.kill(os.getpid(), signal.SIGKILL))


if __name__ == "__main__":
    from leash_trl.cli.main import main

    where = sys.argv[1]
    if where.isdigit():
        kill_at(int(where))
    else:
        kill_in(where)
    sys.exit(main(sys.argv[2:]))
