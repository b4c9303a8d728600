"""Killable workers: one bad case costs itself, whatever happens to a worker or to its parent."""

import gc
import itertools
import json
import logging
import os
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from leash_trl.rewards import grader_pool
from leash_trl.rewards.grader_pool import GraderPool, Verdict, default_size
from leash_trl.rewards.grader_worker import MEMORY_LIMIT_BYTES


HANG = r"\boxed{\dfrac{5^{\left(5^{\left(5^{\left(5^5\right)}\right)} - 4\right)} - 5}{16}}"  # Math-Verify issue 65
EASY, RIGHT = (r"\boxed{1/2}", r"\boxed{0.5}"), Verdict(True)
HARD = (r"\boxed{x+x}", r"\boxed{2x}")
NUMBERS = itertools.count(10)
OUT_OF_TIME = Verdict(False, "ran out of time")
YES = """echo ready; while read request; do echo '{"is_equal": true, "failure": null}'; done"""

needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")


@pytest.fixture(scope="module")
def pool():
    """One pool of one worker, for tests that leave it usable; what it compared before, it remembers.

    A start takes most of the time of a test, so only what needs math-verify has a worker of its own.
    """
    pool = GraderPool(size=1, seconds_per_case=0.5)
    held = b"1" * 600_000_000  # a trainer's peak memory, while the worker starts
    pool.verdicts([EASY])
    del held
    yield pool
    pool.close()


def new_case():
    """A right answer that no pool has compared yet."""
    number = next(NUMBERS)
    return rf"\boxed{{x+{number}}}", rf"\boxed{{{number}+x}}"


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


def comparing(pool):
    """The process that compares for a pool of one."""
    worker = psutil.Process(only_worker(pool)._process.pid)
    return (worker.children() or [worker])[0]


def has_ended(process, seconds=10.0):
    """Whether a process ends within a time: what is killed takes a moment on a busy machine."""
    deadline = time.monotonic() + seconds
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def is_unscorable(verdict):
    return verdict.is_equal is None and verdict.failure is not None


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


def test_verdicts_come_in_the_order_of_the_cases(pool):
    cases = [(rf"\boxed{{{i}}}", r"\boxed{2}") for i in range(5)]
    assert [verdict.is_equal for verdict in pool.verdicts(cases)] == [False, False, True, False, False]


def test_without_an_answer_the_verdict_is_whether_the_gold_can_be_read(pool):
    assert pool.verdicts([(None, r"\boxed{1}"), (None, r"\boxed{\text{}}")]) == [
        Verdict(True),
        Verdict(False),
    ]


def test_no_cases_start_no_worker(make_pool):
    pool = make_pool(size=1)
    assert pool.verdicts([]) == []
    assert only_worker(pool) is None


def test_a_hanging_comparison_costs_one_case_however_often_it_comes(pool, caplog):
    pool._said.clear()
    start = time.monotonic()
    with caplog.at_level(logging.WARNING):
        verdicts = pool.verdicts([*[(HANG, r"\boxed{42}")] * 100, new_case()])
    assert verdicts == [*[OUT_OF_TIME] * 100, RIGHT]
    assert time.monotonic() - start < 60
    assert "ran out of time" in caplog.text


def test_what_is_remembered_is_bounded(make_pool, monkeypatch):
    monkeypatch.setattr(grader_pool, "MAX_KNOWN", 3)
    pool = make_pool(size=1)
    for i in range(3):
        pool._remember({(str(i), "0"): RIGHT, (str(i), "1"): RIGHT})
        assert len(pool._known) <= 3
    assert pool._recalled(("2", "1")) == RIGHT


@needs_proc
def test_a_worker_of_a_large_parent_is_not_worn(pool):
    pool.verdicts([new_case()])
    process = comparing(pool)
    pool.verdicts([new_case()])
    assert comparing(pool) == process


