"""A process that compares answers, one JSON line in, one out, within a limit of memory and of processor time.

Run as `python -m leash_trl.rewards.grader_worker`; started by `grader_pool`, of no use by hand.
"""

import contextlib
import json
import os
import signal
import sys
from typing import IO


READY = "ready"
OUT_OF_TIME = "ran out of time"
WORN = 3  # exit code
MEMORY_LIMIT_BYTES = 1_000_000_000
WORN_BYTES = MEMORY_LIMIT_BYTES // 2


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = MEMORY_LIMIT_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_LIMIT_BYTES, hard)
    with contextlib.suppress(ValueError, OSError):  # macOS may refuse; the clock still limits the case
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def _is_worn() -> bool:
    """Whether caches and what a case left behind take so much memory that a later case could lack it."""
    try:
        with open("/proc/self/statm") as statm:  # not ru_maxrss, which a process takes over from its parent
            pages = int(statm.read().split()[0])
    except FileNotFoundError:  # not Linux
        return False
    return pages * os.sysconf("SC_PAGE_SIZE") > WORN_BYTES


def _limit_time(seconds: float) -> None:
    """Has the system end this process once it has used so much more processor time; 0 takes the limit away."""
    if hasattr(signal, "setitimer"):  # Windows has no such limit
        signal.setitimer(signal.ITIMER_PROF, seconds)


def _say(answers: IO[str], is_equal: bool | None, failure: str | None) -> None:
    print(json.dumps({"is_equal": is_equal, "failure": failure}), file=answers, flush=True)


def _serve(answers: IO[str]) -> int:
    """Answers requests until there are no more, or this process is worn; its exit code."""
    from leash_trl.rewards.equivalence import are_equivalent, is_readable

    for line in sys.stdin:
        request = json.loads(line)
        answer, gold = request["answer"], request["gold"]
        is_equal: bool | None = False
        failure = None
        _limit_time(request["seconds"])
        try:
            is_equal = is_readable(gold) if answer is None else are_equivalent(answer, gold)
        except (RecursionError, MemoryError) as error:
            failure = f"raised {type(error).__name__}"
        _limit_time(0)
        _say(answers, is_equal, failure)
        if _is_worn():
            return WORN
    return 0


def _end_with(parent: int) -> None:
    """Looks every second whether the parent still lives: a process it forked may keep our input open after it."""

    def look(*_: object) -> None:
        if os.getppid() != parent:
            os.killpg(os.getpid(), signal.SIGKILL)

    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, 1.0, 1.0)


def main() -> None:
    """Says `ready`, then answers `{"answer", "gold", "seconds"}` with `{"is_equal", "failure"}`.

    Without an answer, `is_equal` tells whether the gold can be read. A forked child compares, so that one that runs
    over its `seconds` of processor time is replaced at once, with all modules loaded. A child that dies of anything
    else takes this process with it.
    """
    # What a library prints must not be read as an answer.
    answers, sys.stdout = sys.stdout, sys.stderr
    parent = os.getppid()
    from leash_trl.rewards.equivalence import warm_up

    _limit_memory()
    warm_up()
    print(READY, file=answers, flush=True)
    if not hasattr(os, "fork"):
        sys.exit(_serve(answers))
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # a thread of the parent may have blocked the two alarms
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    _end_with(parent)
    while True:
        child = os.fork()
        if child == 0:
            sys.exit(_serve(answers))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == -signal.SIGPROF:
            _say(answers, False, OUT_OF_TIME)
        elif code != WORN:
            os._exit(code != 0)  # the alarm would end an exit that takes its time


if __name__ == "__main__":
    main()
