"""Vectors of papers and released code, each with its source; `tests/fixtures/method_vectors.jsonl` has one a line."""

import json
from pathlib import Path

import pytest
from toy_rollouts import toy_rollouts

from leash_trl.length_control.advantages import AdvantageRule
from leash_trl.length_control.methods import METHODS


FILE = Path(__file__).parents[1] / "fixtures" / "method_vectors.jsonl"
VECTORS = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]


def close(values):
    return pytest.approx(values, rel=1e-6, abs=1e-9, nan_ok=True)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["id"])
def test_a_vector_is_met(vector):
    """`settings` are what differs from the defaults, `state` is loaded first, `after` is the state after a step."""
    method = METHODS[vector["method"]](**vector.get("settings", {}))
    method.load_state_dict({**method.state_dict(), **vector.get("state", {})})
    if "prompt_suffix" in vector:
        assert method.prompt_suffix(vector["target"], 4000) == vector["prompt_suffix"]
        return
    batch = toy_rollouts(vector["rewards"], vector["lengths"], **vector.get("batch", {}))
    score = method.score(batch, AdvantageRule("group", vector.get("epsilon", 1e-8)))
    for part in vector.keys() & {"shaped", "advantages"}:
        assert getattr(score, part).tolist() == close(vector[part])
    if "penalty" in vector:  # 1e-7 a token would drown beside a reward of 1
        assert score.penalty.tolist() == pytest.approx(vector["penalty"], rel=1e-6, abs=1e-12)
    if "kept" in vector:
        assert method.kept(batch).nonzero().flatten().tolist() == vector["kept"]
    if "after" in vector:
        method.observe(batch)
        method.step()
        assert {name: getattr(method, name) for name in vector["after"]} == {
            name: expected if isinstance(expected, dict) else close(expected)
            for name, expected in vector["after"].items()
        }
