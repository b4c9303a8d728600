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

Case = tuple[str | None, str]

TURNS = (0.05, 1.0)  # shares of a case's limit; nearly every comparison that ends needs only the first share
MAX_WAIT = 120.0  # seconds for start and answer; then the turn is given up, because other ranks wait ten minutes
LOST_LIMITS = 2  # number of a case's limits that each worker process may lose to hanging cases in each turn
MAX_KNOWN = 65_536  # remembered verdicts

BROKEN = 1  # Python's exit code after an uncaught error, for example because a package is missing
UNFINISHED = "ran out of time or memory, or lost their worker process"
CROWDED_OUT = "came in one batch with too many that did not end"
STARVED = "got too little processor time (the machine is overloaded)"


@dataclass(frozen=True)
class Verdict:
    """Result of a comparison: whether both answers are equal (`None` if undecided), and its failure, if any."""

    is_equal: bool | None
    failure: str | None = None


@dataclass
class _Turn:
    """State that parallel comparisons share: their limit, the losses left, and why the other cases are given up."""

    seconds: float
    losses_left: float
    given_up: str | None = None


class _Worker:
    """One worker process, which ends when its input or its parent process ends."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            # -P keeps files of the working directory from standing in for modules.
            [sys.executable, "-P", "-m", "leash_trl.rewards.grader.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # The trainer needs the other cores and the GPU; PYTHONPATH makes both processes load the same modules.
            env=os.environ
            | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": os.pathsep.join(sys.path)},
            process_group=0,  # Ctrl-C stops only the parent process
        )

    def ask(self, request: str, seconds: float) -> str | None:
        """Sends a request and returns the answer; `""` if the process has ended, `None` if no answer comes in time."""
        requests, answers = cast(IO[str], self.process.stdin), cast(IO[str], self.process.stdout)
        requests.write(request)
        requests.flush()
        poll = select.poll()
        poll.register(answers, select.POLLIN)
        return answers.readline() if poll.poll(1000 * seconds) else None

    def end(self) -> int:
        """Ends the worker process and the process that it forked, and returns the exit code of the worker process."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=1)
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it has ended; macOS raises the second error
            os.killpg(self.process.pid, signal.SIGKILL)
        with contextlib.suppress(OSError):  # the process never read its request
            self.process.communicate()
        return self.process.returncode


def default_size() -> int:
    """Returns the number of worker processes: the cores that this process may count as its own, from 1 to 8."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(8, max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE") or "1")))


class GraderPool:
    """Worker processes that compare answers; a case that exceeds its limits does not harm the training run.

    The limit of a comparison is its own processor time, so a busy machine changes no verdict. A call compares in two
    turns: all cases with a twentieth of the limit, then the cases that did not end, for whatever reason, with the full
    limit. Quick cases thus do not wait for hanging cases, and a case whose worker process is killed is tried again. In
    each turn, every worker process may lose two limits to cases that do not end, 40 s in a call; other cases of the
    turn then get no verdict. The pool remembers each pair, also pairs beyond their limits. Any thread may call.

    Args:
        size (`int`, *optional*): Number of worker processes, started when first needed. Defaults to [`default_size`].
        seconds_per_case (`float`, *optional*, defaults to `10.0`): Processor time; math-verify's limits have this sum.
    """

    def __init__(self, size: int | None = None, seconds_per_case: float = 10.0) -> None:
        self._seconds = seconds_per_case
        self._size = size or default_size()
        self._free: LifoQueue[_Worker | None] = LifoQueue()  # `None` stands for a process that is not running
        for _ in range(self._size):
            self._free.put(None)
        self._known: dict[int, Verdict] = {}  # keyed by hash, because answers can be long
        self._has_answered = False
        self._said: set[str] = set()

    def verdicts(self, cases: Sequence[Case]) -> list[Verdict]:
        """Returns the verdict on whether each answer equals its reference answer.

        Both are expressions of [`~leash_trl.rewards.grader.answer.Answer`]. If an answer is `None`, the verdict tells
        whether the reference answer can be read. The first failure of each kind is a warning. Raises `RuntimeError` if
        no worker process ever answered and one stopped with an error, as without math-verify.
        """
        known = {case: self._known.get(hash(case)) for case in cases}
        left = [case for case, verdict in known.items() if verdict is None]
        new: dict[Case, Verdict] = {}
        for share in TURNS if left else ():
            turn = _Turn(share * self._seconds, losses_left=LOST_LIMITS * self._size / share)
            with ThreadPoolExecutor(self._size, thread_name_prefix="grader") as threads:
                new |= zip(left, threads.map(partial(self._verdict, turn=turn), left), strict=True)
            left = [case for case in left if new[case].failure == UNFINISHED]
        self._say_failures(new)
        return [new.get(case) or cast(Verdict, known[case]) for case in cases]

    def _say_failures(self, new: dict[Case, Verdict]) -> None:
        """Logs a warning for the first failure of each kind; `grader/unscorable_share` shows later failures."""
        for failure in {verdict.failure for verdict in new.values()} - {None, *self._said}:
            cases = [case for case, verdict in new.items() if verdict.failure == failure]
            message = "%d of %d comparisons %s, and their answers are unscorable; the first is %.80r against %.80r"
            logger.warning(message, len(cases), len(new), failure, *cases[0])
            self._said.add(cast(str, failure))

    def _verdict(self, case: Case, turn: _Turn) -> Verdict:
        if turn.given_up:
            return Verdict(None, turn.given_up)
        worker: _Worker | None = self._free.get()
        line: str | None = ""
        with contextlib.suppress(OSError):  # the pipe is broken, or the system cannot start a process
            worker = worker or _Worker()
            line = worker.ask(json.dumps([*case, turn.seconds]) + "\n", MAX_WAIT)
        self._free.put(worker if line else None)
        if worker and not line and worker.end() == BROKEN and not self._has_answered:
            raise RuntimeError("the grader's worker process did not start, so no answer can be graded; see above")
        if line is None:
            turn.given_up = STARVED
            return Verdict(None, STARVED)
        self._has_answered = self._has_answered or line != ""
        reply = json.loads(line or "null")
        verdict = Verdict(*(reply or (None, UNFINISHED)))
        if reply is None:
            turn.losses_left -= 1
            if turn.losses_left < 1:
                turn.given_up = CROWDED_OUT
        if reply or (line and turn.seconds == self._seconds):
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[hash(case)] = verdict
        return verdict
