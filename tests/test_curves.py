"""Curves from runs, from event files and from the authors' logs, and the figure drawn from them."""

import json

import numpy as np
import pytest
from event_file import write_events

from leash_trl.analysis.curves import event_files, load_curves, load_runs, read_event_files
from leash_trl.figures import PANELS, dynamics_figure


CSV_HEAD = "_step,constraint/satisfaction_rate,constraint/lambda,constraint/avg_penalty,constraint/avg_length\n"


@pytest.fixture
def run_folder(tmp_path):
    history = [
        {
            "step": step,
            "loss": 0.0,
            "leash/lambda": 0.1 * step,
            "leash/mean_length": 100.0 - step,
            "leash/mean_penalty": None if step == 2 else 0.01,
            "leash/satisfaction_rate": 0.5,
        }
        for step in (1, 2, 3)
    ]
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "trainer_state.json").write_text(
        json.dumps(
            {
                "global_step": 3,
                "log_history": [*history, {"step": 3, "train_loss": 0.0}],
                "stateful_callbacks": {"LengthControl": {"target_length": 48}},
            }
        )
    )
    return folder


def test_curves_of_a_run(run_folder):
    curves = load_curves(run_folder)
    assert curves.steps.tolist() == [1, 2, 3]
    np.testing.assert_allclose(curves.values["lambda"], [0.1, 0.2, 0.3])
    assert np.isnan(curves.values["mean_penalty"]).tolist() == [False, True, False]
    assert curves.target_length == 48


def test_a_stopped_run_is_read_from_its_last_checkpoint(run_folder):
    for step in (9, 10):
        (run_folder / f"checkpoint-{step}").mkdir()
        history = {"global_step": step, "log_history": [{"step": step, "leash/lambda": float(step)}]}
        (run_folder / f"checkpoint-{step}" / "trainer_state.json").write_text(json.dumps(history))
    assert load_curves(run_folder).values["lambda"].tolist() == [10.0]


