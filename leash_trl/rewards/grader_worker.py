"""A process that compares answers, one JSON line in, one out; a comparison that takes too long kills it.

Run as `python -m leash_trl.rewards.grader_worker SECONDS`; started by `grader_pool`, of no use by hand.
"""

import contextlib
import json
import os
import signal
import sys


READY = "ready"
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


def _set_alarm(seconds: int) -> None:
    """The parent's clock kills a slow worker; this does where the parent has been killed itself."""
    if hasattr(signal, "alarm"):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(seconds)


def main() -> None:
    """Says `ready`, then answers `{"answer", "gold"}` with `{"is_equal", "failure", "is_worn"}`.

    Without an answer, `is_equal` tells whether the gold can be read. A worker that is worn should be replaced.
    """
    # What a library prints must not be read as an answer.
    answers, sys.stdout = sys.stdout, sys.stderr
    from leash_trl.rewards.equivalence import are_equivalent, is_readable, warm_up

    _limit_memory()
    warm_up()
    print(READY, file=answers, flush=True)
    seconds = int(sys.argv[1])
    for line in sys.stdin:
        _set_alarm(seconds)
        request = json.loads(line)
        is_equal: bool | None = False
        failure = None
        try:
            answer, gold = request["answer"], request["gold"]
            is_equal = is_readable(gold) if answer is None else are_equivalent(answer, gold)
        except (RecursionError, MemoryError) as error:
            failure = f"raised {type(error).__name__}"
        _set_alarm(0)
        verdict = {"is_equal": is_equal, "failure": failure, "is_worn": _is_worn()}
        print(json.dumps(verdict), file=answers, flush=True)


if __name__ == "__main__":
    main()
