"""In runs: the price of length is lower over the last updates, also in a run that was resumed among them."""

import killable_run
import pytest
from conftest import log_rows


RELEASE = {"release_share": 0.5}


def test_lambda_over_ten_updates_of_which_the_last_half_is_released(make_trainer):
    # 2 of 64 problems an update
    trainer = make_trainer(length_control_kwargs=RELEASE, max_steps=-1, num_train_epochs=10 / 32)
    trainer.train()
    rows = log_rows(trainer)
    lambdas = [0.1]
    for row in rows[:5]:
        lambdas.append(lambdas[-1] + 0.1 * row["leash/violation"])
    kept = lambdas.pop()
    assert [row["leash/lambda"] for row in rows] == pytest.approx(lambdas + [0.25 * kept] * 5)


def test_a_run_that_is_resumed_among_the_released_updates_goes_on_there(tiny_model_path, tmp_path):
    changes = {"max_steps": 10, "length_control_kwargs": RELEASE}
    whole = killable_run.make_trainer(tiny_model_path, str(tmp_path / "whole"), **changes)
    whole.train()
    resumed = killable_run.make_trainer(tiny_model_path, str(tmp_path / "resumed"), **changes)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-8"))
    keys = ("loss", "leash/lambda", "leash/mean_penalty")
    expected = [[row[key] for key in keys] for row in log_rows(whole)]
    assert [[row[key] for key in keys] for row in log_rows(resumed)] == expected
    assert resumed.length_control.state_dict() == whole.length_control.state_dict()
    assert resumed.length_control.is_released
