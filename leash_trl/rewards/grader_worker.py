"""The worker process that asks math-verify: one JSON line in, one out, within limits of time and memory.

`grader_pool` starts it as `python -m leash_trl.rewards.grader_worker`; it is of no use by hand.
"""

import contextlib
import json
import logging
import os
import resource
import signal
import sys
from typing import IO

from leash_trl.rewards.algebra import are_equivalent, is_readable
from leash_trl.rewards.grader_pool import OUT_OF_TIME, READY


logging.getLogger("math_verify").setLevel(logging.CRITICAL)

WORN = 3  # exit code
MEMORY_LIMIT_BYTES = 1_000_000_000
WORN_BYTES = MEMORY_LIMIT_BYTES // 2
TYPICAL = (
    r"-\frac{3}{2}",
    r"2\sqrt{3} + 1",
    r"\left( 3, \frac{\pi}{2} \right)",
    r"(-\infty, 2) \cup [3, \infty)",
    "x^2 + 3x - 6",
    r"\begin{pmatrix} 1 \\ -2 \end{pmatrix}",
    r"x \in [-2, 7]",
    r"\{1 \pm \sqrt{5}, -2\}",
    "y = 2x + 3",
    r"\text{even}",
    r"\sin x",
    "1 - 12i",
)


def _warm_up() -> None:
    """Compares a few expressions of every kind: the parser is several times slower the first time it meets one."""
    for expression in TYPICAL:
        are_equivalent(f"\\boxed{{{expression}}}", r"\boxed{\sqrt{2}}")


def _limit_memory() -> None:
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


def _say(answers: IO[str], is_equal: bool | None, failure: str | None) -> None:
    print(json.dumps({"is_equal": is_equal, "failure": failure}), file=answers, flush=True)


def _serve(answers: IO[str]) -> int:
    """Answers requests until there are no more, or this process is worn; its exit code."""
    for line in sys.stdin:
        request = json.loads(line)
        answer, gold = request["answer"], request["gold"]
        is_equal, failure = None, None
        # The system ends this process once it has used so much more processor time.
        signal.setitimer(signal.ITIMER_PROF, request["seconds"])
        try:
            is_equal = is_readable(gold) if answer is None else are_equivalent(answer, gold)
        except (RecursionError, MemoryError) as error:
            is_equal, failure = False, f"raised {type(error).__name__}"
        signal.setitimer(signal.ITIMER_PROF, 0)
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
    _limit_memory()
    _warm_up()
    print(READY, file=answers, flush=True)
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
