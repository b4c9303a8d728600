"""Killable workers for math-verify: a hard wall-clock limit per case, in any thread and under any launcher."""

import atexit
import json
import logging
import os
import queue
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import IO, cast

from leash_trl.rewards.grader_worker import READY


logger = logging.getLogger(__name__)

STARTUP_SECONDS = 120.0  # importing math-verify on a busy machine


class _Worker:
    """One worker process and the thread that reads its answers.

    Raises:
        `RuntimeError`: If the process cannot start, with what it said.
    """

    def __init__(self, seconds_per_case: float) -> None:
        self._seconds = seconds_per_case
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 as long-lived as the process that writes to it
        self._process = subprocess.Popen(
            # its own alarm comes after our clock
            [sys.executable, "-m", "leash_trl.rewards.grader_worker", str(int(seconds_per_case) + 5)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            encoding="utf-8",
            # One thread each, and no GPU memory: the trainer needs both.
            env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        )
        self._requests = cast(IO[str], self._process.stdin)
        self._answers: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self._wait_until_ready()

    def _read(self) -> None:
        for line in cast(IO[str], self._process.stdout):
            self._answers.put(line)
        self._answers.put("")  # the process has ended

    def _wait_until_ready(self) -> None:
        try:
            is_ready = self._answers.get(timeout=STARTUP_SECONDS).strip() == READY
        except queue.Empty:
            is_ready = False
        if not is_ready:
            self.kill()
            self._errors.seek(0)
            said = self._errors.read().decode(errors="replace").strip()[-2000:]
            raise RuntimeError(
                f"the grader's worker process did not start, so no answer can be graded; it said: {said}"
            )

    def ask(self, answer: str, gold: str) -> bool | None:
        """The verdict; raises `TimeoutError` past the limit and `ChildProcessError` if the worker died."""
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
        verdict: bool | None = json.loads(line)["verdict"]
        return verdict

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class GraderPool:
    """A few worker processes that compare answers; a case that runs over its time costs one worker, not the run.

    Args:
        size (`int`):
            Number of worker processes, started when first needed.
        seconds_per_case (`float`):
            Wall-clock limit for one comparison, in seconds.
    """

    def __init__(self, size: int = 2, seconds_per_case: float = 10.0):
        self._seconds = seconds_per_case
        # None stands for a worker that is not running
        self._free: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        for _ in range(size):
            self._free.put(None)
        self._threads = ThreadPoolExecutor(size, thread_name_prefix="grader")
        atexit.register(self.close)

    def verdicts(self, cases: list[tuple[str, str]]) -> list[bool | None]:
        """Whether each answer equals its gold.

        Args:
            cases (`list[tuple[str, str]]`):
                Pairs of answer and gold, without boxes and dollar signs.

        Returns:
            `list[bool | None]`: `None` where the gold cannot be parsed; False also where the comparison ran out of
            time or memory, which is logged.

        Raises:
            `RuntimeError`: If no worker can start.
        """
        return list(self._threads.map(lambda case: self._verdict(*case), cases))

    def _verdict(self, answer: str, gold: str) -> bool | None:
        worker = self._free.get()
        try:
            worker = worker or _Worker(self._seconds)
            return worker.ask(answer, gold)
        except (TimeoutError, ChildProcessError) as error:
            cast(_Worker, worker).kill()
            worker = None
            reason = "ran out of time" if isinstance(error, TimeoutError) else "killed its worker"
            logger.warning("comparing %.80r with %.80r %s and counts as wrong", answer, gold, reason)
            return False
        finally:
            self._free.put(worker)

    def close(self) -> None:
        """Ends all idle workers; later comparisons start new ones."""
        idle = [self._free.get() for _ in range(self._free.qsize())]
        for worker in idle:
            if worker is not None:
                worker.kill()
            self._free.put(None)
