"""A process that compares answers with math-verify, one JSON line in, one out; a comparison that is too slow kills it.

Run as `python -m leash_trl.rewards.grader_worker SECONDS`; started by `grader_pool`, of no use by hand.
"""

import contextlib
import json
import logging
import signal
import sys


READY = "ready"
MEMORY_LIMIT_BYTES = 2 * 1024**3


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = MEMORY_LIMIT_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_LIMIT_BYTES, hard)
    with contextlib.suppress(ValueError, OSError):  # macOS may refuse; the clock still limits the case
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def _set_alarm(seconds: int) -> None:
    """The parent's clock kills a slow worker; this does where the parent has been killed itself."""
    if hasattr(signal, "alarm"):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(seconds)


def main() -> None:
    """Says `ready`, then answers `{"answer", "gold"}` with `{"verdict"}`; `null` where the gold cannot be parsed."""
    # What a library prints must not be read as an answer.
    answers, sys.stdout = sys.stdout, sys.stderr
    from math_verify import parse, verify

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    _limit_memory()

    def verdict(answer: str, gold: str) -> bool | None:
        # In a box, because math-verify reads a bare 2\sqrt{3} as 2. Without its own time limits, which need the main
        # thread's signals and do not fire on every input.
        parsed_gold = parse(f"\\boxed{{{gold}}}", parsing_timeout=None)
        if not parsed_gold:
            return None
        parsed_answer = parse(f"\\boxed{{{answer}}}", parsing_timeout=None)
        return bool(verify(parsed_gold, parsed_answer, timeout_seconds=None))

    print(READY, file=answers, flush=True)
    seconds = int(sys.argv[1])
    for line in sys.stdin:
        _set_alarm(seconds)
        request = json.loads(line)
        try:
            result = verdict(request["answer"], request["gold"])
        except (RecursionError, MemoryError):
            result = False
        _set_alarm(0)
        print(json.dumps({"verdict": result}), file=answers, flush=True)


if __name__ == "__main__":
    main()
