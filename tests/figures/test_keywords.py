"""Keywords of the paper's behavior analysis, and their means over checkpoints."""

import pytest
import yaml
from conftest import ROOT
from written_runs import said, write_evaluation

from leash_trl.evaluation.runs import load_evaluated_run
from leash_trl.figures.behavior import KEYWORDS, behavior, keyword_counts


@pytest.mark.parametrize(
    ("text", "expected"), yaml.safe_load((ROOT / "tests" / "fixtures" / "keywords.yaml").read_text(encoding="utf-8"))
)
def test_counts_by_hand(text, expected):
    counts = keyword_counts(text)
    by_keyword = {
        key.removeprefix("keyword "): count for key, count in counts.items() if count and key not in KEYWORDS
    }
    assert by_keyword == expected


PROBLEMS = [
    [said(10, text="So first. Wait."), said(30, text="So so so")],
    [said(20, text="nothing"), said(20, text="second step")],
]


@pytest.fixture
def run(tmp_path):
    def make(label="base", step=None, **benchmarks):
        folder = write_evaluation(tmp_path / f"{label}-{step}", label, benchmarks or {"a": PROBLEMS}, step)
        return load_evaluated_run(folder)

    return make


def test_behavior_by_hand(run):
    row = behavior([run(step=7)]).iloc[0]
    # per problem: tokens 20 and 20; summary (1 + 3) / 2 = 2 and 0; rethink 0.5 and 0; plan 0.5 and 1
    assert row[["run", "step", "problems", "responses", "tokens"]].tolist() == ["base", 7, 2, 4, 20]
    assert row[[*KEYWORDS]].tolist() == [1, 0.25, 0.75]
    # 2 and 0: their mean is 1 -+ 12.706 * 1
    assert row[["summary_low", "summary_high"]].tolist() == pytest.approx([0, 13.706], abs=1e-3)
    assert row[["keyword so", "keyword step", "keyword thus"]].tolist() == [1, 0.25, 0]
    # benchmarks count alike; means of a and b: tokens 20 and 40, summary 1 and 1, plan 0.75 and 0
    row = behavior([run(a=PROBLEMS, b=[[said(40, text="Thus")] * 2])]).iloc[0]
    assert row[["tokens", "summary", "plan", "keyword step", "problems"]].tolist() == [30, 1, 0.375, 0.125, 3]


@pytest.mark.parametrize(
    ("steps", "order"),
    [([9, 1], [1, 0]), ([9, 1, None], [2, 1, 0]), ([9, None, None], [0, 1, 2]), ([None, 0, 9], [0, 1, 2])],
)
def test_checkpoints_are_sorted_by_step_only_if_steps_tell_them_apart(run, steps, order):
    runs = [run(str(index), step) for index, step in enumerate(steps)]
    assert behavior(runs)["run"].astype(int).tolist() == order
