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
from enum import Enum, auto
from functools import partial
from queue import LifoQueue
from typing import IO, cast


logger = logging.getLogger(__name__)

Case = tuple[str | None, str]  # an answer, or `None` to ask whether the reference answer can be read, and the latter

TURN_SHARES = (0.05, 1.0)  # shares of a case's limit; nearly every comparison that ends needs only the first share
MAX_WAIT_SECONDS = 120.0  # for start and answer; then the turn is given up, because other ranks wait ten minutes
# Cases with the full limit that may not end in a turn, for each worker process; with a share of the limit, more may.
MAX_UNFINISHED_PER_WORKER = 2
MAX_REMEMBERED = 65_536  # verdicts

ERROR_EXIT_CODE = 1  # Python's exit code after an uncaught error, for example because a package is missing
UNFINISHED = "ran out of time or memory, or lost its worker process"
TOO_MANY_UNFINISHED = "came in one batch with too many that did not end"
NO_PROCESSOR_TIME = "got too little processor time (the machine is overloaded)"


@dataclass(frozen=True)
class Verdict:
    """Result of a comparison: whether both answers are equal (`None` if undecided), and its failure, if any."""

    is_equal: bool | None
    failure: str | None = None


class _NoVerdict(Enum):
    """Why a case has no verdict: the comparison exceeded its limit of time or memory, the worker process has ended, or
    no line of it came in `MAX_WAIT_SECONDS`."""

    LIMIT_EXCEEDED = auto()
    WORKER_ENDED = auto()
    NO_LINE_IN_TIME = auto()


@dataclass
class _Turn:
    """State that parallel comparisons share: their limit, how many more of them may not end, and the failure of the
    cases that remain once the turn is given up, which is `None` before."""

    seconds_per_case: float
    unfinished_cases_left: float
    failure_of_remaining: str | None = None