def test_a_worker_that_cannot_start_is_an_error_not_a_wrong_answer(make_pool, python):
    pool = make_pool(size=1)
    python("exit 1")
    with pytest.raises(RuntimeError, match="did not start"):
        pool.verdicts([EASY])
    python(YES)
    assert pool.verdicts([EASY]) == [RIGHT]


def test_what_a_worker_said_that_cannot_start_is_told(make_pool, monkeypatch, tmp_path):
    monkeypatch.setattr(grader_pool, "START_ATTEMPTS", 1)
    (tmp_path / "math_verify.py").write_text("raise ImportError('a broken installation')")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(RuntimeError, match="a broken installation"):
        make_pool(size=1).verdicts([EASY])


def test_several_threads_get_their_own_verdicts(pool):
    def ask(i):
        return [
            verdict.is_equal
            for verdict in pool.verdicts([(rf"\boxed{{z+{j}}}", rf"\boxed{{{i}+z}}") for j in range(4)])
        ]

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(ask, range(4))) == [[i == j for j in range(4)] for i in range(4)]


@needs_proc
def test_killed_workers_leave_no_descriptor_and_no_zombie(make_pool, python):
    python(YES)
    others = set(threading.enumerate())
    pool = make_pool(size=1)
    counts = []
    for i in range(2):
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
def test_the_memory_limit_is_in_force(pool):
    pool.verdicts([new_case()])
    process = f"/proc/{only_worker(pool)._process.pid}"
    with open(f"{process}/limits") as limits:
        assert str(MEMORY_LIMIT_BYTES) in next(line for line in limits if line.startswith("Max address space"))
    with open(f"{process}/status") as status:
        peak = int(next(line for line in status if line.startswith("VmPeak")).split()[1])
    assert peak * 1024 < MEMORY_LIMIT_BYTES / 3  # what importing takes leaves room for the cases


@needs_proc
def test_a_worker_is_worn_at_half_of_its_memory_and_gets_no_more_than_all_of_it():
    code = """
        from leash_trl.rewards import grader_worker as w
        w._limit_memory()
        print(w._is_worn())
        held = bytearray(w.WORN_BYTES)
        print(w._is_worn())
        bytearray(w.WORN_BYTES)
    """
    result = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert result.stdout.split() == ["False", "True"]
    assert "MemoryError" in result.stderr


@pytest.mark.parametrize(
    ("cores", "processes", "size"), [(6, "1", 6), (6, "2", 3), (6, "", 6), (6, "4", 1), (6, "100", 1), (64, "", 8)]
)
def test_processes_of_one_machine_share_its_cores_up_to_eight_each(monkeypatch, cores, processes, size):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", processes)
    assert default_size() == size


def test_a_worker_finds_what_its_parent_found_and_not_what_lies_in_the_working_directory(tmp_path):
    # as for a script beside an uninstalled copy of the package
    script, elsewhere = tmp_path / "scripts" / "script.py", tmp_path / "elsewhere"
    script.parent.mkdir()
    elsewhere.mkdir()
    (elsewhere / "sympy.py").write_text("raise SystemExit('the wrong sympy')")
    script.write_text(
        f"import sys; sys.path.insert(0, {os.path.dirname(os.path.dirname(grader_pool.__file__))!r} + '/..')\n"
        "from leash_trl.rewards.grader_pool import GraderPool\n"
        r"print(GraderPool(size=1).verdicts([('\\boxed{1/2}', '\\boxed{0.5}')]))"
    )
    result = subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=elsewhere, check=True)
    assert "is_equal=True" in result.stdout


def test_a_forked_process_leaves_the_workers_to_their_parent(pool):
    pool.verdicts([new_case()])
    pid = os.fork()
    if pid == 0:
        pool.close()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert only_worker(pool)._process.poll() is None
    assert pool.verdicts([new_case()]) == [RIGHT]


def test_ctrl_c_does_not_reach_the_workers(pool):
    pool.verdicts([new_case()])
    pid = only_worker(pool)._process.pid
    assert os.getpgid(pid) == pid != os.getpgid(0)


