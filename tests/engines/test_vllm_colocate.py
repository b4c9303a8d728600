"""TRL's colocate mode with the real vLLM, on its CPU build. Skipped without vLLM; `make test-vllm`.

Every call of vLLM's engine is recorded where the engine returns.
"""

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


pytest.importorskip("vllm")
pytestmark = pytest.mark.vllm

import pandas as pd  # noqa: E402
import yaml  # noqa: E402
from colocate_run import (  # noqa: E402
    LAMBDA_INIT,
    LAMBDA_LR,
    MAX_COMPLETION_LENGTH,
    NUM_STEPS,
    TARGET_LENGTH,
    make_trainer,
    set_up,
)
from conftest import ROOT  # noqa: E402

from leash_trl.engines.checkpoint_path import length_control_state  # noqa: E402


COLOCATE_RUN = ROOT / "tests" / "support" / "colocate_run.py"


@dataclass(frozen=True)
class Rollout:
    """What one call of vLLM's engine gave."""

    completion_ids: list[list[int]]
    finish_reasons: list[str]


@dataclass(frozen=True)
class Run:
    """A trained trainer, and what its engine did during training."""

    trainer: Any
    rollouts: list[Rollout]

    @property
    def rows(self) -> list[dict[str, float]]:
        return [row for row in self.trainer.state.log_history if "loss" in row]


@contextmanager
def recorded(trainer) -> Iterator[list[Rollout]]:
    """Every call of the trainer's engine inside the block."""
    llm, rollouts = trainer.vllm_generation.llm, []
    generate = llm.generate

    def recording(*args, **kwargs):
        outputs = generate(*args, **kwargs)
        completions = [output.outputs[0] for output in outputs]
        reasons = [completion.finish_reason for completion in completions]
        rollouts.append(Rollout([list(completion.token_ids) for completion in completions], reasons))
        return outputs

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(llm, "generate", recording)
        yield rollouts


@pytest.fixture(scope="module")
def plain_environment() -> dict[str, str]:
    """The environment before TRL writes its process group's variables into it."""
    return {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}


@pytest.fixture(scope="module", autouse=True)
def _weights_can_be_replaced(plain_environment):
    with pytest.MonkeyPatch.context() as patch:
        set_up(patch)
        yield


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    """Factory of finished runs."""

    def run(output_dir: Path | None = None, resume: bool = False, **overrides) -> Run:
        output_dir = output_dir or tmp_path_factory.mktemp("colocate")
        trainer = make_trainer(str(output_dir), **overrides)
        with recorded(trainer) as rollouts:
            trainer.train(resume_from_checkpoint=resume or None)
        return Run(trainer, rollouts)

    return run


@pytest.fixture(scope="module")
def whole(train) -> Run:
    return train()


@pytest.fixture(scope="module")
def corrected(train) -> Run:
    return train(
        vllm_importance_sampling_correction=True, vllm_importance_sampling_mode="token_truncate", save_strategy="no"
    )


def test_lambda_takes_the_dual_step_of_the_lengths_vllm_generated(whole):
    lam = LAMBDA_INIT
    for row, rollout in zip(whole.rows, whole.rollouts, strict=True):
        lengths = [len(ids) for ids in rollout.completion_ids]
        assert row["leash/lambda"] == pytest.approx(lam, rel=1e-9)
        assert row["leash/mean_length"] == sum(lengths) / len(lengths)
        assert row["leash/max_length"] == max(lengths)
        lam += LAMBDA_LR * sum(length / TARGET_LENGTH - 1 for length in lengths) / len(lengths)
    assert len(whole.rows) == NUM_STEPS
    assert whole.trainer.length_control.lam == pytest.approx(lam, rel=1e-9)
    assert abs(lam - LAMBDA_INIT) > 0.01


