"""Compares answers in worker processes, with a hard limit of processor time per case, in any thread and launcher."""

import contextlib
import json
import logging
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from queue import LifoQueue
from typing import IO, cast


logger = logging.getLogger(__name__)

# An answer, or `None` to ask only whether the reference answer can be read, and the reference answer.
Case = tuple[str | None, str]

TURN_SHARES = (0.05, 1.0)  # shares of a case's limit; nearly every comparison that ends needs only the first share
MAX_WAIT_SECONDS = 120.0  # for start and answer; then the turn is given up, because other ranks wait only ten minutes
# Number of cases, for each worker process, that may fail to end in a turn with the full limit; with a share of the
# limit, proportionally more may.
MAX_UNFINISHED_PER_WORKER = 2

ERROR_EXIT_CODE = 1  # Python's exit code after an uncaught error, for example because a package is missing


@dataclass(frozen=True)
class Verdict:
    """Result of a comparison: whether both answers are equal (`None` if undecided), and its failure, if any."""

    is_equal: bool | None
    failure: str | None = None


LIMIT_EXCEEDED = Verdict(None, "ran out of time or memory")
WORKER_LOST = Verdict(None, "lost its worker process")
NO_PROCESSOR_TIME = Verdict(None, "got too little processor time (the machine is overloaded)")
TOO_MANY_UNFINISHED = Verdict(None, "came in one batch with too many that did not end")
UNFINISHED = (LIMIT_EXCEEDED, WORKER_LOST)  # verdicts on cases that did not end


@dataclass
class _Turn:
    """State that parallel comparisons share: their limit, how many more of them may fail to end, and the verdict on
    the cases that remain once the turn is given up, which is `None` before."""

    seconds_per_case: float
    unfinished_cases_left: float
    verdict_on_remaining: Verdict | None = None

    def count(self, verdict: Verdict) -> None:
        """Gives the turn up if too many of its cases did not end, which would hold up the training, or if a worker
        process got no processor time."""
        if verdict in UNFINISHED:
            self.unfinished_cases_left -= 1
        if self.unfinished_cases_left < 1:
            self.verdict_on_remaining = TOO_MANY_UNFINISHED
        if verdict == NO_PROCESSOR_TIME:
            self.verdict_on_remaining = NO_PROCESSOR_TIME


class _Worker:
    """One worker process, which ends when its input ends, at the latest with this process."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            # -P keeps files of the working directory from standing in for modules.
            [sys.executable, "-P", "-m", "leash_trl.rewards.grader.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # The worker process loads the same modules as this one.
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            # A process group of its own keeps Ctrl-C, which is sent to the group, from the worker process.
            process_group=0,
        )

    def verdict(self, case: Case, seconds: float) -> Verdict:
        """Returns the process's verdict on a case with this limit, `WORKER_LOST` or `NO_PROCESSOR_TIME`."""
        requests = cast(IO[str], self.process.stdin)
        answers = cast(IO[str], self.process.stdout)
        requests.write(json.dumps([*case, seconds]) + "\n")
        requests.flush()
        poll = select.poll()
        poll.register(answers, select.POLLIN)
        # `poll` returns an empty list after this time, in milliseconds.
        if not poll.poll(1000 * MAX_WAIT_SECONDS):
            return NO_PROCESSOR_TIME
        # `readline` returns empty text once the process has ended.
        line = answers.readline()
        if not line:
            return WORKER_LOST
        # Such as [true, null] or [null, "raised ValueError"]; `null` if the comparison exceeded a limit.
        reply = json.loads(line)
        return LIMIT_EXCEEDED if reply is None else Verdict(*reply)

    def end(self) -> int:
        """Ends the worker process and the process that it forked, and returns the exit code of the worker process."""
        # A process that stops with an error needs a moment to end, and its exit code tells of the error.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=1)
        # If no process of the group is left, Linux raises the first error, and macOS the second.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        # `communicate` closes the pipes, and raises an error if the process never read its request.
        with contextlib.suppress(OSError):
            self.process.communicate()
        return self.process.returncode


