"""The worker process that does algebra: one JSON line in, one out, within limits of time and memory.

`pool` starts it as `python -m leash_trl.rewards.grader.worker`; it is of no use by hand.
"""

import contextlib
import json
import logging
import os
import resource
import signal
import sys
import time
from typing import IO

from leash_trl.rewards.grader.algebra import are_equivalent, values


MEMORY_LIMIT_BYTES = 1_000_000_000
TYPICAL = (r"2\sqrt{3}+\frac{1}{2}", r"(3,\frac{\pi}{2})", r"(-\infty,2]\cup[3,\infty)", "y=x^2+3x-6", r"\sin x-12i")


def _serve(answers: IO[str]) -> None:
    for line in sys.stdin:
        answer, gold, seconds = json.loads(line)
        is_equal, failure = None, None
        signal.setitimer(signal.ITIMER_PROF, seconds)  # the system ends this process at this much processor time
        try:
            is_equal = bool(values(gold)) if answer is None else are_equivalent(answer, gold)
        except MemoryError:  # what earlier cases left behind may be the cause, so a fresh process tries again
            os._exit(1)
        except Exception as error:  # no answer may end a run
            failure = f"raised {type(error).__name__}"
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps([is_equal, failure]), file=answers, flush=True)


def main() -> None:
    """Answers `[answer, gold, seconds]` with `[is_equal, failure]`, or with `null` if the comparison did not end.

    Without an answer, `is_equal` tells whether the gold can be read. A forked child compares, so that one that runs
    out of processor time or memory is replaced at once, with all modules loaded.
    """
    answers, sys.stdout = sys.stdout, sys.stderr  # what a library prints must not be read as an answer
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    parent = os.getppid()
    with contextlib.suppress(ValueError, OSError):  # macOS may refuse; the clock still limits the case
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    for expression in TYPICAL:  # the parser is several times slower the first time it meets a kind
        are_equivalent(f"\\boxed{{{expression}}}", r"\boxed{\sqrt{2}}")
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # a thread of the parent may have blocked the timer's signal
    while True:
        child = os.fork()
        if child == 0:
            _serve(answers)
            os._exit(0)
        ended, status = 0, 0
        while not ended:
            time.sleep(0.02)
            ended, status = os.waitpid(child, os.WNOHANG)
            if os.getppid() != parent:  # a process that the parent forked may keep our input open after it
                os.killpg(0, signal.SIGKILL)
        if status == 0:
            return
        print("null", file=answers, flush=True)


if __name__ == "__main__":
    main()
