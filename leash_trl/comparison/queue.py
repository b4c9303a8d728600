"""Runs commands as child processes, several at a time, with their output in files. They end with this process.

A child is `python -m leash_trl.comparison.queue MODULE ARGUMENT...`. It runs the module in its own process group,
which ends when the pipe that is its standard input is closed, however the parent process has ended.
"""

import os
import re
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple


Commands = Callable[[], Iterable[list[str]]]

SECONDS_BEFORE_KILL = 30  # seconds between SIGTERM and SIGKILL
LONGEST_CAUSE = 300  # characters
# beginnings of the names of environment variables that could hide or change the bars from which progress is read
BAR_VARIABLE_PREFIXES = ("TQDM_", "TRANSFORMERS_VERBOSITY")

# the line of an exception below its traceback, or the error line of a `leash` command
CAUSE_PATTERN = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\S.*)|leash \w+: (?!warning: )(.+)")


class EndedJob(NamedTuple):
    """How a job ended.

    Args:
        log_file (`Path`): File with the output of its commands.
        exit_code (`int`): Exit code of its last command, which is not 0 if the job failed.
        seconds (`float`): Duration of the job.
    """

    log_file: Path
    exit_code: int
    seconds: float


def run_jobs(
    jobs: Mapping[Path, Commands], devices: Sequence[str | None], seconds_between: float | None = None
) -> Iterator[EndedJob | None]:
    """Runs jobs and yields each job when it ends. A failed job does not stop the others.

    Args:
        jobs (`Mapping[Path, Commands]`): For the log file of each job, a function that returns the job's commands when
            the job starts. A command is a module with its arguments.
        devices (`Sequence[str | None]`): `CUDA_VISIBLE_DEVICES` for each of the jobs that run at the same time,
            written at the top of a job's log; `None` keeps the environment unchanged.
        seconds_between (`float`): Time after which `None` is yielded if no job has ended; without it, only ended jobs
            are yielded.
    """
    # The reading end of this pipe is the standard input of the children, and nobody writes into the pipe. When this
    # process ends, the system closes the writing end, which the children notice as the end of their input.
    lifeline, writing_end = os.pipe()
    # values of `CUDA_VISIBLE_DEVICES` that no job uses now
    free_devices: SimpleQueue[str | None] = SimpleQueue()
    for visible in devices:
        free_devices.put(visible)
    pool = ThreadPoolExecutor(len(devices))
    try:
        running = set()
        for log_file, commands in jobs.items():
            running.add(pool.submit(_run_job, log_file, commands, free_devices, lifeline))
        yield from _as_they_end(running, seconds_between)
    finally:
        # Jobs that have not started are cancelled, else the pool would start them when others end.
        pool.shutdown(wait=False, cancel_futures=True)
        os.close(writing_end)  # ends the children
        pool.shutdown()  # waits until they have ended
        os.close(lifeline)


def _as_they_end(running: set[Future[EndedJob]], seconds_between: float | None) -> Iterator[EndedJob | None]:
    """Yields jobs as they end, and `None` whenever no job has ended for `seconds_between`."""
    while running:
        ended, running = wait(running, seconds_between, FIRST_COMPLETED)
        for job in ended:
            yield job.result()
        if not ended:
            yield None


def _run_job(log_file: Path, commands: Commands, free_devices: SimpleQueue[str | None], lifeline: int) -> EndedJob:
    """Runs commands one after the other on free devices until one fails."""
    start = time.monotonic()
    exit_code = 0  # of a job without commands
    devices = free_devices.get()  # waits until a job puts its devices back
    environment = {name: value for name, value in os.environ.items() if not name.startswith(BAR_VARIABLE_PREFIXES)}
    log_file.parent.mkdir(parents=True, exist_ok=True)
    with open(log_file, "wb") as log:
        if devices is not None:
            environment["CUDA_VISIBLE_DEVICES"] = devices
            log.write(f"CUDA_VISIBLE_DEVICES={devices}\n".encode())
            log.flush()  # before the first command writes
        # This module starts the module of a command, and ends it when the pipe `lifeline` is closed.
        start_child = partial(subprocess.call, stdin=lifeline, stdout=log, stderr=log, start_new_session=True)
        for command in commands():
            exit_code = start_child([sys.executable, "-m", __name__, *command], env=environment)
            if exit_code != 0:
                break
    free_devices.put(devices)
    return EndedJob(log_file, exit_code, seconds=time.monotonic() - start)


def cause_of_failure(log_file: Path) -> str:
    """Returns why a command failed, by its log: the last exception or error line, else the last line; at most
    `LONGEST_CAUSE` characters."""
    text = log_file.read_text(encoding="utf-8", errors="replace")
    lines = re.split(r"[\r\n]", text.strip())  # a progress bar ends with a carriage return
    # of the two groups of a match, one is empty
    causes = [exception or error_line for exception, error_line in CAUSE_PATTERN.findall(text)]
    last = causes[-1] if causes else lines[-1]
    return last.strip()[:LONGEST_CAUSE]


def _end_with_parent() -> None:
    """Waits until the parent process has ended, and then ends the process group of this process."""
    os.read(sys.stdin.fileno(), 1)  # returns when the parent's end of the pipe is closed
    os.killpg(0, signal.SIGTERM)
    time.sleep(SECONDS_BEFORE_KILL)  # torchrun first ends its workers, which are not in this process group
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
