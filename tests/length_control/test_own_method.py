"""A user's own method: the README's example, and what is refused in its place.

A message is one line if `\\A.*\\Z` matches it, since `.` matches no line end.
"""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_rollouts import toy_rollouts

from leash_trl import length_control
from leash_trl.length_control import AdvantageRule, LengthControl, check_length_control
from leash_trl.length_control.methods import find_method


README = Path(length_control.__path__[0], "README.md").read_text(encoding="utf-8")


@pytest.fixture
def my_lib(tmp_path, monkeypatch):
    code = README.partition("```python\n")[2].partition("```")[0]
    (tmp_path / "my_lib.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_lib", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])


def test_the_method_of_the_readme_is_one_file_anywhere(my_lib):
    make = find_method("my_lib.PenaltyPerToken")
    method = make(weight=0.5)
    batch = toy_rollouts([1, -1], [10, 30], target=15.0)
    score = method.score(batch, AdvantageRule("none"))
    assert score.shaped.tolist() == [1 - 5, -15]
    assert score.penalty.tolist() == [5, 15]
    assert score.advantages.tolist() == [5.5, -5.5]
    method.observe(batch)  # a mean of 20 is over 15
    restored = make(weight=0.5)
    restored.load_state_dict(json.loads(json.dumps(method.state_dict())))
    for resumed in (method, restored):
        resumed.step()
        assert resumed.statistics() == {"weight": pytest.approx(0.55)}
    with pytest.raises(ValueError, match=r"growth is 0\.5"):
        make(growth=0.5)


def test_the_check_of_the_readme_passes(my_lib):
    code = README.partition("from my_methods import PenaltyPerToken")[2].partition("```")[0]
    names = {"PenaltyPerToken": find_method("my_lib.PenaltyPerToken"), "check_length_control": check_length_control}
    exec(code, names)
    names["test_my_method_keeps_the_contract"]()


class Changed(LengthControl):
    """Returns what `change` makes of the rewards."""

    name = "log_budget"

    change: Any = None

    def shaped_rewards(self, rollouts):
        return self.change(self.base_rewards(rollouts))


FOUR = toy_rollouts([1, -1, 1, 1], [10, 30, 5, 7])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_reward_that_is_no_number_is_refused_where_the_task_has_one(value):
    with pytest.raises(ValueError, match=rf"\A.*shaped_rewards of .*log_budget.*{value}.*\Z"):
        Changed(lambda rewards: rewards * value).score(FOUR, AdvantageRule())


def test_rewards_in_float32_are_rewards():
    assert Changed(torch.Tensor.float).score(FOUR, AdvantageRule()).shaped.tolist() == [1, 0, 1, 1]
