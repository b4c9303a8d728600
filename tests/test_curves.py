"""Curves from runs and from the authors' logs, and the figure drawn from them."""

import json

import numpy as np
import pytest

from leash_trl.analysis.curves import load_curves
from leash_trl.analysis.figures import PANELS, dynamics_figure


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
        json.dumps({"global_step": 3, "log_history": [*history, {"step": 3, "train_loss": 0.0}]})
    )
    (folder / "leash_state.json").write_text(json.dumps({"target_length": 48}))
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
    from leash_trl.analysis.curves import Curves
    from leash_trl.analysis.figures import PANELS, dynamics_figure

    values = {"satisfaction_rate": [0.1, 0.2], "mean_penalty": [-0.3, -0.1], "mean_length": [90.0, 80.0]}
    run = Curves("laser_d", np.array([1, 2]), {key: np.array(value) for key, value in values.items()}, 46)
    axes = dict(zip(PANELS, dynamics_figure([run]).axes, strict=True))
    assert axes["mean_penalty"].get_ylim()[0] < -0.3
    assert axes["mean_length"].get_ylim()[0] == 0
    assert [text.get_text() for text in axes["lambda"].texts] == ["not logged"]
