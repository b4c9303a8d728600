"""Runs commands as child processes, several at a time, with their output in files; all end with this process.

A child is `python -m leash_trl.cli.run_queue MODULE ARGUMENT...`. It runs the module in its own process group, which
ends when the pipe that is its standard input is closed, however the parent process has ended.
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
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue


Commands = Callable[[], Iterable[list[str]]]

GRACE = 30  # seconds between SIGTERM and SIGKILL

# the line of an exception below its traceback, or the error line of a `leash` command
CAUSE = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\S.*)|leash \w+: (?!warning: )(.+)")


def run_all(jobs: Mapping[Path, Commands], devices: Sequence[str | None]) -> Iterator[tuple[Path, int, float]]:
    """Runs jobs and yields log file, exit code and duration in seconds of each job when it ends. A failed job does not
    stop the others.

    Args:
        jobs (`Mapping[Path, Commands]`): Functions that return the commands of a job when it starts, by the log file
            of the job. A command is a module with its arguments.
        devices (`Sequence[str | None]`): `CUDA_VISIBLE_DEVICES` for each of the jobs that run at the same time,
            written at the top of a job's log; `None` keeps the environment unchanged.
    """
    lifeline, ours = os.pipe()
    pool, free = ThreadPoolExecutor(len(devices)), SimpleQueue[str | None]()
    for each in devices:
        free.put(each)
    try:
        started = {
            pool.submit(_run, log_file, commands, free, lifeline): log_file for log_file, commands in jobs.items()
        }
        for ended in as_completed(started):
            yield started[ended], *ended.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # so that no further job starts when one ends
        os.close(ours)
        pool.shutdown()
        os.close(lifeline)


def _run(log_file: Path, commands: Commands, free: SimpleQueue[str | None], lifeline: int) -> tuple[int, float]:
    """Runs commands one after the other on free devices until one fails."""
    start, exit_code, devices = time.monotonic(), 0, free.get()
    environment = os.environ if devices is None else {**os.environ, "CUDA_VISIBLE_DEVICES": devices}
    log_file.parent.mkdir(parents=True, exist_ok=True)
    with open(log_file, "wb") as log:
        log.write(b"" if devices is None else f"CUDA_VISIBLE_DEVICES={devices}\n".encode())
        log.flush()
        for command in commands():
            child = [sys.executable, "-m", __name__, *command]
            exit_code = subprocess.call(
                child, stdin=lifeline, stdout=log, stderr=log, start_new_session=True, env=environment
            )
            if exit_code != 0:
                break
    free.put(devices)
    return exit_code, time.monotonic() - start


def cause(log_file: Path) -> str:
    """Returns why a command failed, by its log: the last exception or error line between progress bars, else the last
    line."""
    text = log_file.read_text(encoding="utf-8", errors="replace")
    found = ["".join(parts) for parts in CAUSE.findall(text)]
    return (found or re.split(r"[\r\n]", text.strip()))[-1].strip()[:300]


def _end_with_parent() -> None:
    os.read(sys.stdin.fileno(), 1)
    os.killpg(0, signal.SIGTERM)
    time.sleep(GRACE)  # torchrun first ends its workers, which are not in this process group
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
