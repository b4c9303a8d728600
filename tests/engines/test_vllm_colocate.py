"""TRL's colocate mode with the real vLLM, on its CPU build. Skipped without vLLM; `make test-vllm`."""

import itertools
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest


pytest.importorskip("vllm")
pytestmark = pytest.mark.vllm

import colocate_run  # noqa: E402
import yaml  # noqa: E402
from conftest import ROOT, log_rows  # noqa: E402


class Completion(NamedTuple):
    """A completion as vLLM sampled it; `finish_reason` is `stop` for an end token, or `length`."""

    token_ids: list[int]
    finish_reason: str


@dataclass(frozen=True)
class Run:
    """A trained trainer, and the completions of each call of its engine."""

    trainer: Any
    rollouts: list[list[Completion]]

    @property
    def rows(self):
        """What each step logged, without times."""
        rows = []
        for row in log_rows(self.trainer):
            rows.append({key: value for key, value in row.items() if "time" not in key})
        return rows


def train(output_dir, resume=False, **overrides):
    trainer = colocate_run.make_trainer(str(output_dir), **overrides)
    llm = trainer.vllm_generation.llm
    generate = llm.generate
    rollouts = []

    def recording(*args, **kwargs):
        outputs = generate(*args, **kwargs)
        completions = [output.outputs[0] for output in outputs]
        rollouts.append(
            [Completion(list(completion.token_ids), completion.finish_reason) for completion in completions]
        )
        return outputs

    llm.generate = recording
    trainer.train(resume_from_checkpoint=resume or None)
    return Run(trainer, rollouts)


@pytest.fixture(scope="module")
def run_process():
    """Runs colocate_run in a process of its own, in the environment before TRL writes its process group's variables
    into it."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}

    def run(*words):
        command = [sys.executable, colocate_run.__file__, *words]
        return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)

    return run


@pytest.fixture(scope="module", autouse=True)
def _weights_can_be_replaced(run_process):
    with pytest.MonkeyPatch.context() as patch:
        colocate_run.set_up(patch)
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return train(tmp_path_factory.mktemp("whole"))


def test_lambda_takes_the_dual_step_of_the_lengths_vllm_generated(whole):
    lam = colocate_run.LAMBDA_INIT
    for row, rollout in zip(whole.rows, whole.rollouts, strict=True):
        mean_length = sum(len(completion.token_ids) for completion in rollout) / len(rollout)
        assert row["leash/lambda"] == pytest.approx(lam, rel=1e-9)
        assert row["leash/mean_length"] == mean_length
        lam += colocate_run.LAMBDA_LR * (mean_length / colocate_run.TARGET_LENGTH - 1)
    assert len(whole.rows) == colocate_run.NUM_STEPS
    assert whole.trainer.length_control.lam == pytest.approx(lam, rel=1e-9)
    assert abs(lam - colocate_run.LAMBDA_INIT) > 0.01


def test_a_completion_is_truncated_if_vllm_stopped_it_at_the_limit(whole):
    eos = whole.trainer.processing_class.eos_token_id
    for row, rollout in zip(whole.rows, whole.rollouts, strict=True):
        num_truncated = sum(completion.finish_reason == "length" for completion in rollout)
        assert row["leash/truncated_share"] == num_truncated / len(rollout)
        for completion in rollout:
            assert (completion.token_ids[-1] == eos) == (completion.finish_reason == "stop")
    completions = itertools.chain.from_iterable(whole.rollouts)
    assert {completion.finish_reason for completion in completions} == {"stop", "length"}


def test_a_killed_run_repeats_the_uninterrupted_run(whole, tmp_path, run_process):
    """SIGKILL in the middle of step 5, then resume from the last checkpoint."""
    killed = run_process(str(tmp_path), "5")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == ["checkpoint-2", "checkpoint-4"]
    resumed = train(tmp_path, resume=True)
    assert resumed.rollouts == whole.rollouts[4:]
    assert resumed.rows == whole.rows
    assert resumed.trainer.length_control.lam == whole.trainer.length_control.lam


def test_leash_train_runs_on_vllm(tmp_path, run_process):
    """The smoke recipe without its rollout function, which would generate in vLLM's place."""
    recipe = yaml.safe_load((ROOT / "recipes" / "gym" / "smoke.yaml").read_text(encoding="utf-8"))
    del recipe["rollout_func"]
    (tmp_path / "smoke.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    words = ["leash", "train", "--config", str(tmp_path / "smoke.yaml"), "--output_dir", str(tmp_path / "run")]
    words += ["--use_vllm", "true", "--vllm_mode", "colocate", "--vllm_importance_sampling_correction", "true"]
    finished = run_process(*words)
    assert finished.returncode == 0, finished.stderr
    state = json.loads((tmp_path / "run" / "checkpoint-5" / "trainer_state.json").read_text(encoding="utf-8"))
    rows = [row for row in state["log_history"] if "loss" in row]
    assert len(rows) == 5
    # TRL has these only for tokens that vLLM sampled
    for row in rows:
        assert 0 < row["sampling/sampling_logp_difference/max"] < 1e-3
