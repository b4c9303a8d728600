"""A method that cannot act in a run says so before training, and no other does."""

import json
import math

import pytest
from toy_rollouts import toy_rollouts

from leash_trl.length_control.method import LengthControl, state_field
from leash_trl.length_control.methods import METHODS
from leash_trl.trainer.effect_check import no_effect_warning


# what fits a limit of 192 tokens, and one of 16,384, where the defaults do not
SHORT = {
    "l1_exact": {"budget_range": [20, 150]},
    "l1_max": {"budget_range": [20, 150]},
    "dapo_overlong": {"cache_length": None},
    "lead": {"lower_bound": 20},
    "nemo_rl": {"profile_band": {"a": 20, "b": 60, "f": 0.5}},
}
LONG = {"nemo_rl": {"profile_band": {"a": 900, "b": 1200, "f": 0.5}}}


@pytest.mark.parametrize("name", METHODS)
def test_no_method_with_sensible_settings_is_accused(name):
    method = METHODS[name]
    assert no_effect_warning(method(**SHORT.get(name, {})), 64, 192, num_generations=4) is None
    fitting = method(**LONG.get(name, {}))
    assert no_effect_warning(fitting, 4096, 16384, num_generations=8) is None
    if name not in ("dapo_overlong", "cosine", "drpo", "lead"):  # these refuse a run without a limit
        assert no_effect_warning(fitting, 500, math.inf, num_generations=16) is None


ACTS = [
    # by a state that moves, sooner or later
    ("leash", {"lambda_init": 0.0}),
    ("laconic", {}),
    ("a_dlp", {"lambda_init": 0.0, "accuracy_reference": 0.95}),
    ("hapo", {}),
    ("kimi", {"warmup_steps": 400}),
    ("laser_d", {"interval": 16}),
    ("thinkprune", {"suffix": "", "stages": {0: 192, 300: 100}}),
    # by the limit of generation, by the prompt
    ("dler", {}),
    ("l1_max", {"alpha": 0.0}),
    ("leash", {"multiplier_per": "effort"}),
]
CANNOT = [
    ("leash", {"lambda_init": 0.0, "lambda_lr": 0.0}),
    ("leash_predictive", {"lambda_init": 0.0, "lambda_max": 0.0}),
    ("kimi", {"weight": 0.0}),
    ("hapo", {"weight": 0.0}),
    ("a_dlp", {"lambda_init": 0.0, "accuracy_reference": 1.0}),
    ("toggle", {"percentile": 100.0}),
    ("thinkprune", {"suffix": ""}),
    # its targets are 24 and from 1024 on, and too few answers end within 24
    ("laser_d", {}),
    ("gfpo", {"num_kept": 8}),
    ("nemo_rl", {"profile_band": {"a": 900, "b": 1200, "f": 0.5}}),
]


@pytest.mark.parametrize(("name", "kwargs"), ACTS, ids=str)
def test_what_acts_in_any_way_is_not_accused(name, kwargs):
    assert no_effect_warning(METHODS[name](**kwargs), 24, 192, num_generations=8) is None


@pytest.mark.parametrize(("name", "kwargs"), CANNOT, ids=str)
def test_what_cannot_act_says_so_in_one_line_and_does_not_move(name, kwargs):
    method = METHODS[name](**kwargs)
    before = json.dumps(method.state_dict())
    warning = no_effect_warning(method, 24, 192, num_generations=8)
    assert f"'{name}'" in warning
    assert "\n" not in warning
    assert json.dumps(method.state_dict()) == before


def test_a_target_that_is_never_exceeded_is_no_target():
    method = METHODS["leash"]()
    assert no_effect_warning(method, 192, 192, num_generations=8) is not None
    assert no_effect_warning(method, 191, 192, num_generations=8) is None


class ByQuestion(LengthControl):
    name = "by_question"
    seen: dict = state_field(dict)

    def observe(self, rollouts):
        self.seen = dict.fromkeys(rollouts.questions.tolist(), 1.0)


def test_a_state_that_a_checkpoint_would_change_is_refused():
    """JSON makes text of whole numbers as keys."""
    method = ByQuestion()
    method.observe(toy_rollouts([1, -1], [5, 6]))
    with pytest.raises(ValueError, match="by_question") as refused:
        method.state_dict()
    assert "\n" not in str(refused.value)
