"""Killable workers for math-verify: a hard wall-clock limit per case, in any thread and under any launcher."""

import atexit
import contextlib
import json
import logging
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import IO, cast

from leash_trl.rewards.grader_worker import READY


logger = logging.getLogger(__name__)

STARTUP_SECONDS = 120.0  # importing math-verify on a busy machine
MAX_KNOWN = 65_536
MAX_KNOWN_LENGTH = 1_000  # characters of a remembered pair: 65,536 of them stay under 100 MB


@dataclass(frozen=True)
class Verdict:
    """What a comparison came to.

    Args:
        is_equal (`bool`, *optional*):
            Whether the answer equals the gold; `None` where the gold cannot be read.
        failure (`str`, *optional*):
            Why the comparison did not end, if it did not; then `is_equal` is False.
    """

    is_equal: bool | None
    failure: str | None = None


class _Worker:
    """One worker process and the thread that reads its answers.

    Raises:
        `RuntimeError`: If the process cannot start, with what it said.
    """

    def __init__(self, seconds_per_case: float) -> None:
        self._seconds = seconds_per_case
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 as long-lived as the process that writes to it
        self._process = subprocess.Popen(
            # -P: a file of the working directory must not stand in for a module. Its own alarm comes after our clock.
            [sys.executable, "-P", "-m", "leash_trl.rewards.grader_worker", str(int(seconds_per_case) + 5)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            encoding="utf-8",
            # One thread each, no GPU memory, as the trainer needs both, and the modules that this process would load.
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "CUDA_VISIBLE_DEVICES": "",
                "PYTHONPATH": os.pathsep.join(sys.path),
            },
            process_group=0,  # Ctrl-C is for the parent, which then ends its workers
        )
        self._requests = cast(IO[str], self._process.stdin)
        self._answers: queue.Queue[str] = queue.Queue()
        self.is_worn = False
        threading.Thread(target=self._read, daemon=True).start()
        self._wait_until_ready()

    def _read(self) -> None:
        with cast(IO[str], self._process.stdout) as answers:
            for line in answers:
                self._answers.put(line)
        self._answers.put("")  # the process has ended

    def _wait_until_ready(self) -> None:
        try:
            is_ready = self._answers.get(timeout=STARTUP_SECONDS).strip() == READY
        except queue.Empty:
            is_ready = False
        if not is_ready:
            self._errors.seek(0)
            said = self._errors.read().decode(errors="replace").strip()[-2000:]
            self.kill()
            raise RuntimeError(
                f"the grader's worker process did not start, so no answer can be graded; it said: {said}"
            )

    def ask(self, answer: str | None, gold: str) -> Verdict:
        """The verdict; raises `TimeoutError` past the limit and `ChildProcessError` if the worker died.

        After either the worker is of no use: what it says later would be read as another case's verdict.
        """
        try:
            self._requests.write(json.dumps({"answer": answer, "gold": gold}) + "\n")
            self._requests.flush()
            line = self._answers.get(timeout=self._seconds)
        except queue.Empty as error:
            raise TimeoutError from error
        except BrokenPipeError as error:
            raise ChildProcessError from error
        if not line:
            raise ChildProcessError
        said = json.loads(line)
        self.is_worn = said["is_worn"]
        return Verdict(said["is_equal"], said["failure"])

    def kill(self) -> None:
        """Ends the process, whatever it is doing."""
        self._process.kill()
        self._process.wait()
        self._errors.close()
        with contextlib.suppress(BrokenPipeError):  # a request that it never took
            self._requests.close()


def default_size() -> int:
    """Number of workers: the cores that this process may count as its own, at least 1 and at most 8."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(8, max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE") or "1")))


class GraderPool:
    """A few worker processes that compare answers; a case that runs over its limits costs one worker, not the run.

    A pair that was compared before is not compared again: completions of one problem mostly give the same few answers.
    A comparison that failed is not remembered, as a busy machine may have been the reason.

    Args:
        size (`int`, *optional*):
            Number of worker processes, started when first needed; defaults to [`default_size`].
        seconds_per_case (`float`, *optional*, defaults to `10.0`):
            Wall-clock limit for one comparison, in seconds: math-verify's own for reading and comparing together.
    """

    def __init__(self, size: int | None = None, seconds_per_case: float = 10.0):
        self._seconds = seconds_per_case
        size = default_size() if size is None else size
        # None stands for a worker that is not running
        self._free: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        for _ in range(size):
            self._free.put(None)
        self._threads = ThreadPoolExecutor(size, thread_name_prefix="grader")
        self._known: dict[tuple[str | None, str], Verdict] = {}  # replaced, never changed: threads may be reading it
        self._owner = os.getpid()
        atexit.register(self.close)

    def verdicts(self, cases: Sequence[tuple[str | None, str]]) -> list[Verdict]:
        """Whether each answer equals its gold.

        Args:
            cases (`Sequence[tuple[str | None, str]]`):
                Pairs of answer and gold, each an expression of [`~leash_trl.rewards.answer.Answer`]. Without an
                answer, the verdict tells whether the gold can be read.

        Returns:
            `list[Verdict]`: A comparison that ran out of time or memory is False, has a `failure`, and is logged.

        Raises:
            `RuntimeError`: If no worker can start.
        """
        known = self._known
        futures = {
            case: self._threads.submit(self._verdict, *case) for case in dict.fromkeys(cases) if case not in known
        }
        try:
            new = {case: future.result() for case, future in futures.items()}
        finally:
            for future in futures.values():
                future.cancel()  # after Ctrl-C the rest of the batch would be compared before Python could end
        self._remember(new)
        return [new[case] if case in new else known[case] for case in cases]

    def _remember(self, new: dict[tuple[str | None, str], Verdict]) -> None:
        short = {
            (answer, gold): verdict
            for (answer, gold), verdict in new.items()
            if verdict.failure is None and len(answer or "") + len(gold) <= MAX_KNOWN_LENGTH
        }
        self._known = self._known | short if len(self._known) + len(short) <= MAX_KNOWN else short

    def _verdict(self, answer: str | None, gold: str) -> Verdict:
        worker = self._free.get()
        is_usable = False
        try:
            worker = worker or _Worker(self._seconds)
            verdict = worker.ask(answer, gold)
            is_usable = not worker.is_worn
        except (TimeoutError, ChildProcessError) as error:
            verdict = Verdict(False, "ran out of time" if isinstance(error, TimeoutError) else "killed its worker")
        finally:
            if worker and not is_usable:
                worker.kill()
            self._free.put(worker if is_usable else None)
        if verdict.failure:
            logger.warning("comparing %.80r with %.80r %s and counts as wrong", answer, gold, verdict.failure)
        return verdict

    def close(self) -> None:
        """Ends all idle workers; later comparisons start new ones. Does nothing in a forked process: not its own."""
        if self._owner != os.getpid():
            return
        idle = [self._free.get() for _ in range(self._free.qsize())]
        for worker in idle:
            if worker is not None:
                worker.kill()
            self._free.put(None)
