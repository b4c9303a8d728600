"""How far a comparison is, by the logs of its runs."""

import json
import os
import re
import subprocess
import sys
import time

from tqdm import std as tqdm_module
from tqdm import tqdm
from transformers import TrainerControl, TrainerState, TrainingArguments

from leash_trl.comparison import progress
from leash_trl.comparison.progress import BAR_PATTERN, ComparisonProgress, RunProgress
from leash_trl.comparison.queue import EndedJob
from leash_trl.comparison.run import ComparedRun
from leash_trl.run_folder import LENGTH_CONTROL_STATE_KEY
from leash_trl.trainer.progress_bar import LeashProgressCallback


def test_the_bar_of_a_resumed_training_counts_only_what_it_does_itself(tmp_path, capsys):
    callback = LeashProgressCallback()
    arguments = TrainingArguments(output_dir=tmp_path, use_cpu=True, bf16=False)
    event = (arguments, TrainerState(global_step=50, max_steps=80), TrainerControl())
    callback.on_train_begin(*event)
    time.sleep(0.2)
    event[1].global_step = 51
    callback.on_step_end(*event)
    callback.on_log(*event, logs={"leash/mean_length": 52.34, "leash/target_length": 46.0, "leash/lambda": 0.125})
    callback.on_train_end(*event)
    printed = capsys.readouterr().err
    *_, last = BAR_PATTERN.finditer(printed)
    assert (last["num_done"], last["total"]) == ("51", "80")
    assert last["bar"].endswith(", length=52.34, target=46, lambda=0.125]")
    # 29 updates of at least 0.2 seconds are left; as 51 updates in 0.2 seconds, they would take none
    minutes, seconds = re.findall(r"51/80 \[[\d:]+<(\d+):(\d+)", printed)[-1]
    assert 60 * int(minutes) + int(seconds) >= 5


def test_the_bar_names_another_cost_than_tokens(tmp_path, capsys):
    callback = LeashProgressCallback()
    state = TrainerState(max_steps=8, stateful_callbacks={LENGTH_CONTROL_STATE_KEY: {"length_of": "tool_calls"}})
    arguments = TrainingArguments(output_dir=tmp_path, use_cpu=True, bf16=False)
    callback.on_train_begin(arguments, state, TrainerControl())
    callback.on_log(arguments, state, TrainerControl(), logs={"leash/mean_length": 1.5})
    callback.training_bar.refresh()
    *_, last = BAR_PATTERN.finditer(capsys.readouterr().err)
    assert last["bar"].endswith(", tool_calls=1.5]")


def run_in(folder, is_trained=True, **recipe):
    return ComparedRun(
        arm=folder.name,
        label=folder.name,
        recipe=recipe,
        grid_values={},
        eval_options={},
        is_trained=is_trained,
        folder=folder,
    )


def write_log(run, text):
    run.folder.mkdir(parents=True, exist_ok=True)
    (run.folder / "log.txt").write_text(text)


def test_a_run_goes_on_from_its_checkpoint_as_its_log_says(tmp_path):
    checkpoint = tmp_path / "checkpoint-50"
    checkpoint.mkdir()
    (checkpoint / "trainer_state.json").write_text(json.dumps({"global_step": 50, "max_steps": 80}))
    run = RunProgress(run_in(tmp_path))
    assert (run.num_done, run.total) == (50, 80)
    log = "\r 97%|##| 78/80 [00:56<00:04,  2.00s/update]\r100%|##| 80/80 [01:00<00:00,  2.00s/update, length=50]\n"
    write_log(run.run, log)
    run.read_log()
    assert (run.num_done, run.total) == (80, 80)
    assert run.stage == "80/80 [01:00<00:00,  2.00s/update, length=50]"
    log += "Loading weights: 100%|##| 29/29 [00:00<00:00, 23572.64it/s]\n"  # a bar of another program
    log += "\rgym:   0%|  | 0/20 [00:00<?, ?problem/s]\r 40%|## | 8/20 [1:00:02<1:30:03,  4.00problem/s, tokens=43"
    write_log(run.run, log)
    run.read_log()
    assert run.stage == "0/20 [00:00<?, ?problem/s]"  # the last bar is not written to its end
    write_log(run.run, log + "]")
    run.read_log()
    assert run.stage == "8/20 [1:00:02<1:30:03,  4.00problem/s, tokens=43]"
    assert (run.num_done, run.total) == (80, 80)  # updates, not problems


def test_the_time_left_is_that_of_the_updates_left_at_their_mean_speed(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0)
    clock = {"seconds": 1000.0}
    for module in (time, tqdm_module):
        monkeypatch.setattr(module, "time", lambda: clock["seconds"])
    # no recipe names the number of updates
    base, first, second = [run_in(tmp_path / name, is_trained=name != "base") for name in ("base", "first", "second")]
    with ComparisonProgress([base, first, second], num_jobs=1) as shown:
        clock["seconds"] += 500  # while the base is evaluated
        shown.record_end(EndedJob(base.folder / "log.txt", exit_code=0, seconds=500))
        clock["seconds"] += 90
        write_log(first, "| 30/40 [01:30<00:30,  3.00s/update]")
        assert "? left" in capsys.readouterr().err
        shown.show()
    text = capsys.readouterr().err
    assert "30 of 80 updates" in text  # the second run is taken to be as long as the first
    assert f"{tqdm.format_interval(50 * 3)} left" in text


SHOW_A_COMPARISON = """
import pathlib
from leash_trl.comparison.progress import ComparisonProgress
from test_progress import run_in

with ComparisonProgress([run_in(pathlib.Path("first"), max_steps=40)], num_jobs=1) as shown:
    shown.show()
"""


def test_a_comparison_runs_where_bars_are_switched_off(tmp_path):
    """tqdm reads the variable when it is imported."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TQDM_DISABLE": "1"}
    subprocess.run([sys.executable, "-c", SHOW_A_COMPARISON], cwd=tmp_path, env=environment, check=True)
