"""A process that compares answers with math-verify, one JSON line in, one out. Its parent kills it when it is slow.

Run as `python -m leash_trl.rewards.grader_worker`; started by `grader_pool`, of no use by hand.
"""

import json
import sys


MEMORY_LIMIT_BYTES = 2 * 1024**3


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))


def _compare(answer: str, gold: str) -> bool | None:
    from math_verify import parse, verify

    # Without math delimiters math-verify reads 2\sqrt{3} as 2. Its own time limits need the main thread's signals and
    # do not fire on every input; the parent's clock does.
    parsed_gold = parse(f"\\boxed{{{gold.strip().strip('$')}}}", parsing_timeout=None)
    if not parsed_gold:
        return None
    parsed_answer = parse(f"\\boxed{{{answer.strip().strip('$')}}}", parsing_timeout=None)
    return bool(verify(parsed_gold, parsed_answer, timeout_seconds=None))


def main() -> None:
    """Answers `{"answer", "gold"}` with `{"verdict": true | false | null}`; null: the gold cannot be parsed."""
    import logging

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    _limit_memory()
    # What a library prints must not be read as an answer.
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        request = json.loads(line)
        try:
            verdict = _compare(request["answer"], request["gold"])
        except (RecursionError, MemoryError):
            verdict = False
        answers.write(json.dumps({"verdict": verdict}) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
