"""In runs: the price of length is lower over the last updates, also in a run that was killed among them."""

import signal

import killable_run
import pytest
from conftest import log_rows, parity_reward
from processes import exit_code
from stock_run import LAMBDA_INIT, LAMBDA_LR, any_trainer

from leash_trl.length_control.leash import Leash


RELEASE = {"release_share": 0.5}
# 2 of 64 problems an update
TEN_UPDATES = {"max_steps": -1, "num_train_epochs": 10 / 32}


@pytest.mark.parametrize("kind", ["LeashGRPO", "GRPO"])
def test_lambda_over_ten_updates_of_which_the_last_half_is_released(kind, make_trainer, tiny_model_path, tmp_path):
    settings = {"length_control_kwargs": RELEASE}
    if kind == "GRPO":
        settings = {"method": Leash(lambda_init=LAMBDA_INIT, lambda_lr=LAMBDA_LR, **RELEASE)}
    trainer, _ = any_trainer(kind, make_trainer, tiny_model_path, tmp_path, parity_reward, **settings, **TEN_UPDATES)
    trainer.train()
    rows = log_rows(trainer, "leash/lambda")
    lambdas = [LAMBDA_INIT]
    for row in rows[:5]:
        lambdas.append(lambdas[-1] + LAMBDA_LR * row["leash/violation"])
    kept = lambdas.pop()
    assert [row["leash/lambda"] for row in rows] == pytest.approx(lambdas + [0.25 * kept] * 5)


def test_a_run_that_is_killed_among_the_released_updates_resumes_there(tiny_model_path, tmp_path):
    def trainer(name, **killed):
        changes = {"max_steps": 10, "length_control_kwargs": RELEASE}
        return killable_run.make_trainer(tiny_model_path, str(tmp_path / name), **killed, **changes)

    whole = trainer("whole")
    whole.train()
    assert exit_code(trainer("killed", kill_in_step=9).train) == -signal.SIGKILL
    resumed = trainer("killed")
    resumed.train(resume_from_checkpoint=True)
    keys = ("loss", "leash/lambda", "leash/mean_penalty")
    expected = [[row[key] for key in keys] for row in log_rows(whole)]
    assert [[row[key] for key in keys] for row in log_rows(resumed)] == expected
    assert resumed.length_control.state_dict() == whole.length_control.state_dict()
    assert resumed.length_control.is_released
