"""Runs math-verify in worker processes with a hard limit of processor time per case, in any thread and launcher."""

import atexit
import contextlib
import hashlib
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import LifoQueue
from typing import IO, cast


logger = logging.getLogger(__name__)

Case = tuple[str | None, str]

READY = "ready"  # a worker's first line, when it can compare
OUT_OF_TIME = "ran out of time"

STARTUP_SECONDS = 120.0  # importing math-verify on a busy machine
START_ATTEMPTS = 3
TURNS = (0.05, 1.0)  # shares of a case's limit; nearly every comparison that ends needs only the first
LOST_LIMITS = 2  # limits of a case that each worker may lose to hanging cases in each turn
PROBE = r"\boxed{\sqrt{2}}"  # an easy answer: if the comparison with it fails too, the gold is to blame
MAX_KNOWN = 65_536  # verdicts; about 12 MB

KILLED = "lost its worker process twice (the system ends processes mostly for want of memory)"
STARVED = "got too little processor time (the machine is overloaded)"
CROWDED_OUT = "came in one batch with too many that ran out of time"
NO_WORKER = "found no worker that starts ({}; free memory, or raise the limit on processes, ulimit -u)"


@dataclass(frozen=True)
class Verdict:
    """The result of a comparison.

    Args:
        is_equal (`bool`, *optional*):
            Whether the answer equals the gold; `None` if that is not known.
        failure (`str`, *optional*):
            Why the comparison did not end, if it did not. Then `is_equal` is False if the answer is to blame, and
            `None` if it is not.
    """

    is_equal: bool | None
    failure: str | None = None

    @property
    def is_blamed(self) -> bool:
        """Whether the comparison did not end, and the compared texts are to blame."""
        return self.failure is not None and self.is_equal is False


class _NotStarted(Exception):
    """A worker did not start, and why; `is_broken` if it gave up by itself, as with a missing package."""

    def __init__(self, cause: str, is_broken: bool):
        super().__init__(cause)
        self.is_broken = is_broken


class _Worker:
    """One worker process.

    Raises:
        `_NotStarted`: If it does not start.
    """

    def __init__(self) -> None:
        self.is_late = False
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 as long-lived as the process that writes to it
        try:
            self._process = subprocess.Popen(
                # -P: a file of the working directory must not stand in for a module
                [sys.executable, "-P", "-m", "leash_trl.rewards.grader_worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                encoding="utf-8",
                # One thread each, no GPU memory, as the trainer needs both; the modules that this process would load.
                env={
                    **os.environ,
                    "OMP_NUM_THREADS": "1",
                    "CUDA_VISIBLE_DEVICES": "",
                    "PYTHONPATH": os.pathsep.join(sys.path),
                },
                process_group=0,  # Ctrl-C is for the parent, which then ends its workers
            )
        except OSError as error:
            self._errors.close()
            raise _NotStarted(str(error), isinstance(error, FileNotFoundError | PermissionError)) from error
        self._requests, self._answers = cast(IO[str], self._process.stdin), cast(IO[str], self._process.stdout)
        if self._next_line(STARTUP_SECONDS).strip() != READY:
            raise self._not_started()

    def _not_started(self) -> _NotStarted:
        with contextlib.suppress(subprocess.TimeoutExpired):  # it may have closed its output only
            self._process.wait(timeout=5)
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip()[-500:]
        self.kill()
        code = self._process.returncode
        ending = f"not ready within {STARTUP_SECONDS:g} s" if self.is_late else f"exit code {code}"
        return _NotStarted(f"{ending}; it said: {said}", is_broken=code > 0)

    def _next_line(self, seconds: float, request: str = "") -> str:
        """The worker's next line; `""` if it has ended, or was ended because the wait is over."""
        timer = threading.Timer(seconds, self._end_late)
        timer.daemon = True
        timer.start()
        try:
            self._requests.write(request)
            self._requests.flush()
            return self._answers.readline()
        except OSError:  # a broken pipe
            return ""
        finally:
            timer.cancel()

    def _end_late(self) -> None:
        self.is_late = True
        self.end()

    def ask(self, case: Case, seconds: float, max_wait_seconds: float) -> Verdict | None:
        """The verdict; `None` if there is none, and then the worker is useless."""
        request = json.dumps({"answer": case[0], "gold": case[1], "seconds": seconds})
        try:
            return Verdict(**json.loads(self._next_line(max_wait_seconds, request + "\n")))
        except (ValueError, TypeError):  # cut short, or another's words
            return None

    def end(self) -> None:
        """Ends the process and the one that it forked, from any thread."""
        if self._process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):  # they have ended; macOS says it the second way
            os.killpg(self._process.pid, signal.SIGKILL)

    def kill(self) -> None:
        """Ends the process and clears up after it."""
        self.end()
        self._process.wait()
        self._errors.close()
        self._answers.close()
        with contextlib.suppress(OSError):  # a request that it never took
            self._requests.close()


