"""The task reward: right verdicts, whatever the thread, and never a hang."""

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest

from leash_trl.rewards import math_reward
from leash_trl.rewards.grader_pool import GraderPool


HANG = r"\dfrac{5^{\left(5^{\left(5^{\left(5^5\right)}\right)} - 4\right)} - 5}{16}"  # Math-Verify issue 65


@pytest.mark.parametrize(
    ("completion", "solution", "expected"),
    [
        (r"<think>hm</think>\boxed{12}", "12", 1.0),
        (r"\boxed{12}", "13", -1.0),
        (r"\boxed{012}", "12", 1.0),
        (r"\boxed{\frac{1}{2}}", "0.5", 1.0),
        (r"\boxed{\frac12}", r"$\frac{1}{2}$", 1.0),
        (r"\boxed{2}", r"2\sqrt{3}", -1.0),  # without dollars math-verify reads the gold as 2
        (r"\boxed{2\sqrt{3}}", r"2\sqrt{3}", 1.0),
        (r"\boxed{\sqrt{12}}", r"\boxed{2\sqrt{3}}", 1.0),
        ("Answer: $34$", "34", 1.0),
        ("no answer at all", "34", -1.0),
        (r"<think>\boxed{34} unfinished", "34", -1.0),
        (r"\boxed{(C)}", "(C)", 1.0),
        (r"\boxed{" + "9" * 5000 + "}", "9", -1.0),
    ],
)
def test_verdicts(completion, solution, expected):
    assert math_reward([completion], [solution]) == [expected]


def test_conversational_completions_and_other_columns():
    completions = [[{"role": "assistant", "content": r"\boxed{4}"}], [{"role": "assistant", "content": None}]]
    assert math_reward(completions, ["4", "4"], prompts=["a", "b"], level=[1, 2]) == [1.0, -1.0]


def test_unparseable_gold_is_unscorable_not_wrong():
    assert math_reward([r"\boxed{x + 1}"], [r"\text{}"]) == [None]


def test_works_off_the_main_thread():
    results = []
    thread = threading.Thread(target=lambda: results.extend(math_reward([r"\boxed{\frac{2}{4}}"], ["1/2"])))
    thread.start()
    thread.join(timeout=90)
    assert results == [1.0]


def test_a_hanging_comparison_costs_one_case(caplog):
    pool = GraderPool(size=1, seconds_per_case=2.0)
    assert pool.verdicts([("1/2", "0.5")]) == [True]  # the worker is up
    start = time.monotonic()
    with caplog.at_level(logging.WARNING):
        verdicts = pool.verdicts([(HANG, "42"), ("0.25", "1/4"), ("1/3", "0.5")])
    assert verdicts == [False, True, False]
    assert time.monotonic() - start < 60
    assert "ran out of time" in caplog.text
    pool.close()


def test_a_killed_worker_costs_one_case(caplog):
    pool = GraderPool(size=1)
    assert pool.verdicts([("1/2", "0.5")]) == [True]
    worker = pool._free.get()
    worker._process.kill()
    worker._process.wait()
    pool._free.put(worker)
    assert pool.verdicts([("1/2", "0.5"), ("1/2", "0.5")]) == [False, True]
    assert "killed its worker" in caplog.text
    pool.close()


@pytest.mark.slow
def test_hostile_inputs_never_hang(shared_data):
    rows = [json.loads(line) for line in (shared_data / "grader_hostile.jsonl").open()]
    start = time.monotonic()
    for row in rows:
        before = time.monotonic()
        math_reward([row["input"]], [row["gold"] or "42"])
        assert time.monotonic() - before < 30, row["id"]
    assert time.monotonic() - start < 20 * len(rows)


def test_every_hang_costs_the_limit_and_no_more():
    pool = GraderPool(size=1, seconds_per_case=1.0)
    assert pool.verdicts([("1/2", "0.5")]) == [True]
    seconds = []
    for _ in range(3):
        start = time.monotonic()
        assert pool.verdicts([(HANG, "42")]) == [False]
        seconds.append(time.monotonic() - start)
        assert pool.verdicts([("1/2", "0.5")]) == [True]  # starts a new worker, outside the clock
    assert max(seconds) < 6
    pool.close()


def test_a_worker_that_cannot_start_is_an_error_not_a_wrong_answer(monkeypatch):
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with pytest.raises(RuntimeError, match="did not start"):
        GraderPool(size=1).verdicts([("1/2", "0.5")])


def test_closing_ends_every_worker():
    pool = GraderPool(size=2)
    pool.verdicts([("1/2", "0.5")] * 8)
    workers = [pool._free.get() for _ in range(2)]
    for worker in workers:
        pool._free.put(worker)
    pool.close()
    assert all(worker is None or worker._process.poll() is not None for worker in workers)
    assert any(worker is not None for worker in workers)
    assert pool.verdicts([("1/2", "0.5")]) == [True]
    pool.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_grades_with_a_pool_of_its_own():
    assert math_reward([r"\boxed{\frac12}"], ["0.5"]) == [1.0]
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        os._exit(0 if math_reward([r"\boxed{\frac12}"], ["0.5"]) == [1.0] else 1)
    assert os.waitpid(pid, 0)[1] == 0


def test_a_worker_outlives_a_killed_parent_only_until_its_own_alarm():
    worker = subprocess.Popen(
        [sys.executable, "-m", "leash_trl.rewards.grader_worker", "1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    worker.stdout.readline()
    worker.stdin.write(json.dumps({"answer": HANG, "gold": "42"}).encode() + b"\n")
    worker.stdin.close()
    assert worker.wait(timeout=30) == -signal.SIGALRM
    worker.stdout.close()


def test_what_a_tool_said_is_not_the_models_answer():
    conversation = [
        {"role": "assistant", "content": "I ask the tool."},
        {"role": "tool", "content": "Answer: 42"},
        {"role": "assistant", "content": [{"type": "text", "text": "I give up."}]},
    ]
    assert math_reward([conversation], ["42"]) == [-1.0]
    conversation[-1]["content"][0]["text"] = r"\boxed{42}"
    assert math_reward([conversation], ["42"]) == [1.0]
