"""Killable workers: one bad case costs itself, whatever happens to a worker or to its parent."""

import gc
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from leash_trl.rewards import grader_pool
from leash_trl.rewards.grader_pool import GraderPool, Verdict, default_size
from leash_trl.rewards.grader_worker import MEMORY_LIMIT_BYTES


HANG = r"\boxed{\dfrac{5^{\left(5^{\left(5^{\left(5^5\right)}\right)} - 4\right)} - 5}{16}}"  # Math-Verify issue 65
EASY, RIGHT = (r"\boxed{1/2}", r"\boxed{0.5}"), Verdict(True)
OUT_OF_TIME, KILLED = Verdict(False, "ran out of time"), Verdict(False, "killed its worker")

needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")


@pytest.fixture
def make_pool():
    """Factory of pools that are closed when the test is over."""
    pools = []

    def make(*args, **kwargs):
        pools.append(GraderPool(*args, **kwargs))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


def only_worker(pool):
    """The worker of a pool of one, which stays in it."""
    worker = pool._free.get()
    pool._free.put(worker)
    return worker


def test_verdicts_come_in_the_order_of_the_cases(make_pool):
    cases = [(rf"\boxed{{{i}}}", r"\boxed{2}") for i in range(5)]
    assert [verdict.is_equal for verdict in make_pool(size=2).verdicts(cases)] == [False, False, True, False, False]


def test_without_an_answer_the_verdict_is_whether_the_gold_can_be_read(make_pool):
    assert make_pool(size=1).verdicts([(None, r"\boxed{1}"), (None, r"\boxed{\text{}}")]) == [
        Verdict(True),
        Verdict(False),
    ]


def test_no_cases_start_no_worker(make_pool):
    pool = make_pool(size=1)
    assert pool.verdicts([]) == []
    assert only_worker(pool) is None


def test_a_hanging_comparison_costs_one_case(make_pool, caplog):
    pool = make_pool(size=1, seconds_per_case=2.0)
    assert pool.verdicts([EASY]) == [RIGHT]  # the worker is up
    start = time.monotonic()
    with caplog.at_level(logging.WARNING):
        verdicts = pool.verdicts([(HANG, r"\boxed{42}"), (r"\boxed{x+x}", r"\boxed{2x}")])
    assert verdicts == [OUT_OF_TIME, RIGHT]
    assert time.monotonic() - start < 60
    assert "ran out of time" in caplog.text


def test_every_hang_costs_the_limit_and_no_more(make_pool):
    pool = make_pool(size=1, seconds_per_case=1.0)
    pool.verdicts([EASY])
    seconds = []
    for i in range(2):
        start = time.monotonic()
        assert pool.verdicts([(HANG, rf"\boxed{{{i}}}")]) == [OUT_OF_TIME]
        seconds.append(time.monotonic() - start)
        assert pool.verdicts([(EASY[0], rf"\boxed{{1 - {i} / 2}}")]) == [Verdict(i == 1)]  # a new worker, not timed
    assert max(seconds) < 6


def test_a_killed_worker_costs_one_case(make_pool, caplog):
    pool = make_pool(size=1)
    pool.verdicts([EASY])
    only_worker(pool)._process.kill()
    only_worker(pool)._process.wait()
    cases = [(r"\boxed{x+x}", r"\boxed{2x}"), (r"\boxed{y+y}", r"\boxed{2y}")]
    assert pool.verdicts(cases) == [KILLED, RIGHT]
    assert "killed its worker" in caplog.text


def test_a_failure_is_not_remembered_and_a_verdict_is(make_pool):
    pool = make_pool(size=1)
    pool.verdicts([EASY])
    only_worker(pool)._process.kill()
    only_worker(pool)._process.wait()
    case = (r"\boxed{x+x}", r"\boxed{2x}")
    assert pool.verdicts([case, EASY]) == [KILLED, RIGHT]  # EASY needs no worker any more
    assert pool.verdicts([case]) == [RIGHT]
    only_worker(pool)._process.kill()
    assert pool.verdicts([case]) == [RIGHT]


def test_equal_cases_of_one_call_are_compared_once(make_pool):
    pool = make_pool(size=2, seconds_per_case=1.0)
    start = time.monotonic()
    assert pool.verdicts([(HANG, r"\boxed{42}")] * 100) == [OUT_OF_TIME] * 100
    assert time.monotonic() - start < 60


def test_what_is_remembered_is_bounded(make_pool, monkeypatch):
    monkeypatch.setattr(grader_pool, "MAX_KNOWN", 3)
    pool = make_pool(size=1)
    for i in range(3):
        pool._remember({(str(i), "0"): RIGHT, (str(i), "1"): RIGHT})
        assert len(pool._known) <= 3
    assert ("2", "1") in pool._known
    pool._remember({("3" * 1_001, ""): RIGHT})
    assert len(pool._known) == 2


