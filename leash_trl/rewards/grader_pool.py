"""Killable workers for math-verify: a hard wall-clock limit per case, in any thread and under any launcher."""

import atexit
import json
import logging
import os
import queue
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import IO, cast


logger = logging.getLogger(__name__)

STARTUP_SECONDS = 60.0  # importing math-verify on a busy machine


class _Worker:
    """One worker process and the thread that reads its answers."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "leash_trl.rewards.grader_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            # One thread each, and no GPU memory: the trainer needs both.
            env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        )
        self._requests = cast(IO[str], self._process.stdin)
        self._answers: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.is_warm = False

    def _read(self) -> None:
        for line in cast(IO[str], self._process.stdout):
            self._answers.put(line)
        self._answers.put("")  # the process has ended

    def ask(self, answer: str, gold: str, seconds: float) -> bool | None:
        """The verdict; raises `TimeoutError` past the limit and `ChildProcessError` if the worker died."""
        try:
            self._requests.write(json.dumps({"answer": answer, "gold": gold}) + "\n")
            self._requests.flush()
            line = self._answers.get(timeout=seconds if self.is_warm else seconds + STARTUP_SECONDS)
        except queue.Empty as error:
            raise TimeoutError from error
        except BrokenPipeError as error:
            raise ChildProcessError from error
        if not line:
            raise ChildProcessError
        self.is_warm = True
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
        self._free: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        for _ in range(size):
            self._free.put(None)
        self._threads = ThreadPoolExecutor(size, thread_name_prefix="grader")
        atexit.register(self.close)

    def verdicts(self, cases: list[tuple[str, str]]) -> list[bool | None]:
        """Whether each answer equals its gold.

        Args:
            cases (`list[tuple[str, str]]`):
                Pairs of answer and gold, without boxes.

        Returns:
            `list[bool | None]`: `None` where the gold cannot be parsed; False also where the comparison ran out of
            time or memory, which is logged.
        """
        return list(self._threads.map(lambda case: self._verdict(*case), cases))

    def _verdict(self, answer: str, gold: str) -> bool | None:
        worker = self._free.get() or _Worker()
        survivor: _Worker | None = worker
        try:
            return worker.ask(answer, gold, self._seconds)
        except (TimeoutError, ChildProcessError) as error:
            worker.kill()
            survivor = None
            reason = "ran out of time" if isinstance(error, TimeoutError) else "killed its worker"
            logger.warning("comparing %.80r with %.80r %s and counts as wrong", answer, gold, reason)
            return False
        finally:
            self._free.put(survivor)

    def close(self) -> None:
        """Ends all idle workers; later comparisons start new ones."""
        for _ in range(self._free.qsize()):
            worker = self._free.get()
            if worker is not None:
                worker.kill()
            self._free.put(None)
