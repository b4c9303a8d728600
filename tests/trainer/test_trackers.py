"""What trackers get: LEASH's keys under every one."""

import pytest
from transformers import TrainerCallback


class Recorder(TrainerCallback):
    """A tracker of the user's own."""

    def __init__(self):
        self.rows = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.rows.append(dict(logs))


@pytest.mark.parametrize("report_to", ["none", "tensorboard"])
def test_every_tracker_gets_the_keys_as_they_are(make_trainer, report_to, monkeypatch, tmp_path):
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "tensorboard"))
    before, after = Recorder(), Recorder()
    trainer = make_trainer(max_steps=2, report_to=report_to, log_completions=True, callbacks=[before])
    trainer.add_callback(after)
    trainer.train()
    logged = [{k: v for k, v in row.items() if k not in ("step", "total_flos")} for row in trainer.state.log_history]
    for recorder in (before, after):
        assert [{k: v for k, v in row.items() if k != "total_flos"} for row in recorder.rows] == logged
        assert {"leash/lambda", "leash/violation", "leash/mean_length", "loss"} <= recorder.rows[0].keys()
        assert not [key for row in recorder.rows for key in row if "completions" in key and "/" not in key]
    assert (tmp_path / "tensorboard").exists() == (report_to == "tensorboard")
