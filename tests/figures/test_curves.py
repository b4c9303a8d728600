"""Curves from trainer states and from the authors' logs."""

from written_runs import write_training

from leash_trl.figures.training import load_curves, logged_curve


def test_curves_are_the_logged_columns_by_step(tmp_path):
    log = [
        {"step": 2, "leash/mean_length": 8.0},
        {"step": 2, "eval_leash/mean_length": 7.0, "eval_leash/accuracy": None},
        {"step": 1, "leash/mean_length": 9.0},
    ]
    curves = load_curves(write_training(tmp_path / "run", [*log, {"step": 2, "train_loss": 0.0}]))
    assert curves.index.tolist() == [1, 2]
    assert curves["leash/mean_length"].tolist() == [9, 8]
    assert logged_curve(curves, "eval_leash/mean_length").to_dict() == {2: 7.0}
    assert "eval_leash/accuracy" not in curves
    assert logged_curve(curves, "leash/lambda").empty
    assert curves.attrs == {"label": "run", "length_of": "completion", "advice": []}


def test_the_state_with_the_most_steps_says_what_happened(tmp_path):
    for step in (9, 10):
        write_training(tmp_path / f"checkpoint-{step}", [{"leash/lambda": float(step)}], step=step)
    killed = tmp_path / "checkpoint-11"
    killed.mkdir()
    (killed / "trainer_state.json").write_text('{"global_step": 11, "log_his')
    assert load_curves(write_training(tmp_path, [{"leash/lambda": 3.0}]))["leash/lambda"].tolist() == [10]
