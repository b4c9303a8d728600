"""Runs algebra in a worker process: reads and writes one JSON line per case, within limits of time and memory.

`pool` starts this module as `python -m leash_trl.rewards.grader.worker`; users need not start the module.
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
# One of each kind: a number, a point, a set, an equation, a function with a complex number.
TYPICAL = (r"2\sqrt{3}+\frac{1}{2}", r"(3,\frac{\pi}{2})", r"(-\infty,2]\cup[3,\infty)", "y=x^2+3x-6", r"\sin x-12i")


def _serve(answers: IO[str]) -> None:
    for line in sys.stdin:
        answer, gold, seconds = json.loads(line)
        is_equal = None
        failure = None
        signal.setitimer(signal.ITIMER_PROF, seconds)  # the system ends this process after this much processor time
        try:
            is_equal = bool(values(gold)) if answer is None else are_equivalent(answer, gold)
        except MemoryError:  # earlier cases may have left too little memory, so a fresh process tries again
            os._exit(1)
        except Exception as error:  # no answer may end a training run
            failure = f"raised {type(error).__name__}"
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps([is_equal, failure]), file=answers, flush=True)


def main() -> None:
    """Answers `[answer, gold, seconds]` with `[is_equal, failure]`, or with `null` if the comparison did not end.

    If `answer` is `null`, `is_equal` tells whether the reference answer can be read. A forked process does the
    comparison, so a process that runs out of processor time or memory is replaced at once, with all modules loaded.
    """
    answers = sys.stdout
    sys.stdout = sys.stderr  # the output of libraries must not be read as an answer
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    parent = os.getppid()
    with contextlib.suppress(ValueError, OSError):  # macOS may refuse this limit; the time limit still holds
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    for expression in TYPICAL:  # math-verify is several times slower on the first formula of a kind
        are_equivalent(f"\\boxed{{{expression}}}", r"\boxed{\sqrt{2}}")
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # a thread of the parent may have blocked the signal
    while True:
        child = os.fork()
        if child == 0:
            _serve(answers)
            os._exit(0)
        if _exit_status(child, parent) == 0:  # the input has ended
            return
        print("null", file=answers, flush=True)


def _exit_status(child: int, parent: int) -> int:
    """Waits for a forked process and returns its exit status; ends all processes of this worker if `parent` ends."""
    while True:
        time.sleep(0.02)
        ended_child, status = os.waitpid(child, os.WNOHANG)  # 0 while it runs
        if os.getppid() != parent:  # another child of the ended parent may keep this input open
            os.killpg(0, signal.SIGKILL)
        if ended_child:
            return status


if __name__ == "__main__":
    main()