def test_a_method_without_lambda_has_curves_too(tmp_path):
    rows = [{"step": step, "leash/mean_length": length} for step, length in ((1, 60.0), (2, None), (3, 40.0))]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"global_step": 3, "log_history": rows}))
    curves = load_curves(tmp_path)
    assert curves.logged("mean_length").tolist() == [60.0, 40.0]
    assert curves.logged("lambda").tolist() == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "neither a CSV file nor"),
        ({"global_step": 1, "log_history": [{"step": 1, "loss": 0.1}]}, "holds no LEASH curves"),
    ],
)
def test_what_is_no_run_is_an_error(tmp_path, content, message):
    if content is not None:
        (tmp_path / "trainer_state.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
        load_curves(tmp_path)


def test_csv_without_the_columns_is_an_error(tmp_path):
    (tmp_path / "log.csv").write_text("_step,constraint/lambda\n1,0.1\n")
    with pytest.raises(ValueError, match="constraint/avg_length"):
        load_curves(tmp_path / "log.csv")


def test_figure_shows_the_numbers_and_breaks_at_gaps(tmp_path):
    rows = [f"{step},0.5,{0.1 * step},0.2,{1000 + step}" for step in (1, 2, 3, 50, 51)]
    (tmp_path / "log.csv").write_text(CSV_HEAD + "\n".join(rows))
    figure = dynamics_figure([load_curves(tmp_path / "log.csv")])
    assert [axis.get_title() for axis in figure.axes] == list(PANELS.values())
    x, y = figure.axes[-1].lines[0].get_data()
    np.testing.assert_array_equal(x, [1, 2, 3, np.nan, 50, 51])
    np.testing.assert_array_equal(y, [1001, 1002, 1003, np.nan, 1050, 1051])


def test_target_is_drawn(run_folder):
    axis = dynamics_figure([load_curves(run_folder)]).axes[-1]
    assert axis.lines[-1].get_ydata()[0] == 48


def test_published_log_is_readable(shared_data):
    curves = load_curves(shared_data / "leash_log_train.csv")
    assert len(curves.steps) == 498
    assert curves.values["lambda"].max() == pytest.approx(0.5806, abs=1e-4)


def test_panels_show_bonuses_and_say_what_was_not_logged(tmp_path):
    from leash_trl.figures import PANELS, dynamics_figure
    from leash_trl.figures.curves import Curves

    values = {"satisfaction_rate": [0.1, 0.2], "mean_penalty": [-0.3, -0.1], "mean_length": [90.0, 80.0]}
    run = Curves("laser_d", np.array([1, 2]), {key: np.array(value) for key, value in values.items()}, 46)
    axes = dict(zip(PANELS, dynamics_figure([run]).axes, strict=True))
    assert axes["mean_penalty"].get_ylim()[0] < -0.3
    assert axes["mean_length"].get_ylim()[0] == 0
    assert [text.get_text() for text in axes["lambda"].texts] == ["not logged"]


# --- event files -----------------------------------------------------------------------------------------------------


def lengths(*steps, scale=1.0):
    return {step: {"leash/mean_length": scale * step} for step in steps}


def test_event_files_of_a_run_without_trainer_state(tmp_path):
    rows = {
        1: {"leash/mean_length": 64.0, "leash/lambda": 0.5, "train/loss": 1.0},
        2: {"leash/mean_length": 32.0, "eval_leash/accuracy": 0.75, "eval_leash/mean_length": 40.0},
    }
    write_events(tmp_path / "run" / "runs" / "now" / "events.out.tfevents.1", 5.0, rows, {"target_length": 48})
    curves = load_curves(tmp_path / "run")
    assert curves.steps.tolist() == [1, 2]
    assert sorted(curves.values) == ["eval_accuracy", "eval_mean_length", "lambda", "mean_length"]
    assert curves.logged("mean_length").tolist() == [64.0, 32.0]
    assert [part.tolist() for part in curves.curve("eval_accuracy")] == [[2], [0.75]]
    assert curves.target_length == 48
    assert curves.label == "run"


@pytest.mark.parametrize("where", ["run/runs/now/events.out.tfevents.1", "run/runs/now", "run"])
def test_events_are_found_from_file_and_folders(tmp_path, where):
    write_events(tmp_path / "run" / "runs" / "now" / "events.out.tfevents.1", 5.0, lengths(1, 2))
    assert load_curves(tmp_path / where).logged("mean_length").tolist() == [1.0, 2.0]


def test_a_later_file_replaces_all_from_its_first_step_on(tmp_path):
    # stopped at step 6, resumed from the checkpoint at 3, stopped at 5: step 6 never happened; names do not tell order
    write_events(tmp_path / "events.out.tfevents.2", 100.0, lengths(1, 2, 3, 4, 5, 6), {"seed": 1, "target_length": 7})
    write_events(tmp_path / "events.out.tfevents.1", 200.0, lengths(4, 5, scale=10.0))
    curves = load_curves(tmp_path)
    assert curves.steps.tolist() == [1, 2, 3, 4, 5]
    assert curves.logged("mean_length").tolist() == [1, 2, 3, 40, 50]
    assert curves.target_length == 7


def test_a_start_that_logged_nothing_takes_nothing_away(tmp_path):
    write_events(tmp_path / "events.out.tfevents.1", 100.0, lengths(1, 2), {"target_length": 1})
    write_events(tmp_path / "events.out.tfevents.2", 200.0, {}, {"target_length": 9})
    (tmp_path / "events.out.tfevents.3").touch()
    log = read_event_files(event_files(tmp_path))
    assert list(log.scalars) == [1, 2]
    assert (log.arguments, log.start) == ({"target_length": 9}, 100.0)


def test_an_event_that_a_kill_cut_short_is_left_out(tmp_path):
    file = write_events(tmp_path / "events.out.tfevents.1", 5.0, lengths(1, 2, 3))
    file.write_bytes(file.read_bytes()[:-7])
    assert load_curves(tmp_path).steps.tolist() == [1, 2]


def test_events_go_on_where_the_trainer_state_ends(run_folder):
    rows = lengths(2, 3, 4, 5)
    write_events(run_folder / "runs" / "now" / "events.out.tfevents.1", 5.0, rows, {"target_length": 99})
    curves = load_curves(run_folder)
    assert curves.logged("mean_length").tolist() == [99, 98, 97, 4, 5]
    assert curves.target_length == 48  # what the controller's state says


def test_a_checkpoint_that_is_not_whole_is_passed_over(run_folder):
    (run_folder / "checkpoint-9").mkdir()
    (run_folder / "checkpoint-9" / "trainer_state.json").write_text('{"global_step": 9, "log_his')
    assert load_curves(run_folder).steps.tolist() == [1, 2, 3]


def test_runs_below_a_folder_are_not_mixed(tmp_path):
    for seed in (0, 1):
        write_events(tmp_path / f"seed-{seed}" / "runs" / "now" / "events.out.tfevents.1", 5.0, lengths(1))
    with pytest.raises(ValueError, match="nor an event file"):
        load_curves(tmp_path)


def test_evaluations_and_batches_of_a_step_are_one_row(tmp_path):
    history = [
        {"step": 1, "leash/mean_length": 9.0},
        {"step": 2, "leash/mean_length": 8.0},
        {"step": 2, "eval_leash/mean_length": 7.0, "eval_leash/accuracy": None, "eval_loss": 0.0},
    ]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"global_step": 2, "log_history": history}))
    curves = load_curves(tmp_path)
    assert curves.steps.tolist() == [1, 2]
    assert [part.tolist() for part in curves.curve("eval_mean_length")] == [[2], [7.0]]
    assert curves.logged("mean_length").tolist() == [9.0, 8.0]
    assert curves.logged("eval_accuracy").tolist() == []
    assert [part.tolist() for part in curves.curve("nothing")] == [[], []]


def test_evaluation_log_of_the_authors(tmp_path, shared_data):
    curves = load_curves(shared_data / "leash_log_eval.csv")
    steps, accuracy = curves.curve("eval_accuracy")
    assert (steps[0], accuracy[0]) == (5, pytest.approx(79 * 2 / 720))
    assert curves.logged("eval_mean_length")[0] == pytest.approx(17095.9486, abs=1e-3)
    (tmp_path / "log.csv").write_text("_step,result/avg_acc\n5,0.2\n")
    with pytest.raises(ValueError, match=r"lacks the columns result/avg_len of the LEASH authors' evaluation log"):
        load_curves(tmp_path / "log.csv")


def test_csv_with_words_for_numbers_is_an_error(tmp_path):
    (tmp_path / "log.csv").write_text("_step,result/avg_len,result/avg_acc\n5,long,0.2\n")
    with pytest.raises(ValueError, match=r"log\.csv holds something that is not a number"):
        load_curves(tmp_path / "log.csv")


def test_runs_of_one_name_are_told_apart(tmp_path):
    for name in ("a", "b"):
        write_events(tmp_path / name / "seed-0" / "events.out.tfevents.1", 5.0, lengths(1))
    assert [run.label for run in load_runs([tmp_path / "a" / "seed-0", tmp_path / "b" / "seed-0"])] == [
        "a/seed-0",
        "b/seed-0",
    ]
