"""A user's own method: the README's example, and what is refused in its place."""

import json
import sys
from pathlib import Path

import pytest
from toy_rollouts import toy_rollouts

import leash_trl.length_control
from leash_trl.length_control.advantages import AdvantageRule
from leash_trl.length_control.methods import find_method


README = Path(leash_trl.length_control.__path__[0], "README.md").read_text(encoding="utf-8")
MORE = """
from dataclasses import dataclass

@dataclass
class Decorated(PricePerToken):
    name = "decorated"
    floor: float = hyperparameter(0.5, ge=0)
"""


@pytest.fixture
def my_lib(tmp_path, monkeypatch):
    example = README.partition("```python\n")[2].partition("```")[0]
    (tmp_path / "my_lib.py").write_text(example + MORE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_lib", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])


def test_the_method_of_the_readme_is_one_file_anywhere(my_lib):
    make = find_method("my_lib.PricePerToken")
    method, restored = make(price=0.5), make(price=0.5)
    batch = toy_rollouts([1, -1], [10, 30], target=15.0)
    score = method.score(batch, AdvantageRule("none"))
    assert score.shaped.tolist() == [1 - 5, -15]
    assert score.penalty.tolist() == [5, 15]
    assert score.advantages.tolist() == [5.5, -5.5]
    method.observe(batch)  # a mean of 20 is over 15
    restored.load_state_dict(json.loads(json.dumps(method.state_dict())))
    for each in (method, restored):
        each.step()
        assert each.statistics() == {"price": pytest.approx(0.55)}
    with pytest.raises(ValueError, match=r"growth is 0\.5"):
        make(growth=0.5)


def test_a_decorator_of_habit_loses_no_range(my_lib):
    make = find_method("my_lib.Decorated")
    assert (make().floor, make(floor=1).growth) == (0.5, 1.1)
    for wrong in ({"floor": -1}, {"growth": 0.5}, {"floor": "1"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            make(**wrong)


@pytest.mark.parametrize("path", ["my_lib.Missing", "no_such_lib.Mine", "lesh"])
def test_what_is_no_method_is_refused_in_a_line_that_names_it(my_lib, path):
    with pytest.raises(ValueError, match=f"'{path}'") as refused:
        find_method(path)
    assert "\n" not in str(refused.value)
