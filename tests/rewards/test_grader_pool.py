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

import psutil
import pytest

from leash_trl.rewards.grader import pool as grader_pool
from leash_trl.rewards.grader.pool import GraderPool, Verdict, default_size


HANG = r"\boxed{\dfrac{5^{\left(5^{\left(5^{\left(5^5\right)}\right)} - 4\right)} - 5}{16}}"  # Math-Verify issue 65
RIGHT = Verdict(True)
NUMBERS = itertools.count(10)
YES = "while read request; do echo '[true, null]'; done"

needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")


@pytest.fixture(scope="module")
def pool():
    """One pool of one worker, for tests that leave it usable; what it compared before, it remembers."""
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
    """A right answer that no pool has compared yet."""
    number = next(NUMBERS)
    return rf"\boxed{{x+{number}}}", rf"\boxed{{{number}+x}}"


def workers():
    """Worker processes of this process, and those that they forked to compare."""
    here = psutil.Process().children()
    found = [child for child in here if "leash_trl.rewards.grader.worker" in child.cmdline()]
    return found, [child for worker in found for child in worker.children()]


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


def test_verdicts_come_in_the_order_of_the_cases(pool):
    cases = [(rf"\boxed{{{i}}}", r"\boxed{2}") for i in range(5)]
    assert [verdict.is_equal for verdict in pool.verdicts(cases)] == [False, False, True, False, False]


def test_without_an_answer_the_verdict_is_whether_the_gold_can_be_read(pool):
    assert pool.verdicts([(None, r"\boxed{1}"), (None, r"\boxed{\text{}}")]) == [RIGHT, Verdict(False)]


def test_what_does_not_end_is_unscorable_once_and_said_in_one_line(pool, caplog, monkeypatch):
    with caplog.at_level(logging.WARNING):
        *hanging, easy = pool.verdicts([*[(HANG, r"\boxed{42}")] * 100, new_case()])
        monkeypatch.setattr(grader_pool, "TURNS", ())  # what was not remembered has no verdict now
        assert pool.verdicts([(HANG, r"\boxed{42}")]) == hanging[:1]
    assert all(map(is_unscorable, hanging))
    assert easy == RIGHT
    assert len(caplog.records) == 1
    assert "\n" not in caplog.text.strip()


def test_many_hanging_answers_cost_a_batch_a_bounded_time_and_the_others_nothing(monkeypatch):
    monkeypatch.setattr(grader_pool, "LOST_LIMITS", 1)
    pool = GraderPool(size=1, seconds_per_case=4.0)
    answers = [(HANG, rf"\boxed{{{i}}}") for i in range(12)]
    *hanging, easy = pool.verdicts([*answers, new_case()])
    assert all(map(is_unscorable, hanging))
    assert easy == RIGHT
    assert sum(verdict.failure == grader_pool.UNFINISHED for verdict in hanging) == 1


def test_several_threads_get_their_own_verdicts(pool):
    def ask(i):
        cases = [(rf"\boxed{{z+{j}}}", rf"\boxed{{{i}+z}}") for j in range(4)]
        return [verdict.is_equal for verdict in pool.verdicts(cases)]

    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(ask, range(6))) == [[i == j for j in range(4)] for i in range(6)]


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
    python(f"if [ -e '{tmp_path}/second' ]; then {YES}; else touch '{tmp_path}/second'; read request; kill -9 $$; fi")
    assert GraderPool(size=1).verdicts([new_case()]) == [RIGHT]


def test_an_answer_whose_workers_are_both_killed_is_unscorable_for_now(python):
    pool, case = GraderPool(size=1), new_case()
    python("read request; kill -9 $$")
    assert is_unscorable(pool.verdicts([case])[0])
    python(YES)
    assert pool.verdicts([case]) == [RIGHT]


