"""Runs commands as separate processes, a few at a time, with their output in files."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm


POLL_SECONDS = 0.2
STOP_SECONDS = 20.0


@dataclass(frozen=True)
class Job:
    """One command.

    Args:
        name (`str`):
            What the progress bar calls it.
        command (`tuple[str, ...]`):
            Program and arguments.
        log_file (`Path`):
            Where its output goes, after what is already there.
    """

    name: str
    command: tuple[str, ...]
    log_file: Path


def run_jobs(
    jobs: list[Job],
    at_once: int,
    environment: Mapping[str, str],
    describe: Callable[[Job, int, float], str],
    num_done: int = 0,
) -> dict[Job, int]:
    """Exit codes of all jobs, which start in order. A failed job does not stop the others.

    Whatever ends this function early, such as Ctrl-C or SIGTERM, ends the processes too.

    Args:
        jobs (`list[Job]`):
            What to run.
        at_once (`int`):
            How many run at the same time.
        environment (`Mapping[str, str]`):
            All environment variables of the processes.
        describe (`Callable[[Job, int, float], str]`):
            The line to print for a job that has ended, from its exit code and its time in seconds; how many have
            ended and about how long the others take is added.
        num_done (`int`, *optional*, defaults to `0`):
            How many the progress bar counts as done from the start.
    """
    waiting = list(reversed(jobs))
    running: dict[Job, tuple[subprocess.Popen, float]] = {}
    exit_codes: dict[Job, int] = {}
    seconds: list[float] = []
    with _sigterm_as_interrupt(), tqdm(total=num_done + len(jobs), initial=num_done, unit="run") as bar:
        try:
            while waiting or running:
                while waiting and len(running) < at_once:
                    job = waiting.pop()
                    running[job] = (_start(job, environment), time.monotonic())
                    bar.set_postfix_str(", ".join(job.name for job in running))
                time.sleep(POLL_SECONDS)
                for job, (process, start) in list(running.items()):
                    if (exit_code := process.poll()) is not None:
                        del running[job]
                        exit_codes[job] = exit_code
                        duration = time.monotonic() - start
                        if exit_code == 0:
                            seconds.append(duration)
                        bar.update()
                        each = sum(seconds) / len(seconds) / at_once if seconds else 0.0
                        left = progress(bar.n, bar.total, each)
                        tqdm.write(f"{describe(job, exit_code, duration)} ({left})", file=sys.stdout)
        finally:
            _stop(process for process, _ in running.values())
    return exit_codes


def progress(num_ended: int, num_jobs: int, seconds_each: float) -> str:
    """How many jobs have ended, and about how long the others take; nothing of less than a minute.

    Example:
        >>> progress(3, 12, 60.0)
        '3 of 12 ended, about 9 min left'
    """
    minutes = (num_jobs - num_ended) * seconds_each / 60
    ended = f"{num_ended} of {num_jobs} ended"
    return f"{ended}, about {minutes:.0f} min left" if minutes >= 1 else ended


def _start(job: Job, environment: Mapping[str, str]) -> subprocess.Popen:
    job.log_file.parent.mkdir(parents=True, exist_ok=True)
    with open(job.log_file, "ab") as log:
        return subprocess.Popen(
            job.command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment
        )


def _stop(processes: Iterable[subprocess.Popen]) -> None:
    """Asks all to end, and kills those that still run after `STOP_SECONDS`."""
    processes = list(processes)
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + STOP_SECONDS
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Without it, `kill` would leave the processes running."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