def test_every_completion_has_the_length_vllm_gave_it(whole):
    eos = whole.trainer.processing_class.eos_token_id
    for step, rollout in enumerate(whole.rollouts, start=1):
        table = pd.read_parquet(Path(whole.trainer.args.output_dir, "completions", f"completions_{step:05d}.parquet"))
        assert table["length"].tolist() == [len(ids) for ids in rollout.completion_ids]
        for ids, reason in zip(rollout.completion_ids, rollout.finish_reasons, strict=True):
            assert (ids[-1] == eos) == (reason == "stop")
            assert reason == "stop" or len(ids) == MAX_COMPLETION_LENGTH
        assert whole.rows[step - 1]["leash/truncated_share"] == rollout.finish_reasons.count("length") / len(table)
    assert {"stop", "length"} == {reason for rollout in whole.rollouts for reason in rollout.finish_reasons}


def test_importance_ratios_are_near_one_and_the_first_loss_is_the_uncorrected_one(whole, corrected):
    for row in corrected.rows:
        for statistic in ("min", "mean", "max"):
            assert row[f"sampling/importance_sampling_ratio/{statistic}"] == pytest.approx(1.0, abs=1e-3)
        # of processed log-probabilities of a few nats, in float32; 0 would mean that nothing was compared
        assert 0 < row["sampling/sampling_logp_difference/max"] < 1e-3
        assert row["grad_norm"] > 0
    assert len(corrected.rows) == NUM_STEPS
    assert corrected.rollouts[0].completion_ids == whole.rollouts[0].completion_ids
    for key in ("loss", "grad_norm"):
        assert corrected.rows[0][key] == pytest.approx(whole.rows[0][key], rel=1e-3, abs=1e-6)
    assert "sampling/importance_sampling_ratio/mean" not in whole.rows[0]


def untimed(rows: list[dict[str, float]]) -> list[dict[str, float]]:
    return [{key: value for key, value in row.items() if "time" not in key} for row in rows]


def test_a_killed_run_repeats_the_uninterrupted_run(whole, train, tmp_path, plain_environment):
    """SIGKILL in the middle of step 5, then resume from the last checkpoint."""
    command = [sys.executable, str(COLOCATE_RUN), str(tmp_path), "5"]
    killed = subprocess.run(command, capture_output=True, text=True, env=plain_environment, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == ["checkpoint-2", "checkpoint-4"]

    resumed = train(tmp_path, resume=True)
    assert [rollout.completion_ids for rollout in resumed.rollouts] == [
        rollout.completion_ids for rollout in whole.rollouts[4:]
    ]
    assert untimed(resumed.rows) == untimed(whole.rows)
    assert resumed.trainer.length_control.lam == whole.trainer.length_control.lam


def test_leash_train_runs_on_vllm(tmp_path, plain_environment):
    """The smoke recipe without its rollout function, which would generate in vLLM's place."""
    recipe = yaml.safe_load((ROOT / "recipes" / "gym" / "smoke.yaml").read_text(encoding="utf-8"))
    del recipe["rollout_func"]
    (tmp_path / "smoke.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    command = [sys.executable, str(COLOCATE_RUN), "leash", "train", "--config", str(tmp_path / "smoke.yaml")]
    command += ["--output_dir", str(tmp_path / "run"), "--use_vllm", "true", "--vllm_mode", "colocate"]
    command += ["--vllm_importance_sampling_correction", "true", "--lambda_lr", "0.1"]
    finished = subprocess.run(command, capture_output=True, text=True, env=plain_environment, check=False)
    assert finished.returncode == 0, finished.stderr
    state = json.loads((tmp_path / "run" / "checkpoint-5" / "trainer_state.json").read_text(encoding="utf-8"))
    rows = [row for row in state["log_history"] if "loss" in row]
    assert len(rows) == 5
    for row, later in itertools.pairwise(rows):
        step = 0.1 * (row["leash/mean_length"] / recipe["target_length"] - 1)
        assert later["leash/lambda"] == pytest.approx(row["leash/lambda"] + step, rel=1e-6)
        # TRL has these only for tokens that vLLM sampled
        assert 0 < row["sampling/sampling_logp_difference/max"] < 1e-3
    last = 0.1 * (rows[-1]["leash/mean_length"] / recipe["target_length"] - 1) + rows[-1]["leash/lambda"]
    (lam,) = length_control_state(tmp_path / "run")["state"]["lambdas"].values()
    assert lam == pytest.approx(last, rel=1e-6)