def test_a_late_answer_is_never_the_next_cases_verdict(make_pool):
    pool = make_pool(size=1, seconds_per_case=30.0)
    pool.verdicts([EASY])
    slow = only_worker(pool)
    slow._seconds = 0.001
    os.kill(slow._process.pid, signal.SIGSTOP)
    assert pool.verdicts([(r"\boxed{3+x}", r"\boxed{x+3}")]) == [OUT_OF_TIME]
    assert slow._process.poll() is not None
    assert pool.verdicts([(r"\boxed{4+x}", r"\boxed{x+3}")]) == [Verdict(False)]


def test_a_worker_that_talks_nonsense_is_an_error_and_is_ended(make_pool):
    pool = make_pool(size=1)
    pool.verdicts([EASY])
    talker = only_worker(pool)
    talker._answers.put("nonsense\n")
    with pytest.raises(json.JSONDecodeError):
        pool.verdicts([(r"\boxed{3+x}", r"\boxed{x+3}")])
    assert talker._process.poll() is not None
    assert pool.verdicts([(r"\boxed{4+x}", r"\boxed{x+3}")]) == [Verdict(False)]


def test_a_worn_worker_is_replaced_and_its_verdict_counts(make_pool, monkeypatch):
    pool = make_pool(size=1)
    pool.verdicts([EASY])
    worn = only_worker(pool)
    worn._answers.put(json.dumps({"is_equal": True, "failure": None, "is_worn": True}))
    assert pool.verdicts([(r"\boxed{3+x}", r"\boxed{x+3}")]) == [RIGHT]
    assert worn._process.poll() is not None
    assert only_worker(pool) is None


@needs_proc
def test_a_worker_of_a_large_parent_is_not_worn(make_pool):
    held = b"1" * 600_000_000  # a trainer's peak memory
    pool = make_pool(size=1)
    pool.verdicts([EASY])
    del held
    worker = only_worker(pool)
    pool.verdicts([(r"\boxed{3+x}", r"\boxed{x+3}")])
    assert only_worker(pool) is worker is not None


def test_a_worker_that_cannot_start_is_an_error_not_a_wrong_answer(make_pool, monkeypatch):
    pool = make_pool(size=1)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", shutil.which("false"))
        with pytest.raises(RuntimeError, match="did not start"):
            pool.verdicts([EASY])
    assert pool.verdicts([EASY]) == [RIGHT]


def test_what_a_worker_said_that_cannot_start_is_told(make_pool, monkeypatch, tmp_path):
    (tmp_path / "math_verify.py").write_text("raise ImportError('a broken installation')")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(RuntimeError, match="a broken installation"):
        make_pool(size=1).verdicts([EASY])


def test_several_threads_get_their_own_verdicts(make_pool):
    pool = make_pool(size=2)

    def ask(i):
        return [
            verdict.is_equal
            for verdict in pool.verdicts([(rf"\boxed{{x+{j}}}", rf"\boxed{{{i}+x}}") for j in range(4)])
        ]

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(ask, range(4))) == [[i == j for j in range(4)] for i in range(4)]


def test_closing_ends_every_worker_and_a_later_case_starts_one(make_pool):
    pool = make_pool(size=2)
    pool.verdicts([(rf"\boxed{{x+{i}}}", r"\boxed{x}") for i in range(6)])
    workers = [pool._free.get() for _ in range(2)]
    for worker in workers:
        pool._free.put(worker)
    pool.close()
    assert any(workers)
    assert all(worker is None or worker._process.poll() is not None for worker in workers)
    assert pool.verdicts([(r"\boxed{x+9}", r"\boxed{9+x}")]) == [RIGHT]


@needs_proc
def test_killed_workers_leave_no_descriptor_and_no_zombie(make_pool):
    others = set(threading.enumerate())
    pool = make_pool(size=1)
    counts = []
    for i in range(4):
        pool.verdicts([(rf"\boxed{{x+{i}}}", r"\boxed{x}")])
        only_worker(pool)._process.kill()
        pool.verdicts([(rf"\boxed{{y+{i}}}", r"\boxed{x}")])
        pool.close()
        for thread in set(threading.enumerate()) - others:
            if "_read" in thread.name:
                thread.join(timeout=10)
        gc.collect()
        counts.append(len(os.listdir("/proc/self/fd")))
    assert counts[-1] == counts[0]
    children = subprocess.run(["ps", "--ppid", str(os.getpid()), "-o", "stat="], capture_output=True, text=True)
    assert "Z" not in children.stdout