def default_num_workers() -> int:
    """Returns the number of worker processes: the cores that this process may count as its own, from 1 to 8."""
    has_affinity = hasattr(os, "sched_getaffinity")  # not on macOS
    num_cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    num_processes = int(os.environ.get("LOCAL_WORLD_SIZE") or "1")  # torchrun's and accelerate's, on this machine
    return min(8, max(1, num_cores // num_processes))


class GraderPool:
    """Worker processes that compare answers; a case that exceeds its limits does not harm the training run.

    The limit of a comparison is its own processor time, so a busy machine changes no verdict. A call compares in two
    turns: all cases with a twentieth of the limit, then the cases that did not end, for whatever reason, with the full
    limit. Quick cases thus do not wait for hanging cases, and a case whose worker process is killed is tried again. A
    turn ends once cases that do not end have used up two limits of 10 s for each worker process, which is 40 s in both
    turns; its other cases then get no verdict. Any thread may call.

    Args:
        size (`int`, *optional*): Number of worker processes, started when first needed. Defaults to
            [`default_num_workers`].
        seconds_per_case (`float`, *optional*, defaults to `10.0`): Limit of processor time for one case, in seconds.
            The default is the sum of math-verify's own limits.
    """

    def __init__(self, size: int | None = None, seconds_per_case: float = 10.0) -> None:
        self._full_limit_seconds = seconds_per_case
        self._size = size or default_num_workers()
        self._free_workers: LifoQueue[_Worker | None] = LifoQueue()  # `None` stands for a process that is not running
        for _ in range(self._size):
            self._free_workers.put(None)
        self._has_answered = False
        self._reported: set[str] = set()  # failures with a warning

    def verdicts(self, cases: Sequence[Case]) -> list[Verdict]:
        r"""Returns the verdict on whether each answer equals its reference answer.

        Both are inputs for math-verify, such as `\boxed{34}`. If an answer is `None`, the verdict tells whether the
        reference answer can be read. The first failure of each kind is a warning. Raises `RuntimeError` if no worker
        process ever answered and one stopped with an error, as without math-verify.
        """
        verdicts: dict[Case, Verdict] = {}
        unfinished = list(dict.fromkeys(cases))  # each case once, such as the answer of several completions
        # First a twentieth of the limit, then the full limit for the cases that need it.
        for share in TURN_SHARES:
            if unfinished:
                verdicts |= self._verdicts_in_turn(unfinished, share)
                unfinished = [case for case in unfinished if verdicts[case] in UNFINISHED]
        for case, verdict in verdicts.items():
            if verdict.failure is not None and verdict.failure not in self._reported:
                # The log key `grader/unscorable_share` shows later failures of this kind.
                self._reported.add(verdict.failure)
                message = "a comparison %s, and its answer is unscorable: %.80r against %.80r"
                logger.warning(message, verdict.failure, *case)
        return [verdicts[case] for case in cases]

    def _verdicts_in_turn(self, cases: Sequence[Case], share: float) -> dict[Case, Verdict]:
        """Compares cases in parallel, each with a share of the limit."""
        # A case that does not end takes only its share of the limit, so more of them are allowed for.
        turn = _Turn(
            seconds_per_case=share * self._full_limit_seconds,
            unfinished_cases_left=MAX_UNFINISHED_PER_WORKER * self._size / share,
        )
        with ThreadPoolExecutor(self._size, thread_name_prefix="grader") as threads:
            verdicts = threads.map(partial(self._verdict, turn=turn), cases)
            return dict(zip(cases, verdicts, strict=True))

    def _verdict(self, case: Case, turn: _Turn) -> Verdict:
        """Returns the verdict of a free worker process on a case, or the verdict on all remaining cases once the turn
        is given up."""
        if turn.verdict_on_remaining is not None:
            return turn.verdict_on_remaining
        # `None` if the free process is not running yet, or was ended.
        worker = self._free_workers.get()
        verdict = WORKER_LOST
        # An `OSError` means that the pipe is broken, or that the system cannot start a process.
        with contextlib.suppress(OSError):
            worker = worker or _Worker()
            verdict = worker.verdict(case, turn.seconds_per_case)
        turn.count(verdict)
        # A process without a reply has ended or hangs; the next case starts another.
        has_replied = verdict not in (WORKER_LOST, NO_PROCESSOR_TIME)
        self._free_workers.put(worker if has_replied else None)
        self._has_answered |= has_replied
        if worker is not None and not has_replied:
            self._end(worker)
        return verdict

    def _end(self, worker: _Worker) -> None:
        """Ends a process; raises `RuntimeError` if it stopped with an error before any process has answered."""
        # An error such as a missing package will stop every other process, too.
        if worker.end() == ERROR_EXIT_CODE and not self._has_answered:
            raise RuntimeError("the grader's worker process did not start, so no answer can be graded; see above")
