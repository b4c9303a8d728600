"""What trackers get: LEASH's keys under every one, and in TensorBoard a sample of the completions too."""

import html
import re

import pytest
from conftest import parity_reward
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugin_util import markdown_to_safe_html
from transformers import TrainerCallback


TAG = "completions/text_summary"  # torch's SummaryWriter appends the second part


def length_reward(completion_ids, **kwargs):
    return [float(len(ids)) for ids in completion_ids]


def unscored_reward(completion_ids, **kwargs):
    return [None] * len(completion_ids)


@pytest.fixture
def shown(tmp_path, monkeypatch):
    """Completions in the event files of the runs so far: a table of texts for each step they were written at."""
    folder = tmp_path / "tensorboard"
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(folder))

    def read(file="*"):
        tables = []
        for path in sorted(folder.glob(file), key=lambda path: path.stat().st_mtime_ns):
            events = EventAccumulator(str(path), size_guidance={"tensors": 0}).Reload()
            for event in events.Tensors(TAG) if TAG in events.Tags()["tensors"] else []:
                page = markdown_to_safe_html(event.tensor_proto.string_val[0].decode())
                cells = [re.findall(r"(?s)<t[dh]\b[^>]*>(.*?)</t[dh]>", row) for row in page.split("</tr>")[:-1]]
                tables.append((event.step, [[html.unescape(cell) for cell in row] for row in cells]))
        return tables

    return read


@pytest.fixture
def train(make_trainer, shown):
    def run(resume=None, **settings):
        settings = {"report_to": "tensorboard", "log_completions": True, "num_completions_to_print": 1, **settings}
        trainer = make_trainer(**settings)
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    return run


def test_completions_are_shown_once_a_logging_step(train, shown, problems):
    """Not again for the evaluation of the same step, nor for the summary at the end."""
    train(
        max_steps=5,
        logging_steps=2,
        eval_strategy="steps",
        eval_steps=2,
        per_device_eval_batch_size=8,
        eval_dataset=problems.select(range(8)),
    )
    assert [step for step, _ in shown()] == [2, 4]


def test_completions_are_those_of_the_last_batch_with_all_their_columns(train, shown):
    trainer = train(
        reward_funcs=[parity_reward, length_reward], reward_weights=[1.0, 0.0], max_steps=2, num_completions_to_print=8
    )
    step, [head, *rows] = shown()[-1]
    assert step == 2
    assert head == [
        "prompt",
        "completion",
        "parity_reward",
        "length_reward",
        "length",
        "penalty",
        "shaped_reward",
        "task_reward",
        "advantage",
    ]
    logged = trainer._logs
    assert len(rows) == len(logged["prompt"]) == 8
    for name, column in (*logged["rewards"].items(), *logged["extra"].items(), ("advantage", logged["advantages"])):
        assert [float(row[head.index(name)]) for row in rows] == pytest.approx(list(column), rel=1e-3)
    for row, prompt, completion in zip(rows, logged["prompt"], logged["completion"], strict=True):
        assert row[0] == f"user: {prompt[0]['content']}"
        # Markdown drops spaces at the ends
        assert row[1].replace("<br>", "\n") == f"assistant: {completion[0]['content']}".strip()


def test_four_completions_are_shown_where_the_console_gets_all(train, shown):
    train(max_steps=1, num_completions_to_print=None)
    assert len(shown()[0][1]) == 1 + 4


def test_an_unscored_reward_is_shown_as_such(train, shown):
    train(reward_funcs=[parity_reward, unscored_reward], max_steps=1)
    _, [head, row] = shown()[0]
    assert row[head.index("unscored_reward")] == "nan"


@pytest.mark.parametrize("settings", [{"log_completions": False}, {"num_completions_to_print": 0}])
def test_completions_that_are_not_wanted_are_not_shown(train, shown, settings):
    train(max_steps=1, **settings)
    assert shown() == []


def test_a_resumed_run_shows_its_own_steps(train, shown, tmp_path):
    settings = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    train(**settings)
    whole = shown()
    assert [step for step, _ in whole] == [1, 2, 3, 4]
    train(**settings, resume=str(tmp_path / "run" / "checkpoint-2"))
    assert shown() == [*whole, *whole[2:]], "the same steps with the same completions"


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
