"""Killable workers: one bad case costs itself, whatever happens to a worker or to its parent."""

import itertools
import logging
import os
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

import leash_trl
from leash_trl.rewards.grader import pool as grader_pool
from leash_trl.rewards.grader.pool import GraderPool, Verdict, default_num_workers


HANG = r"\boxed{\dfrac{5^{\left(5^{\left(5^{\left(5^5\right)}\right)} - 4\right)} - 5}{16}}"  # Math-Verify issue 65
RIGHT = Verdict(True)
NUMBERS = itertools.count(10)
YES = "while read request; do echo '[true, null]'; done"
DIES = "read request; kill -9 $$"

needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")


@pytest.fixture(scope="module")
def pool():
    """One pool of one worker, for tests that leave it usable."""
    pool = GraderPool(size=1, seconds_per_case=4.0)
    assert pool.verdicts([new_case()]) == [RIGHT]
    return pool


@pytest.fixture
def python(tmp_path, monkeypatch):
    """Makes later workers start with a shell script instead of Python."""

    def make(script):
        path = tmp_path / "python"
        path.unlink(missing_ok=True)  # a shell may still be reading it
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(path))

    return make


def new_case():
    """A right answer, which no other call returns."""
    number = next(NUMBERS)
    return rf"\boxed{{x+{number}}}", rf"\boxed{{{number}+x}}"


def workers():
    """The worker processes of this process, without those that they forked to compare."""
    children = psutil.Process().children()
    return [child for child in children if "leash_trl.rewards.grader.worker" in child.cmdline()]


def is_unscorable(verdict):
    return verdict.is_equal is None and verdict.failure is not None


def test_what_does_not_end_is_unscorable_once_and_said_in_one_line(pool, caplog):
    hanging_case = (HANG, r"\boxed{42}")
    with caplog.at_level(logging.WARNING):
        *hanging, easy = pool.verdicts([hanging_case] * 100 + [new_case()])
    assert all(map(is_unscorable, hanging))
    assert easy == RIGHT
    assert len(caplog.records) == 1
    assert "\n" not in caplog.text.strip()


def test_many_hanging_answers_cost_a_batch_a_bounded_time_and_the_others_nothing(monkeypatch):
    monkeypatch.setattr(grader_pool, "MAX_UNFINISHED_PER_WORKER", 1)
    pool = GraderPool(size=1, seconds_per_case=4.0)
    cases = [(HANG, rf"\boxed{{{gold}}}") for gold in range(12)]
    *hanging, easy = pool.verdicts([*cases, new_case()])
    assert all(map(is_unscorable, hanging))
    assert easy == RIGHT
    assert hanging.count(grader_pool.LIMIT_EXCEEDED) == 1


def test_several_threads_get_their_own_verdicts(pool):
    def equal_answers(gold):
        cases = [(rf"\boxed{{z+{answer}}}", rf"\boxed{{{gold}+z}}") for answer in range(4)]
        return [answer for answer, verdict in enumerate(pool.verdicts(cases)) if verdict.is_equal]

    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(equal_answers, range(6))) == [[0], [1], [2], [3], [], []]


def test_a_worker_that_cannot_start_is_an_error_not_a_wrong_answer(python):
    pool = GraderPool(size=1)
    python("exit 1")
    with pytest.raises(RuntimeError):
        pool.verdicts([new_case()])
    python(YES)
    assert pool.verdicts([new_case()]) == [RIGHT]


def test_an_installation_that_breaks_during_a_run_makes_answers_unscorable(python):
    pool = GraderPool(size=1)
    python("read request; echo '[true, null]'")
    assert pool.verdicts([new_case()]) == [RIGHT]
    python("exit 1")
    assert is_unscorable(pool.verdicts([new_case()])[0])


def test_an_answer_whose_worker_is_killed_is_compared_again(python, tmp_path):
    second = tmp_path / "second"
    python(f"if [ -e '{second}' ]; then {YES}; else touch '{second}'; {DIES}; fi")
    assert GraderPool(size=1).verdicts([new_case()]) == [RIGHT]