class _Worker:
    """One worker process, which ends when its input or its parent process ends."""

    def __init__(self) -> None:
        variables = {
            # The trainer needs the other cores and the GPU.
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            # The worker process loads the same modules as this one.
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        self.process = subprocess.Popen(
            # -P keeps files of the working directory from standing in for modules.
            [sys.executable, "-P", "-m", "leash_trl.rewards.grader.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | variables,
            # A process group of its own keeps Ctrl-C, which is sent to the group, from the worker process.
            process_group=0,
        )

    def reply_line(self, request: str, seconds: float) -> str | _NoVerdict:
        """Sends a request and returns the line of the reply, or why no line came."""
        requests = cast(IO[str], self.process.stdin)
        answers = cast(IO[str], self.process.stdout)
        requests.write(request)
        requests.flush()
        poll = select.poll()
        poll.register(answers, select.POLLIN)
        milliseconds = 1000 * seconds
        # `poll` returns an empty list after this time.
        if not poll.poll(milliseconds):
            return _NoVerdict.NO_LINE_IN_TIME
        # `readline` returns empty text once the process has ended.
        line = answers.readline()
        return _NoVerdict.WORKER_ENDED if line == "" else line

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
    turns; its other cases then get no verdict. The pool remembers each pair, also pairs beyond their limits. Any
    thread may call.

    Args:
        size (`int`, *optional*): Number of worker processes, started when first needed. Defaults to
            [`default_num_workers`].
        seconds_per_case (`float`, *optional*, defaults to `10.0`): Processor time; math-verify's limits have this sum.
    """

    def __init__(self, size: int | None = None, seconds_per_case: float = 10.0) -> None:
        self._full_limit_seconds = seconds_per_case
        self._size = size or default_num_workers()
        self._free_workers: LifoQueue[_Worker | None] = LifoQueue()  # `None` stands for a process that is not running
        for _ in range(self._size):
            self._free_workers.put(None)
        self._remembered: dict[int, Verdict] = {}  # by hash of the case, because answers can be long
        self._has_answered = False
        self._reported: set[str] = set()  # failures with a warning

    def verdicts(self, cases: Sequence[Case]) -> list[Verdict]:
        r"""Returns the verdict on whether each answer equals its reference answer.

        Both are inputs for math-verify, such as `\boxed{34}`. If an answer is `None`, the verdict tells whether the
        reference answer can be read. The first failure of each kind is a warning. Raises `RuntimeError` if no worker
        process ever answered and one stopped with an error, as without math-verify.
        """
        # `None` for a new case, as for cases that never ended and lost their worker processes.
        remembered = {case: self._remembered.get(hash(case)) for case in cases}
        unfinished = [case for case, verdict in remembered.items() if verdict is None]
        new_verdicts: dict[Case, Verdict] = {}
        # First a twentieth of the limit, then the full limit for the cases that need it.
        for share in TURN_SHARES:
            if unfinished:
                new_verdicts |= self._verdicts_in_turn(unfinished, share)
                unfinished = [case for case in unfinished if new_verdicts[case].failure == UNFINISHED]
        for case, verdict in new_verdicts.items():
            if verdict.failure is not None and verdict.failure not in self._reported:
                # The log key `grader/unscorable_share` shows later failures of this kind.
                self._reported.add(verdict.failure)
                message = "a comparison %s, and its answer is unscorable: %.80r against %.80r"
                logger.warning(message, verdict.failure, *case)
        return [new_verdicts.get(case) or cast(Verdict, remembered[case]) for case in cases]

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
        """Returns the verdict on a case, or the failure for which its turn was given up, and remembers the verdict."""
        if turn.failure_of_remaining is not None:
            return Verdict(None, turn.failure_of_remaining)
        outcome = self._verdict_of_worker(case, turn.seconds_per_case)
        if isinstance(outcome, Verdict):
            self._remember(case, outcome)
            return outcome
        if outcome is _NoVerdict.NO_LINE_IN_TIME:
            turn.failure_of_remaining = NO_PROCESSOR_TIME
            return Verdict(None, NO_PROCESSOR_TIME)
        verdict = Verdict(None, UNFINISHED)
        # Too many cases that do not end would hold up the training, so the turn then ends for all other cases.
        turn.unfinished_cases_left -= 1
        if turn.unfinished_cases_left < 1:
            turn.failure_of_remaining = TOO_MANY_UNFINISHED
        # A case that did not end is tried again, unless it has exceeded the full limit. If the whole worker process
        # has ended, something else may have stopped it.
        has_full_limit = turn.seconds_per_case == self._full_limit_seconds
        if outcome is _NoVerdict.LIMIT_EXCEEDED and has_full_limit:
            self._remember(case, verdict)
        return verdict

    def _verdict_of_worker(self, case: Case, seconds: float) -> Verdict | _NoVerdict:
        """Sends a case to a free worker process and returns its verdict, or why there is none."""
        request = json.dumps([*case, seconds]) + "\n"
        # `None` if the free process is not running yet, or was ended.
        worker = self._free_workers.get()
        line: str | _NoVerdict = _NoVerdict.WORKER_ENDED
        # An `OSError` means that the pipe is broken, or that the system cannot start a process.
        with contextlib.suppress(OSError):
            worker = worker or _Worker()
            line = worker.reply_line(request, MAX_WAIT_SECONDS)
        if isinstance(line, str):
            self._free_workers.put(worker)
            self._has_answered = True
            # Such as [true, null] or [null, "raised ValueError"]; `null` if the comparison exceeded a limit.
            reply = json.loads(line)
            return _NoVerdict.LIMIT_EXCEEDED if reply is None else Verdict(*reply)
        # A process without a line has ended or hangs; the next case starts another.
        self._free_workers.put(None)
        if worker is not None:
            # If no process has answered so far, an error such as a missing package will stop every other one, too.
            exit_code = worker.end()
            if exit_code == ERROR_EXIT_CODE and not self._has_answered:
                raise RuntimeError("the grader's worker process did not start, so no answer can be graded; see above")
        return line

    def _remember(self, case: Case, verdict: Verdict) -> None:
        if len(self._remembered) >= MAX_REMEMBERED:
            self._remembered.clear()
        self._remembered[hash(case)] = verdict
