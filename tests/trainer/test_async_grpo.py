"""TRL's asynchronous GRPO, really run on vLLM's CPU build: a server, a worker in its own process, LoRA. Skipped
without vLLM; `make test-vllm`."""

import os
import signal
import subprocess
import sys

import pytest


pytest.importorskip("vllm")
pytestmark = pytest.mark.vllm

import async_run  # noqa: E402
from async_run import LAMBDA_INIT, NUM_UPDATES, SAVED_AT, TARGET, by_hand  # noqa: E402
from conftest import ROOT  # noqa: E402
from stock_run import lambda_in  # noqa: E402
from vllm_server import forget_adapters, served  # noqa: E402

from leash_trl.run_folder import length_control_state  # noqa: E402


PYTHON_PATH = os.pathsep.join(str(ROOT / folder) for folder in (".", "tests", "tests/support"))
ENVIRONMENT = {**os.environ, "PYTHONPATH": PYTHON_PATH, "TRL_EXPERIMENTAL_SILENCE": "1"}


@pytest.fixture
def url(tmp_path):
    server = served(tmp_path)
    try:
        address = server.__enter__()
    except RuntimeError as error:
        if f"exit code {-signal.SIGILL}" in str(error):
            pytest.skip("this processor lacks instructions that vLLM's CPU build is made of (SIGILL)")
        raise
    yield address
    server.__exit__(None, None, None)


def train(url, folder, *words):
    command = [sys.executable, async_run.__file__, url, str(folder), *words]
    finished = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=600, check=False)
    assert finished.returncode == 0, finished.stderr[-8000:]


def lambdas(seen):
    return [lambda_in(entry) for entry in seen["entries"]]


def test_lambda_moves_once_an_update_prices_each_group_and_survives_a_restart(url, tmp_path):
    folder, resumed = tmp_path / "run", tmp_path / "resumed"
    train(url, folder)
    seen, groups, expected = by_hand(folder)
    for row, lam, version in zip(seen["rows"], expected, range(NUM_UPDATES), strict=False):
        if "leash/lambda" in row:  # groups were scored since the last update
            assert row["leash/lambda"] == pytest.approx(lam, abs=1e-12)
            assert row["leash/version"] == version
    assert seen["syncs_adapter"]
    assert lambdas(seen) == pytest.approx(expected[1:], abs=1e-12)
    assert len(set(expected)) > 2
    assert [entry["version"] for entry in seen["entries"]] == list(range(1, NUM_UPDATES + 1))
    for group in groups:
        penalties = [expected[group["version"]] * max(0.0, length / TARGET - 1) for length in group["lengths"]]
        by_rule = [max(-1.0, task - penalty) for task, penalty in zip(group["task"], penalties, strict=True)]
        assert group["rewards"] == pytest.approx(by_rule, abs=1e-12)
    assert len({group["version"] for group in groups}) > 1
    checkpoint = folder / f"checkpoint-{SAVED_AT}"
    saved = length_control_state(checkpoint)
    assert saved == seen["entries"][SAVED_AT - 1]
    assert lambda_in(saved) != LAMBDA_INIT
    forget_adapters(url)
    train(url, resumed, "--resume", str(checkpoint))
    later, groups, expected = by_hand(resumed, lambda_in(saved))
    assert [entry["version"] for entry in later["entries"]] == list(range(SAVED_AT + 1, NUM_UPDATES + 1))
    assert lambdas(later) == pytest.approx(expected[1:], abs=1e-12)
    assert {group["version"] for group in groups} <= set(range(SAVED_AT, NUM_UPDATES + 1))