def test_an_answer_whose_workers_are_both_killed_is_unscorable_for_now(python):
    pool = GraderPool(size=1)
    case = new_case()
    python(DIES)
    assert is_unscorable(pool.verdicts([case])[0])
    python(YES)
    assert pool.verdicts([case]) == [RIGHT]


@needs_proc
def test_workers_that_died_leave_no_descriptor_and_no_zombie(python):
    pool = GraderPool(size=1)
    python(DIES)
    pool.verdicts([new_case()])
    num_descriptors = len(os.listdir("/proc/self/fd"))
    pool.verdicts([new_case()])
    assert len(os.listdir("/proc/self/fd")) == num_descriptors
    assert psutil.STATUS_ZOMBIE not in [child.status() for child in psutil.Process().children()]


def test_a_batch_whose_worker_gets_no_processor_at_all_is_unscorable(python, monkeypatch):
    monkeypatch.setattr(grader_pool, "MAX_WAIT_SECONDS", 1.0)
    pool = GraderPool(size=1)
    python("exec sleep 60")
    start = time.monotonic()
    assert all(map(is_unscorable, pool.verdicts([new_case() for _ in range(20)])))
    assert time.monotonic() - start < 15  # the batch is given up, not every case waited for
    assert "sleep" not in [child.name() for child in psutil.Process().children()]


def test_a_busy_machine_changes_no_verdict(pool):
    processes = [process for worker in workers() for process in worker.children()]
    assert processes
    for process in processes:
        process.suspend()
        threading.Timer(4.5, process.resume).start()  # later than the limit
    assert pool.verdicts([new_case()]) == [RIGHT]


def test_ctrl_c_does_not_reach_the_workers(pool):
    pids = [worker.pid for worker in workers()]
    assert [*map(os.getpgid, pids)] == pids != []


@pytest.mark.parametrize(
    ("cores", "processes", "size"), [(6, "1", 6), (6, "2", 3), (6, "", 6), (6, "100", 1), (64, "", 8)]
)
def test_processes_of_one_machine_share_its_cores_up_to_eight_each(monkeypatch, cores, processes, size):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", processes)
    assert default_num_workers() == size


def test_a_case_that_lacks_memory_is_compared_again_by_a_fresh_process(tmp_path):
    code = f"""
        import pathlib, resource
        from leash_trl.rewards.grader import worker
        second = pathlib.Path({str(tmp_path / "second")!r})
        def compare(answer, gold):
            limit = resource.getrlimit(resource.RLIMIT_AS)[0]
            if second.exists():
                return limit == worker.MEMORY_LIMIT_BYTES
            second.touch()
            bytearray(limit)
        worker.are_equivalent = compare
        worker.WARM_UP_EXPRESSIONS = ()
        worker.main()
    """
    command = [sys.executable, "-u", "-c", textwrap.dedent(code)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as worker:
        for reply in ("null\n", "[true, null]\n"):
            worker.stdin.write('["1", "1", 4.0]\n')
            assert worker.stdout.readline() == reply


def test_a_script_without_main_guard_runs_once_and_no_file_of_its_folder_stands_in_for_a_module(tmp_path):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "sympy.py").write_text("raise SystemExit('the wrong sympy')")
    script = tmp_path / "script.py"
    root = Path(leash_trl.__file__).parents[1]
    script.write_text(
        "print('begins')\n"
        f"import sys; sys.path.insert(0, {str(root)!r})\n"
        "from leash_trl.rewards.grader.pool import GraderPool\n"
        r"print(GraderPool(size=1).verdicts([('\\boxed{1/2}', '\\boxed{0.5}')])[0].is_equal)"
    )
    result = subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=folder)
    assert result.stdout.split() == ["begins", "True"]
    assert "Warning" not in result.stderr
