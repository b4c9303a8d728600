"""Vectors of papers and released code, each with its source; `tests/fixtures/method_vectors.jsonl` has one a line."""

import json
from pathlib import Path

import pytest
from toy_rollouts import toy_rollouts

from leash_trl.length_control.advantages import AdvantageRule
from leash_trl.length_control.methods import METHODS


FILE = Path(__file__).parents[1] / "fixtures" / "method_vectors.jsonl"
VECTORS = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]

DESCRIPTION = {"id", "method", "source", "note"}
# `settings` are what differs from the defaults, `state` is loaded before the batch is scored, `target` is that of
# `prompt_suffix`
INPUTS = {"settings", "state", "rewards", "lengths", "batch", "epsilon", "target"}
# `after` is the state after a step
EXPECTATIONS = {"prompt_suffix", "shaped", "advantages", "penalty", "kept", "after"}


def close(values):
    return pytest.approx(values, rel=1e-6, abs=1e-9, nan_ok=True)


def check_keys(vector, state):
    """A vector with a mistyped key would expect less than it seems to, or nothing at all."""
    unknown = vector.keys() - DESCRIPTION - INPUTS - EXPECTATIONS
    assert not unknown, f"unknown keys of the vector: {unknown}"
    expectations = vector.keys() & EXPECTATIONS
    assert expectations, "the vector expects nothing"
    assert "prompt_suffix" not in expectations or len(expectations) == 1, "a prompt has no score; make it two vectors"
    unknown_state = vector.get("state", {}).keys() - state.keys()
    assert not unknown_state, f"unknown keys of the state: {unknown_state}"


def check_vector(vector):
    method = METHODS[vector["method"]](**vector.get("settings", {}))
    state = method.state_dict()
    check_keys(vector, state)
    method.load_state_dict(state | vector.get("state", {}))
    if "prompt_suffix" in vector:
        assert method.prompt_suffix(vector["target"], 4000) == vector["prompt_suffix"]
        return

    batch = toy_rollouts(vector["rewards"], vector["lengths"], **vector.get("batch", {}))
    score = method.score(batch, AdvantageRule("group", epsilon=vector.get("epsilon", 1e-8)))
    if "shaped" in vector:
        assert score.shaped.tolist() == close(vector["shaped"])
    if "advantages" in vector:
        assert score.advantages.tolist() == close(vector["advantages"])
    if "penalty" in vector:  # 1e-7 a token would drown beside a reward of 1
        assert score.penalty.tolist() == pytest.approx(vector["penalty"], rel=1e-6, abs=1e-12)
    if "kept" in vector:
        assert method.is_kept(batch).nonzero().flatten().tolist() == vector["kept"]
    if "after" in vector:
        method.observe(batch)
        method.step()
        for name, expected in vector["after"].items():
            # the values of a dictionary are whole numbers
            assert getattr(method, name) == (expected if isinstance(expected, dict) else close(expected))


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["id"])
def test_a_vector_is_met(vector):
    check_vector(vector)
