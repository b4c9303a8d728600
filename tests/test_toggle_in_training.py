"""Toggle: the report's formula by hand, the method inside it, and what its state does while the budget is off."""

import math
import signal
from functools import partial

import killable_run
import pytest
import torch
from conftest import parity_reward
from test_resume import checkpoint, exit_code

from leash_trl.length_control.leash import Leash
from leash_trl.length_control.method import LengthControl
from leash_trl.length_control.toggle import Toggle


NAN = math.nan


def close(actual, expected):
    expected = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12, equal_nan=True)


def off(method: Toggle) -> Toggle:
    """The method at the first update of a period without a budget."""
    for _ in range(method.period):
        method.step()
    return method


def test_every_part_of_a_method_is_handed_on(make_args):
    """What toggle does not hand on would be lost in silence; it refuses methods that cut or write into prompts."""
    parts = {name: value for name, value in vars(LengthControl).items() if not name.startswith("_")}
    does = {name for name, value in parts.items() if callable(value) or isinstance(value, property | classmethod)}
    assert does - vars(Toggle).keys() == {"generation_cap", "prompt_suffix", "paper"}
    set_for_run = parts.keys() - does - LengthControl.__annotations__.keys()
    assert set_for_run >= {"generation_limit", "reward_baseline"}
    method = make_args(length_control="toggle", lambda_lr=None).make_length_control()
    for each in (method, method.switched):
        assert set_for_run <= vars(each).keys()


def test_the_advantage_rules_of_the_configuration_hold_inside_and_outside(make_rollouts, make_args):
    batch = make_rollouts([1, 1, -1, -1], [80, 150, 300, 90], 100.0)
    method, alone = Toggle("leash", {"lambda_init": 0.2}, period=1), Leash(lambda_init=0.2)
    for each in (method, alone):
        each.set_for_run(multi_objective_aggregation="normalize_then_sum")
    expected = alone.advantages(alone.shape(batch), batch, "group", 1e-8)
    assert torch.equal(method.advantages(method.shape(batch), batch, "group", 1e-8), expected)
    off(method)
    half = math.sqrt(3) / 2  # the task alone: 1 over the deviation, the root of 4 / 3
    close(method.advantages(method.shape(batch), batch, "group", 1e-15), [half, half, -half, -half])
    fields = {"length_control": "toggle", "lambda_lr": None, "reward_baseline": "length_weighted"}
    make_args(**fields, length_control_kwargs={"method": "leash"})
    with pytest.raises(ValueError, match="reward_baseline is 'length_weighted', but length_control='toggle'"):
        make_args(**fields, length_control_kwargs={"method": "gfpo"})
    with pytest.raises(ValueError, match="length_control='toggle' cuts completions"):
        make_args(**fields, length_control_kwargs={"method": "dot", "method_kwargs": {"alpha": 0.5, "min_excess": 1}})


def test_a_target_is_required_if_the_method_inside_requires_one(make_args):
    fields = {"length_control": "toggle", "lambda_lr": None, "target_length": None}
    make_args(**fields)
    with pytest.raises(ValueError, match="target_length is required"):
        make_args(**fields, length_control_kwargs={"method": "leash"})


@pytest.mark.parametrize("kwargs", [None, {"method": "leash"}, {"method": "gfpo"}])
def test_several_rewards_need_one_that_says_what_is_correct(make_trainer, kwargs):
    fields = {"length_control": "toggle", "lambda_lr": None, "length_control_kwargs": kwargs}
    with pytest.raises(ValueError, match="set correctness_func"):
        make_trainer([parity_reward, lambda completions, **kwargs: [0.0] * len(completions)], **fields)


LEASH = {"method": "leash", "method_kwargs": {"lambda_lr": 0.1}, "period": 3, "accuracy_threshold": 0.25}


def curves(trainer, first=1):
    rows = [row for row in trainer.state.log_history if "loss" in row and row["step"] >= first]
    return [(row["step"], row["loss"], row["leash/lambda"], row["leash/budget_on"]) for row in rows]


def test_a_killed_run_goes_on_in_the_phase_where_it_was(tmp_path, tiny_model_path):
    fields = {"length_control": "toggle", "length_control_kwargs": LEASH, "lambda_lr": None}
    whole = killable_run.make_trainer(tiny_model_path, str(tmp_path / "whole"), **fields)
    whole.train()
    assert [on for *_, on in curves(whole)] == [1, 1, 1, 0, 0, 0, 1, 1]
    lambdas = [lam for *_, lam, _ in curves(whole)]
    assert lambdas[3] == lambdas[4] == lambdas[5] == lambdas[6] != lambdas[7]
    folder = str(tmp_path / "killed")
    killed = partial(killable_run.make_trainer, tiny_model_path, folder, **fields)
    assert exit_code(lambda: killed(kill_in_step=6).train()) == -signal.SIGKILL
    resumed = killed()
    resumed.train(resume_from_checkpoint=checkpoint(folder, 4))
    assert curves(resumed, first=5) == curves(whole, first=5)