@needs_proc
def test_workers_that_died_leave_no_descriptor_and_no_zombie(python):
    pool = GraderPool(size=1)
    python("read request; kill -9 $$")
    counts = []
    for _ in range(2):
        pool.verdicts([new_case()])
        counts.append(len(os.listdir("/proc/self/fd")))
    assert counts[0] == counts[1]
    assert not [child for child in psutil.Process().children() if child.status() == psutil.STATUS_ZOMBIE]


def test_a_batch_whose_worker_gets_no_processor_at_all_is_unscorable(python, monkeypatch):
    monkeypatch.setattr(grader_pool, "MAX_WAIT", 1.0)
    pool = GraderPool(size=1)
    python("exec sleep 60")
    start = time.monotonic()
    assert all(map(is_unscorable, pool.verdicts([new_case() for _ in range(20)])))
    assert time.monotonic() - start < 15  # the batch is given up, not every case waited for
    assert not [child for child in psutil.Process().children() if child.name() == "sleep"]


def test_a_busy_machine_changes_no_verdict(pool):
    _, comparing = workers()
    for process in comparing:
        process.suspend()
    timer = threading.Timer(4.5, lambda: [process.resume() for process in comparing])  # later than the limit
    timer.start()
    assert pool.verdicts([new_case()]) == [RIGHT]


def test_ctrl_c_does_not_reach_the_workers(pool):
    assert all(os.getpgid(worker.pid) == worker.pid for worker in workers()[0])


@pytest.mark.parametrize(
    ("cores", "processes", "size"), [(6, "1", 6), (6, "2", 3), (6, "", 6), (6, "100", 1), (64, "", 8)]
)
def test_processes_of_one_machine_share_its_cores_up_to_eight_each(monkeypatch, cores, processes, size):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", processes)
    assert default_size() == size


def test_a_case_that_lacks_memory_is_compared_again_by_a_fresh_process(tmp_path):
    code = f"""
        import os, resource
        from leash_trl.rewards.grader import worker as w
        def compare(answer, gold):
            limit = resource.getrlimit(resource.RLIMIT_AS)[0]
            if os.path.exists({str(tmp_path / "second")!r}):
                return limit == w.MEMORY_LIMIT_BYTES
            open({str(tmp_path / "second")!r}, "w").close()
            bytearray(limit)
        w.are_equivalent, w.TYPICAL = compare, ()
        w.main()
    """
    command = [sys.executable, "-u", "-c", textwrap.dedent(code)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as worker:
        replies = []
        for _ in range(2):
            worker.stdin.write('["1", "1", 4.0]\n')
            replies.append(worker.stdout.readline())
    assert replies == ["null\n", "[true, null]\n"]


def test_a_script_without_main_guard_runs_once_and_no_file_of_its_folder_stands_in_for_a_module(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "sympy.py").write_text("raise SystemExit('the wrong sympy')")
    script = tmp_path / "script.py"
    script.write_text(
        "print('begins')\n"
        f"import sys; sys.path.insert(0, {os.path.dirname(os.path.dirname(grader_pool.__file__))!r} + '/..')\n"
        "from leash_trl.rewards.grader.pool import GraderPool\n"
        r"print(GraderPool(size=1).verdicts([('\\boxed{1/2}', '\\boxed{0.5}')])[0].is_equal)"
    )
    result = subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=tmp_path / "elsewhere")
    assert result.stdout.split() == ["begins", "True"]
    assert "Warning" not in result.stderr


@needs_proc
def test_workers_end_with_a_killed_parent_even_where_one_of_its_forks_lives_on():
    code = f"""
        import os, time
        from leash_trl.rewards.grader.pool import GraderPool
        pool = GraderPool(size=2, seconds_per_case=100.0)
        pool.verdicts([(r"\\boxed{{1/2}}", r"\\boxed{{0.5}}")])
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
    found = [process for process in others if "leash_trl.rewards.grader.worker" in process.cmdline()]
    parent.kill()
    parent.wait()
    parent.stdout.close()
    are_left = [not has_ended(process) for process in found]
    for process in [each for each in others if not has_ended(each, seconds=0)]:
        process.kill()
    assert are_left == [False] * len(found)
    assert len(found) >= 2