@needs_proc
def test_the_memory_limit_is_in_force(make_pool):
    pool = make_pool(size=1)
    pool.verdicts([EASY])
    process = f"/proc/{only_worker(pool)._process.pid}"
    with open(f"{process}/limits") as limits:
        assert str(MEMORY_LIMIT_BYTES) in next(line for line in limits if line.startswith("Max address space"))
    with open(f"{process}/status") as status:
        peak = int(next(line for line in status if line.startswith("VmPeak")).split()[1])
    assert peak * 1024 < MEMORY_LIMIT_BYTES / 3  # what importing takes leaves room for the cases


@needs_proc
def test_a_case_beyond_the_memory_limit_fails():
    code = "from leash_trl.rewards import grader_worker as w; w._limit_memory(); bytearray(w.MEMORY_LIMIT_BYTES)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "MemoryError" in result.stderr


@needs_proc
def test_a_worker_is_worn_once_it_has_used_half_of_its_memory():
    code = "from leash_trl.rewards import grader_worker as w; print(w._is_worn()); held = bytearray(w.WORN_BYTES); "
    result = subprocess.run([sys.executable, "-c", code + "print(w._is_worn())"], capture_output=True, text=True)
    assert result.stdout.split() == ["False", "True"]


@pytest.mark.parametrize(("processes", "size"), [("1", 6), ("2", 3), ("", 6), ("4", 1), ("100", 1)])
def test_processes_of_one_machine_share_its_cores(monkeypatch, processes, size):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)), raising=False)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", processes)
    assert default_size() == size


def test_many_cores_make_eight_workers(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert default_size() == 8


def test_a_file_of_the_working_directory_does_not_stand_in_for_a_module(make_pool, tmp_path, monkeypatch):
    (tmp_path / "sympy.py").write_text("raise SystemExit('the wrong sympy')")
    monkeypatch.chdir(tmp_path)
    assert make_pool(size=1).verdicts([EASY]) == [RIGHT]


def test_a_worker_finds_what_its_parent_found(tmp_path):
    # as for a script beside an uninstalled copy of the package
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {os.path.dirname(os.path.dirname(grader_pool.__file__))!r} + '/..')\n"
        "from leash_trl.rewards.grader_pool import GraderPool\n"
        r"print(GraderPool(size=1).verdicts([('\\boxed{1/2}', '\\boxed{0.5}')]))"
    )
    result = subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert "is_equal=True" in result.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_leaves_the_workers_to_their_parent(make_pool):
    pool = make_pool(size=1)
    pool.verdicts([EASY])
    pid = os.fork()
    if pid == 0:
        pool.close()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert only_worker(pool)._process.poll() is None
    assert pool.verdicts([(r"\boxed{x+9}", r"\boxed{9+x}")]) == [RIGHT]


def test_a_worker_outlives_a_killed_parent_only_until_its_own_alarm():
    worker = subprocess.Popen(
        [sys.executable, "-m", "leash_trl.rewards.grader_worker", "1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    worker.stdout.readline()
    worker.stdin.write(json.dumps({"answer": HANG, "gold": r"\boxed{42}"}).encode() + b"\n")
    worker.stdin.close()
    assert worker.wait(timeout=30) == -signal.SIGALRM
    worker.stdout.close()


@pytest.mark.skipif(not hasattr(os, "getpgid"), reason="needs process groups")
def test_ctrl_c_does_not_reach_the_workers(make_pool):
    pool = make_pool(size=1)
    pool.verdicts([EASY])
    pid = only_worker(pool)._process.pid
    assert os.getpgid(pid) == pid != os.getpgid(0)


INTERRUPTED = """
    import os, signal, sys, threading, time
    from leash_trl.rewards.grader_pool import GraderPool

    pool = GraderPool(size=1, seconds_per_case=3.0)
    pool.verdicts([(r"\\boxed{1/2}", r"\\boxed{0.5}")])
    cases = [(HANG, r"\\boxed{%d}" % i) for i in range(50)]
    threading.Timer(1.0, lambda: os.killpg(0, signal.SIGINT)).start()
    try:
        pool.verdicts(cases)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    again = pool.verdicts([(r"\\boxed{x+1}", r"\\boxed{1+x}"), (r"\\boxed{x+1}", r"\\boxed{2+x}")])
    print([verdict.is_equal for verdict in again], [verdict.failure for verdict in again])
"""


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs process groups")
def test_after_ctrl_c_verdicts_are_right_and_python_ends_at_once():
    # Ctrl-C goes to the whole process group, in the middle of the first of 50 cases of 3 s each
    code = f"HANG = {HANG!r}\n{textwrap.dedent(INTERRUPTED)}"
    start = time.monotonic()
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, start_new_session=True)
    assert time.monotonic() - start < 60
    assert result.stdout.splitlines() == ["interrupted", "[True, False] [None, None]"]
    assert "Traceback" not in result.stderr
