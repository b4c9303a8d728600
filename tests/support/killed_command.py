"""A `leash` command that kills itself in the middle of its work, in a fork of the test's process."""

import itertools
import os
import signal

from processes import exit_code


def killed_in_a_fork(num_writes, command):
    """The exit code of a command that dies in its write of this number: of a flush to disk, half a line into the file,
    or of a file that is put in place, before it is."""

    def work():
        from leash_trl.cli.main import main

        _kill_at(num_writes)
        raise SystemExit(main(command))

    return exit_code(work)


def _die():
    os.kill(os.getpid(), signal.SIGKILL)


def _kill_at(num_writes):
    fsync = os.fsync
    replace = os.replace
    writes = itertools.count(1)

    def fsync_or_die(descriptor):
        fsync(descriptor)
        if next(writes) == num_writes:
            os.ftruncate(descriptor, max(0, os.fstat(descriptor).st_size - 40))
            _die()

    def replace_or_die(*args, **kwargs):
        if next(writes) == num_writes:
            _die()
        replace(*args, **kwargs)

    os.fsync = fsync_or_die
    os.replace = replace_or_die
