"""The task reward in TRL's forms, also in a forked process."""

import os
import signal

import numpy as np
import pytest
import torch

from leash_trl.rewards import lenient_math_reward, math_reward
from leash_trl.rewards.grader.pool import GraderPool, Verdict


def test_conversational_completions_and_other_columns():
    completions = [[{"role": "assistant", "content": r"\boxed{4}"}], [{"role": "assistant", "content": None}]]
    assert math_reward(completions, ["4", "4"], prompts=["a", "b"], level=[1, 2]) == [1.0, -1.0]


def test_what_a_tool_said_is_not_the_models_answer():
    conversation = [
        {"role": "assistant", "content": "I ask the tool."},
        {"role": "tool", "content": "Answer: 42"},
        {"role": "assistant", "content": [{"type": "text", "text": "I give up."}]},
    ]
    assert math_reward([conversation], ["42"]) == [-1.0]
    conversation[-1]["content"][0]["text"] = r"\boxed{42}"
    assert math_reward([conversation], ["42"]) == [1.0]


def test_lenient_takes_bare_answers_and_tags():
    completions = ["So there are 12 of them.", "<answer>12</answer>", r"It is $\frac{2}{14}$."]
    golds = ["12", "12", "1/7"]
    assert lenient_math_reward(completions, golds, level=[1] * 3) == [1.0] * 3
    assert math_reward(completions, golds) == [-1.0] * 3


def test_what_does_not_end_is_left_out_and_its_share_is_logged(monkeypatch):
    monkeypatch.setattr(GraderPool, "verdicts", lambda self, cases: [Verdict(None, "ran out of time")] * len(cases))
    logged = {}
    completions = [r"\boxed{x+x}", "none", "none", "none"]
    assert math_reward(completions, ["2x"] * 4, log_metric=logged.__setitem__) == [None, -1.0, -1.0, -1.0]
    assert logged == {"grader/unscorable_share": 0.25}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_grades_with_a_pool_of_its_own():
    assert math_reward([r"\boxed{x+x}"], ["2x"]) == [1.0]
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        os._exit(0 if math_reward([r"\boxed{y+y}"], ["2y"]) == [1.0] else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert math_reward([r"\boxed{z+z}"], ["2z"]) == [1.0]


@pytest.mark.parametrize("gold", [None, float("nan"), np.float64("nan")])
def test_a_missing_gold_is_unscorable(gold):
    assert math_reward([r"\boxed{7}", "no answer", r"\boxed{7}"], [gold, gold, "7"]) == [None, -1.0, 1.0]


def test_numbers_are_golds():
    golds = [7, 7.0, np.int64(7), torch.tensor(0.5), -3, 1e-7, 1e22, 8]
    answers = ["7", "7", "7", "1/2", "-3", "10^{-7}", "10^{22}", "7"]
    completions = [rf"\boxed{{{answer}}}" for answer in answers]
    assert math_reward(completions, golds) == [1.0] * 7 + [-1.0]


@pytest.mark.parametrize("gold", [["7"], {"answer": "7"}, True])
def test_a_gold_of_another_type_is_named_with_its_place(gold):
    with pytest.raises(ValueError, match="solution of completion 1 is"):
        math_reward([r"\boxed{7}"] * 2, ["7", gold])