@dataclass
class _Turn:
    """The shared state of comparisons that run side by side under one limit.

    Args:
        seconds (`float`):
            Processor time of each.
        timeouts_left (`float`):
            How many more may exceed it.
        given_up (`str`, *optional*):
            Why the rest is not compared, if so.
        busy (`set[_Worker]`):
            Workers that are comparing.
    """

    seconds: float
    timeouts_left: float
    given_up: str | None = None
    busy: set[_Worker] = field(default_factory=set)


def default_size() -> int:
    """Number of workers: the cores that this process may count as its own, at least 1 and at most 8."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(8, max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE") or "1")))


class GraderPool:
    """A few worker processes that compare answers; a case that exceeds its limits does not harm the run.

    The limit of a comparison is its own processor time, so a busy machine makes no answer wrong. An answer that
    exceeds it, or runs out of memory, is wrong, unless its gold also does so with another answer. A failure that says
    nothing about the answer makes it unscorable: a worker that is killed twice, does not start, or gets no processor.

    A call compares in two turns: all cases with a twentieth of the limit, which is enough for nearly all that end,
    then the remaining cases with the full limit. So quick cases do not wait for hanging ones. In each turn every
    worker may lose two limits to hanging cases, 40 s in a call; then the rest of the turn is unscorable. Workers
    compare side by side. Under torchrun each process has its own pool and bound, and its share of the cores.

    The pool remembers each pair, also one that exceeded its limits: completions of one problem mostly give the same
    few answers. The next call tries unscorable pairs again.

    Args:
        size (`int`, *optional*):
            Number of worker processes, started when first needed; defaults to [`default_size`].
        seconds_per_case (`float`, *optional*, defaults to `10.0`):
            Limit of processor time for one comparison, in seconds: math-verify's own limit for reading and comparing
            together.
        max_wait_seconds (`float`, *optional*, defaults to `60.0`):
            Wall time after which a comparison, and the rest of its turn, counts as starved. Other ranks wait ten
            minutes for this one before they end the run.
    """

    def __init__(
        self, size: int | None = None, seconds_per_case: float = 10.0, max_wait_seconds: float = 60.0
    ) -> None:
        self._seconds = seconds_per_case
        self._max_wait = max_wait_seconds
        self._size = default_size() if size is None else size
        # None stands for a worker that is not running
        self._free: LifoQueue[_Worker | None] = LifoQueue()
        for _ in range(self._size):
            self._free.put(None)
        self._threads = ThreadPoolExecutor(self._size, thread_name_prefix="grader")
        self._known: dict[bytes, Verdict] = {}  # replaced, never changed: threads may be reading it
        self._has_started = False
        self._said: set[str] = set()
        self._owner = os.getpid()
        atexit.register(self.close)

    def verdicts(self, cases: Sequence[Case]) -> list[Verdict]:
        """Whether each answer equals its gold.

        Args:
            cases (`Sequence[tuple[str | None, str]]`):
                Pairs of answer and gold, each an expression of [`~leash_trl.rewards.answer.Answer`]. Without an
                answer, the verdict tells whether the gold can be read.

        Returns:
            `list[Verdict]`: A comparison that did not end has a `failure`. Each kind of failure is a warning the first
            time, and logged at the level debug after that.

        Raises:
            `RuntimeError`: If no worker ever started and each attempt gave up by itself.
        """
        verdicts = {case: self._recalled(case) for case in dict.fromkeys(cases)}
        new = self._compared([case for case, verdict in verdicts.items() if verdict is None])
        blamed = [case for case, verdict in new.items() if verdict.is_blamed and case[0] not in (None, PROBE)]
        probes = self.verdicts([(PROBE, gold) for _, gold in blamed]) if blamed else []
        for case, probe in zip(blamed, probes, strict=True):
            if probe.is_equal is None or probe.failure:
                new[case] = Verdict(None, f"have a gold that {probe.failure or 'cannot be read'}")
        self._remember(new)
        self._say_failures(new)
        return [new.get(case) or cast(Verdict, verdicts[case]) for case in cases]

    def _recalled(self, case: Case) -> Verdict | None:
        """The verdict, if it is known; a gold that is to blame for one answer is to blame for all."""
        answer, gold = case
        probe = self._known.get(_digest((PROBE, gold)))
        if probe and probe.failure and answer not in (None, PROBE):
            return Verdict(None, f"have a gold that {probe.failure}")
        return self._known.get(_digest(case))

    def _remember(self, new: dict[Case, Verdict]) -> None:
        lasting = {
            _digest(case): verdict for case, verdict in new.items() if verdict.failure is None or verdict.is_blamed
        }
        self._known = self._known | lasting if len(self._known) + len(lasting) <= MAX_KNOWN else lasting

    def _say_failures(self, new: dict[Case, Verdict]) -> None:
        """Warns of each kind of failure once; `grader/unscorable_share` shows later ones."""
        for verdict in dict.fromkeys(new.values()):
            if verdict.failure:
                cases = [case for case, other in new.items() if other == verdict]
                kind = verdict.failure.partition(" (")[0]
                logger.log(
                    logging.DEBUG if kind in self._said else logging.WARNING,
                    "%d of %d comparisons %s; the answers are %s; the first is %.80r against %.80r",
                    len(cases),
                    len(new),
                    verdict.failure,
                    "unscorable" if verdict.is_equal is None else "wrong",
                    *cases[0],
                )
                self._said.add(kind)

    def _compared(self, cases: list[Case]) -> dict[Case, Verdict]:
        verdicts: dict[Case, Verdict] = {}
        for share in TURNS:
            turn = _Turn(share * self._seconds, timeouts_left=LOST_LIMITS * self._size / share)
            futures = {case: self._threads.submit(self._verdict, case, turn) for case in cases}
            try:
                verdicts |= {case: future.result() for case, future in futures.items()}
            finally:  # after Ctrl-C the rest of the batch would be compared before Python could end
                turn.given_up = "was interrupted"
                for future in futures.values():
                    future.cancel()
                for worker in list(turn.busy):
                    worker.end()
            cases = [case for case in cases if verdicts[case].failure == OUT_OF_TIME]
        return verdicts

    def _verdict(self, case: Case, turn: _Turn) -> Verdict:
        verdict = self._attempt(case, turn) or self._attempt(case, turn) or Verdict(None, KILLED)
        if verdict.failure == OUT_OF_TIME:
            turn.timeouts_left -= 1
            if turn.timeouts_left < 1:
                turn.given_up = turn.given_up or CROWDED_OUT
        return verdict

    def _attempt(self, case: Case, turn: _Turn) -> Verdict | None:
        """The verdict, or a failure; `None` if the worker ended in the middle."""
        worker, is_usable = self._free.get(), True
        try:
            if turn.given_up:
                return Verdict(None, turn.given_up)
            is_usable = False
            worker = worker or self._started()
            turn.busy.add(worker)
            verdict = worker.ask(case, turn.seconds, self._max_wait)
            is_usable = verdict is not None
            if worker.is_late and not is_usable:
                turn.given_up = STARVED
            return verdict
        except _NotStarted as error:
            turn.given_up = turn.given_up or NO_WORKER.format(error)
            return Verdict(None, turn.given_up)
        finally:
            if worker:
                turn.busy.discard(worker)
                if not is_usable:
                    worker.kill()
            self._free.put(worker if is_usable else None)

    def _started(self) -> _Worker:
        """A new worker; raises `_NotStarted` if it does not start, and as [`verdicts`] if none ever will."""
        deadline = time.monotonic() + STARTUP_SECONDS
        for _ in range(START_ATTEMPTS):
            try:
                worker = _Worker()
                self._has_started = True
                return worker
            except _NotStarted as error:
                fault = error
            if time.monotonic() > deadline:
                break
        if fault.is_broken and not self._has_started:
            raise RuntimeError(f"the grader's worker process did not start, so no answer can be graded: {fault}")
        raise fault

    def close(self) -> None:
        """Ends all idle workers; later comparisons start new ones. A forked process owns none, so it ends none."""
        if self._owner != os.getpid():
            return
        idle = [self._free.get() for _ in range(self._free.qsize())]
        for worker in idle:
            if worker is not None:
                worker.kill()
            self._free.put(None)


def _digest(case: Case) -> bytes:
    return hashlib.blake2b(ascii(case).encode(), digest_size=16).digest()