INTERRUPTED = """
    import os, signal, sys, threading, time
    from leash_trl.rewards.grader_pool import GraderPool

    pool = GraderPool(size=1, seconds_per_case=3.0)
    pool.verdicts([(r"\\boxed{1/2}", r"\\boxed{0.5}")])
    cases = [(HANG, r"\\boxed{%d}" % i) for i in range(50)]
    threading.Timer(0.3, lambda: os.killpg(0, signal.SIGINT)).start()
    try:
        pool.verdicts(cases)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    again = pool.verdicts([(r"\\boxed{x+1}", r"\\boxed{1+x}"), (r"\\boxed{x+1}", r"\\boxed{2+x}")])
    print([verdict.is_equal for verdict in again], [verdict.failure for verdict in again])
"""


def test_after_ctrl_c_verdicts_are_right_and_python_ends_at_once():
    # Ctrl-C goes to the whole process group, in the middle of the first of 50 cases of 3 s each
    code = f"HANG = {HANG!r}\n{textwrap.dedent(INTERRUPTED)}"
    start = time.monotonic()
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, start_new_session=True)
    assert time.monotonic() - start < 60
    assert result.stdout.splitlines() == ["interrupted", "[True, False] [None, None]"]
    assert "Traceback" not in result.stderr


def test_an_answer_whose_worker_is_killed_is_compared_again(pool):
    pool.verdicts([new_case()])
    process = comparing(pool)
    process.suspend()  # in the middle of the comparison, however quick it is
    with ThreadPoolExecutor(1) as thread:
        verdicts = thread.submit(pool.verdicts, [new_case()])
        while pool._free.qsize():
            time.sleep(0.02)
        process.kill()
        assert verdicts.result(timeout=60) == [RIGHT]


def test_an_answer_whose_workers_are_all_killed_is_unscorable_for_now(make_pool, python, caplog):
    pool = make_pool(size=1)
    python("echo ready; read request; kill -9 $$")
    (verdict,) = pool.verdicts([HARD])
    assert is_unscorable(verdict)
    assert "unscorable" in caplog.text
    python(YES)
    assert pool.verdicts([HARD]) == [RIGHT]


def test_a_worker_that_is_killed_while_starting_is_started_again(make_pool, python, tmp_path):
    python(f"if [ -e {tmp_path}/second ]; then {YES}; else touch {tmp_path}/second; kill -9 $$; fi")
    assert make_pool(size=1).verdicts([EASY]) == [RIGHT]


@pytest.mark.parametrize("script", ["kill -9 $$", "exec sleep 60"])
def test_workers_that_never_come_up_leave_a_batch_unscorable_and_are_said_once(
    make_pool, python, monkeypatch, caplog, script
):
    monkeypatch.setattr(grader_pool, "STARTUP_SECONDS", 0.5)
    pool = make_pool(size=2)
    python(f"echo no room >&2; {script}")
    start = time.monotonic()
    for _ in range(2):
        assert all(map(is_unscorable, pool.verdicts([(rf"\boxed{{x+{i}}}", r"\boxed{x}") for i in range(20)])))
    assert time.monotonic() - start < 10
    assert sum("no room" in record.getMessage() for record in caplog.records) == 1


def test_an_installation_that_breaks_during_a_run_makes_answers_unscorable(make_pool, python):
    pool = make_pool(size=1)
    python(YES)
    pool.verdicts([new_case()])
    python("exit 1")
    comparing(pool).kill()
    assert is_unscorable(pool.verdicts([new_case()])[0])


def test_a_starved_worker_is_waited_for(pool):
    pool.verdicts([new_case()])
    process = comparing(pool)
    process.suspend()
    threading.Timer(0.8, process.resume).start()  # later than the limit of processor time
    assert pool.verdicts([new_case()]) == [RIGHT]


