"""The worker process that does algebra: one JSON line in, one out, within limits of time and memory.

`grader_pool` starts it as `python -m leash_trl.rewards.grader_worker`; it is of no use by hand.
"""

import contextlib
import json
import logging
import os
import resource
import signal
import sys
from pathlib import Path
from typing import IO

from leash_trl.rewards.algebra import are_equivalent, is_readable


WORN, DIED = 3, 4  # exit codes
MEMORY_LIMIT_BYTES = 1_000_000_000
WORN_BYTES = MEMORY_LIMIT_BYTES // 2
TYPICAL = (r"2\sqrt{3}+\frac{1}{2}", r"(3,\frac{\pi}{2})", r"(-\infty,2]\cup[3,\infty)", "y=x^2+3x-6", r"\sin x-12i")


def _limit_memory() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = MEMORY_LIMIT_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_LIMIT_BYTES, hard)
    with contextlib.suppress(ValueError, OSError):  # macOS may refuse; the clock still limits the case
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def _is_worn() -> bool:
    """Whether what earlier cases left behind takes so much memory that a later case could lack it."""
    if sys.platform != "linux":
        return False
    # not ru_maxrss, which a process takes over from its parent
    num_pages = int(Path("/proc/self/statm").read_text().split()[0])
    return num_pages * resource.getpagesize() > WORN_BYTES


def _serve(answers: IO[str]) -> int:
    """Answers requests until there are no more, or this process is worn; its exit code."""
    for line in sys.stdin:
        answer, gold, seconds = json.loads(line)
        is_equal, failure = None, None
        signal.setitimer(signal.ITIMER_PROF, seconds)  # the system ends this process at this much processor time
        try:
            is_equal = is_readable(gold) if answer is None else are_equivalent(answer, gold)
        except Exception as error:  # no answer may end a run
            failure = f"raised {type(error).__name__}"
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps([is_equal, failure]), file=answers, flush=True)
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
    """Answers `[answer, gold, seconds]` with `[is_equal, failure]`, or with `null` after `seconds` of processor time.

    Without an answer, `is_equal` tells whether the gold can be read. A forked child compares, so that one that runs
    out of time is replaced at once, with all modules loaded. A child that dies of anything else takes this process
    with it.
    """
    # What a library prints must not be read as an answer.
    answers, sys.stdout = sys.stdout, sys.stderr
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    parent = os.getppid()
    _limit_memory()
    for expression in TYPICAL:  # the parser is several times slower the first time it meets a kind
        are_equivalent(f"\\boxed{{{expression}}}", r"\boxed{\sqrt{2}}")
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # a thread of the parent may have blocked the two alarms
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    _end_with(parent)
    while True:
        child = os.fork()
        if child == 0:
            sys.exit(_serve(answers))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == -signal.SIGPROF:
            print("null", file=answers, flush=True)
        elif code != WORN:
            os._exit(DIED if code else 0)  # the alarm would end an exit that takes its time


if __name__ == "__main__":
    main()
