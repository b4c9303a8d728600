"""The child processes of a comparison: how many at once, why one failed, and that none outlives its parent."""

import os
import signal
import subprocess
import sys
import time

import pytest

from leash_trl.comparison.progress import BAR_PATTERN
from leash_trl.comparison.queue import cause_of_failure, run_jobs


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes a module that children can run, and returns its name."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)

    def write(name, code):
        (tmp_path / f"{name}.py").write_text(code)
        return name

    return write


def jobs_of(folder, commands):
    return {
        folder / f"{number}.log": lambda commands_of_job=commands_of_job: commands_of_job
        for number, commands_of_job in enumerate(commands)
    }


def test_as_many_run_at_once_as_there_are_devices_and_no_two_on_the_same(module, tmp_path):
    # each waits until two devices have been taken at the same time
    code = f"""
import os, pathlib, time
folder = pathlib.Path({str(tmp_path)!r})
taken = folder / (os.environ["CUDA_VISIBLE_DEVICES"] + ".taken")
taken.mkdir()
deadline = time.monotonic() + 60
while not (folder / "both").exists() and time.monotonic() < deadline:
    if len(list(folder.glob("*.taken"))) == 2:
        (folder / "both").touch()
    time.sleep(0.01)
taken.rmdir()
"""
    jobs = jobs_of(tmp_path, [[[module("takes", code)]]] * 4)
    assert {job.exit_code for job in run_jobs(jobs, ["0,1", "2,3"])} == {0}
    devices = {log.read_text().strip() for log in jobs}
    assert devices == {"CUDA_VISIBLE_DEVICES=0,1", "CUDA_VISIBLE_DEVICES=2,3"}
    assert (tmp_path / "both").exists()


DRAWS = """
from tqdm import tqdm
from transformers.utils.logging import WARNING, get_verbosity

if get_verbosity() <= WARNING:  # else TrainingArguments disables the bar
    list(tqdm(range(3), unit="update"))
"""


@pytest.mark.parametrize(
    ("variable", "value"),
    [("TQDM_DISABLE", "1"), ("TQDM_BAR_FORMAT", "{desc}"), ("TRANSFORMERS_VERBOSITY", "error")],
)
def test_a_child_draws_the_bars_from_which_progress_is_read(variable, value, module, tmp_path, monkeypatch):
    monkeypatch.setenv(variable, value)
    (log,) = jobs = jobs_of(tmp_path, [[[module("draws", DRAWS)]]])
    assert [job.exit_code for job in run_jobs(jobs, [None])] == [0]
    *_, last = BAR_PATTERN.finditer(log.read_text())
    assert (last["num_done"], last["total"], last["unit"]) == ("3", "3", "update")


BAR = "\r 40%|####      | 2/5 [00:01<00:01,  1.8it/s]"
TRACEBACK = 'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n    f()\n'


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (f"{BAR}{TRACEBACK}ValueError: a bad value\nmore of it\n{BAR}", "ValueError: a bad value"),
        (f"{BAR}leash train: target_length is -4\n{BAR}", "target_length is -4"),
        (f"{TRACEBACK}KeyError: 'a'\n\nDuring it:\n\n{TRACEBACK}OSError: b\n", "OSError: b"),
        (f"{TRACEBACK}OSError: a\nleash train: b\nleash train: warning: c\n{BAR}", "b"),
        (f"{BAR}\nSegmentation fault\n", "Segmentation fault"),
        ("", ""),
    ],
)
def test_the_cause_of_a_failure_is_its_error_and_no_progress_bar(log, expected, tmp_path):
    (tmp_path / "log.txt").write_text(log)
    assert cause_of_failure(tmp_path / "log.txt") == expected


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_child_outlives_its_parent(sent, module, tmp_path):
    sleeper = "child = s.Popen(['sleep', '60'])\nprint(os.getpid(), child.pid, flush=True)\ntime.sleep(60)"
    module("sleeper", f"import os, subprocess as s, time\n{sleeper}")
    code = f"""
from pathlib import Path
from leash_trl.comparison.queue import run_jobs
list(run_jobs({{Path({str(tmp_path)!r}) / name: lambda: [["sleeper"]] for name in "abc"}}, [None, None]))
"""
    logs = [tmp_path / "a", tmp_path / "b"]  # two run at once, so the third is not started
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL) as parent:
        wait_for(lambda: all(log.is_file() and log.read_text().endswith("\n") for log in logs))
        parent.send_signal(sent)
        parent.wait(30)
    pids = " ".join(log.read_text() for log in logs).split()
    assert len(pids) == 4
    wait_for(lambda: not any(is_alive(pid) for pid in pids))
    assert not (tmp_path / "c").exists()


def wait_for(holds, seconds=30):
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