def test_an_answer_whose_worker_gets_no_processor_at_all_is_unscorable(pool, monkeypatch):
    pool.verdicts([new_case()])
    process = comparing(pool)
    process.suspend()
    start = time.monotonic()
    with monkeypatch.context() as patch:
        patch.setattr(pool, "_max_wait", 1.0)
        assert all(map(is_unscorable, pool.verdicts([new_case() for _ in range(20)])))
    assert time.monotonic() - start < 15  # the batch is given up, not every case waited for
    assert has_ended(process)
    assert pool.verdicts([new_case()]) == [RIGHT]


def test_what_is_the_cases_own_is_remembered_and_closing_ends_the_worker(pool):
    cases = [new_case(), (HANG + " " * 2_000, r"\boxed{42}")]
    assert pool.verdicts(cases) == [RIGHT, OUT_OF_TIME]
    # a gold that hangs is not the answer's fault
    assert all(map(is_unscorable, pool.verdicts([(r"\boxed{x}", HANG), (r"\boxed{y}", HANG)])))
    worker = only_worker(pool)
    pool.close()
    assert worker._process.poll() is not None
    assert pool.verdicts(cases) == [RIGHT, OUT_OF_TIME]
    assert is_unscorable(pool.verdicts([(r"\boxed{z}", HANG)])[0])
    assert only_worker(pool) is None


def test_many_hanging_answers_cost_a_batch_a_bounded_time_and_the_others_nothing(make_pool):
    # a twentieth of the limit must be enough for the quick case on a busy machine, or its turn is full of hanging ones
    pool = make_pool(size=2, seconds_per_case=2.0)
    *hanging, quick = pool.verdicts([*((HANG, rf"\boxed{{{i}}}") for i in range(12)), (EASY[0], r"\boxed{0.25}")])
    used = [psutil.Process(worker._process.pid).cpu_times() for worker in pool._free.queue]
    assert sum(times.children_user + times.children_system for times in used) < 18.0  # two turns of two workers
    wrong = hanging.count(OUT_OF_TIME)
    assert 4 <= wrong <= 5  # two a worker
    assert sum(map(is_unscorable, hanging)) == 12 - wrong
    assert quick == Verdict(False)


def test_what_a_worker_never_said_is_not_taken_for_a_verdict(make_pool, python):
    python("echo ready; read request; echo nonsense")
    assert is_unscorable(make_pool(size=1).verdicts([HARD])[0])


@needs_proc
def test_a_worn_process_is_replaced_without_a_trace():
    code = "from leash_trl.rewards import grader_worker as w; w.WORN_BYTES = 0; w.main()"
    request = json.dumps({"answer": HARD[0], "gold": HARD[1], "seconds": 10})
    with psutil.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdout.readline() == "ready\n"
        processes = set()
        for _ in range(3):
            print(request, file=worker.stdin, flush=True)
            processes |= {child.pid for child in worker.children()}
            assert json.loads(worker.stdout.readline()) == {"is_equal": True, "failure": None}
        worker.stdin.close()
        assert worker.wait(timeout=10) == 0
    assert len(processes) > 1


@needs_proc
def test_workers_end_with_a_killed_parent_even_where_one_of_its_forks_lives_on(tmp_path):
    code = f"""
        import os, time
        from leash_trl.rewards.grader_pool import GraderPool
        pool = GraderPool(size=2, seconds_per_case=100.0)
        pool.verdicts([({EASY[0]!r}, {EASY[1]!r})])
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        print(flush=True)
        pool.verdicts([({HANG!r}, "1")])
    """
    parent = psutil.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE)
    parent.stdout.readline()
    time.sleep(0.2)
    others = parent.children(recursive=True)
    workers = [process for process in others if "leash_trl.rewards.grader_worker" in process.cmdline()]
    parent.kill()
    parent.wait()
    are_left = [not has_ended(process) for process in workers]
    for process in others:
        if not has_ended(process, seconds=0):
            process.kill()
    parent.stdout.close()
    assert len(workers) >= 2
    assert not any(are_left)
