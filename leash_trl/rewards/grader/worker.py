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
from typing import IO

from leash_trl.rewards.grader.algebra import are_equivalent, parse_with_math_verify


MEMORY_LIMIT_BYTES = 1_000_000_000
# One of each kind: a number, a point, a set, an equation, a function with a complex number.
WARM_UP_EXPRESSIONS = (
    r"2\sqrt{3}+\frac{1}{2}",
    r"(3,\frac{\pi}{2})",
    r"(-\infty,2]\cup[3,\infty)",
    "y=x^2+3x-6",
    r"\sin x-12i",
)


def _answer_requests(answers: IO[str]) -> None:
    """Answers the lines of the input, one by one, until the input ends."""
    for line in sys.stdin:
        answer, gold, seconds = json.loads(line)
        # After this much processor time, the system sends a signal that ends this process, even inside C code.
        signal.setitimer(signal.ITIMER_PROF, seconds)
        reply = _verdict_and_failure(answer, gold)
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(reply), file=answers, flush=True)


def _verdict_and_failure(answer: str | None, gold: str) -> tuple[bool | None, str | None]:
    """Returns whether two answers are equal, and what the comparison raised, such as `raised ValueError`."""
    try:
        # Without an answer, the case asks whether math-verify can read the reference answer.
        is_equal = bool(parse_with_math_verify(gold)) if answer is None else are_equivalent(answer, gold)
    # Earlier cases may have left too little memory, so this process ends. The next turn of the pool, if any, tries the
    # case in a fresh process.
    except MemoryError:
        os._exit(1)
    # No answer may end a training run.
    except Exception as error:
        return None, f"raised {type(error).__name__}"
    return is_equal, None


def _prepare_comparisons() -> None:
    """Limits the memory of this process, keeps libraries silent, and loads what comparisons need."""
    # The output of libraries goes to the error stream, so that the pool does not read it as an answer.
    sys.stdout = sys.stderr
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    # macOS may refuse this limit; the time limit still holds.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    # math-verify is several times slower on the first formula of a kind, so the forked processes inherit a warm one.
    for expression in WARM_UP_EXPRESSIONS:
        are_equivalent(f"\\boxed{{{expression}}}", r"\boxed{\sqrt{2}}")


def main() -> None:
    """Answers `[answer, gold, seconds]` with `[is_equal, failure]`, or with `null` if the comparison did not end.

    If `answer` is `null`, `is_equal` tells whether the reference answer can be read. A forked process does the
    comparison, so a process that runs out of processor time or memory is replaced at once, with all modules loaded.
    """
    answers = sys.stdout
    _prepare_comparisons()
    # A thread of the parent may have blocked the signal of the time limit, and this process inherits its mask.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    while True:
        child = os.fork()
        if child == 0:
            _answer_requests(answers)
            os._exit(0)
        # The status is 0 if the input has ended. Otherwise the comparison exceeded a limit, and a new process takes
        # over.
        _, status = os.waitpid(child, 0)
        if status == 0:
            return
        print("null", file=answers, flush=True)


if __name__ == "__main__":
    main()
