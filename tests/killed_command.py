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


def killed_in_a_fork(where: str, command: list[str]) -> int:
    """The exit code of a command; what this process has imported is not imported again."""
    process = os.fork()
    if process == 0:
        try:
            os._exit(run(where, command))
        finally:
            os._exit(1)  # an exception must not go on in the caller
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def run(where: str, command: list[str]) -> int:
    """Runs a command to its death, or returns its exit code."""
    from leash_trl.cli.main import main

    if where.isdigit():
        kill_at(int(where))
    else:
        kill_in(where)
    return main(command)


if __name__ == "__main__":
    where, *words = sys.argv[1:]
    sys.exit(run(where, words))
