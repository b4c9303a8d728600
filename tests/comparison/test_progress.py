"""How far a comparison is, by the logs of its runs, and when it ends."""

import json
import time

import pytest
from tqdm import tqdm
from transformers import TrainerControl, TrainerState, TrainingArguments

from leash_trl.comparison import progress
from leash_trl.comparison.progress import ComparisonProgress, RunProgress, Work, last_bars
from leash_trl.comparison.queue import EndedJob
from leash_trl.comparison.run import ComparedRun
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
    (bar,) = last_bars(capsys.readouterr().err).values()
    assert (bar.num_done, bar.total) == (51, 80)
    assert bar.values == {"length": "52.34", "target": "46", "lambda": "0.125"}
    assert 0.15 < bar.seconds_per_unit < 2  # one update in 0.2 seconds, and not 51


def test_of_several_bars_each_unit_counts_with_its_last_and_other_bars_not_at_all():
    log = "\r 10%|# | 8/80 [00:16<02:24,  2.00s/update]\r 11%|# | 9/80 [00:17<02:20,  1.98s/update, length=50]\n"
    log += "Loading weights: 100%|##| 29/29 [00:00<00:00, 23572.64it/s]\n"
    log += "\rgym:   0%|  | 0/20 [00:00<?, ?problem/s]\r 40%|## | 8/20 [1:00:02<1:30:03,  4.00problem/s, tokens=43"
    bars = last_bars(log)
    assert list(bars) == ["update", "problem"]
    assert bars["update"].num_done == 9
    assert bars["problem"] == (0, 20, 0, None, {})  # the last one is not written to its end
    assert last_bars(log + "]")["problem"] == (8, 20, 3602, 0.25, {"tokens": "43"})


def run_in(folder, arm="leash", is_trained=True, **recipe):
    return ComparedRun(
        arm=arm,
        label=arm,
        recipe=recipe,
        point={},
        evaluation={},
        is_trained=is_trained,
        folder=folder,
    )


def write_log(run, text):
    run.folder.mkdir(parents=True, exist_ok=True)
    (run.folder / "log.txt").write_text(text)


def write_results(run):
    (run.folder / "eval").mkdir(parents=True)
    (run.folder / "eval" / "results.json").write_text("{}")


def test_a_run_has_left_what_neither_its_checkpoint_nor_its_log_has(tmp_path):
    checkpoint = tmp_path / "checkpoint-50"
    checkpoint.mkdir()
    (checkpoint / "trainer_state.json").write_text(json.dumps({"global_step": 50, "max_steps": 80}))
    run = RunProgress(run_in(tmp_path))
    assert run.work(80) == Work(updates=30, evaluations=1, starts=2)
    write_log(run.run, "| 60/80 [00:20<00:40,  2.00s/update]")
    run.read()
    assert run.work(80) == Work(updates=20, evaluations=1, starts=1)
    write_log(run.run, "| 80/80 [01:00<00:00,  2.00s/update]\n| 12/20 [00:06<00:04,  2.00problem/s]")
    run.read()
    assert run.work(80) == Work(updates=0, evaluations=pytest.approx(0.4), starts=0)  # 8 of 20 problems


@pytest.fixture
def shown(tmp_path, monkeypatch, capsys):
    """What a comparison of three runs writes into a file while the first trains after the base has ended."""
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0)
    base = run_in(tmp_path / "base", arm="base", is_trained=False)
    write_log(base, "| 20/20 [00:40<00:00,  2.00s/problem]")
    first = run_in(tmp_path / "first", max_steps=80)
    second = run_in(tmp_path / "second", max_steps=80)

    def text(log, num_jobs, job=None):
        if job is None:
            write_results(base)
        with ComparisonProgress([base, first, second], num_jobs) as comparison:
            if job is not None:
                write_results(base)
                comparison.end(job)
            write_log(first, log)
            capsys.readouterr()
            comparison.show()
            return capsys.readouterr().err

    return text


TRAINS = "| 30/80 [01:30<02:30,  3.00s/update, length=52, target=46, lambda=0.1]"


def test_what_is_left_is_as_long_as_its_updates_and_its_evaluations(shown):
    text = shown(TRAINS, num_jobs=1)
    assert "30 of 160 updates" in text
    assert "1 of 3 runs" in text
    assert "update 30 of 80, length 52 of 46, lambda 0.1" in text
    # 50 and 80 updates of 3 seconds, and two evaluations of 20 problems of 2 seconds
    assert tqdm.format_interval(130 * 3 + 2 * 40) in text


def test_runs_at_the_same_time_end_with_the_longest(shown):
    text = shown(TRAINS, num_jobs=2)
    assert tqdm.format_interval(80 * 3 + 40) in text


def test_starting_commands_takes_as_long_as_it_did(shown, tmp_path):
    # 40 seconds of 52 were the evaluation, the only command
    text = shown(TRAINS, num_jobs=1, job=EndedJob(tmp_path / "base" / "log.txt", exit_code=0, seconds=52))
    # the first run has still to start one command, the second two
    assert tqdm.format_interval(130 * 3 + 2 * 40 + 3 * 12) in text


def test_no_time_is_named_before_an_update_has_shown_its_duration(shown):
    text = shown("| 0/80 [00:00<?, ?update/s]", num_jobs=1)
    assert "0 of 160 updates" in text
    assert "not known" in text


def test_a_number_of_updates_that_no_recipe_names_is_that_of_the_log(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0)
    runs = [run_in(tmp_path / name, num_train_epochs=1) for name in ("first", "second")]
    with ComparisonProgress(runs, num_jobs=1) as comparison:
        write_log(runs[0], "| 2/40 [00:04<01:16,  2.00s/update]")
        capsys.readouterr()
        comparison.show()
    assert "2 of 80 updates" in capsys.readouterr().err  # the second is taken to be as long as the first
