"""One name for one run, wherever it is shown."""

import json
from pathlib import Path

import pytest
from sampled_run import completion, problem, write_run

from leash_trl.analysis.run_labels import run_labels


@pytest.fixture
def evaluated(tmp_path):
    def make(folder, label, model="models/tiny", step=None):
        path = write_run(tmp_path / folder, {"gym": [problem(0, completion("1", 30, True))]}, label, step=step)
        run = json.loads((path / "run.json").read_text())
        (path / "run.json").write_text(json.dumps(run | {"model": str(model)}))
        return path

    return make


def labels(evaluations, trainings=()):
    return list(run_labels(evaluations, trainings).values())


def test_evaluations_of_one_name_are_told_apart_by_step_or_else_by_folder(evaluated):
    base, early, late = (evaluated(str(step), "base" if step is None else "leash", step=step) for step in (None, 5, 9))
    assert labels([base, early, late]) == ["base", "leash, step 5", "leash, step 9"]
    assert labels([base, late]) == ["base", "leash"]
    assert labels([evaluated("a", "leash"), evaluated("b", "leash")]) == ["leash (a)", "leash (b)"]


def test_training_runs_without_an_evaluation_are_called_like_their_folders():
    assert labels([], [Path("a/seed-0"), Path("a/seed-1")]) == ["seed-0", "seed-1"]
    assert labels([], [Path("a/x/seed-0"), Path("b/x/seed-0")]) == ["a/x/seed-0", "b/x/seed-0"]
    assert labels([], [Path("log.csv"), Path("v1.5")]) == ["log", "v1.5"]


@pytest.mark.parametrize("model", ["{run}", "{run}/", "runs/train", "../runs/train", "{run}/checkpoint-40"])
def test_a_training_run_is_called_like_its_evaluation(evaluated, tmp_path, model):
    run = tmp_path / "runs" / "train"
    result = evaluated("eval", "LEASH", model.format(run=run), step=40)
    base, other = evaluated("base", "base", "train"), tmp_path / "other"
    assert run_labels([base, result], [run, other]) == {base: "base", result: "LEASH", run: "LEASH", other: "other"}


def test_checkpoints_of_a_training_run_have_its_name_and_their_steps(evaluated, tmp_path):
    run = tmp_path / "train"
    results = [evaluated(str(step), "LEASH", run / f"checkpoint-{step}", step) for step in (5, 9)]
    assert labels(results, [run]) == ["LEASH, step 5", "LEASH, step 9", "LEASH"]


def test_two_seeds_evaluated_under_one_label_stay_two_runs(evaluated, tmp_path):
    runs = [tmp_path / "train" / name for name in ("a", "b")]
    results = [evaluated(f"eval/{run.name}", "LEASH", run, 40) for run in runs]
    result_labels = ["LEASH (a)", "LEASH (b)"]
    assert labels(results, runs) == [*result_labels, *result_labels]


def test_an_evaluation_that_may_be_of_either_run_names_neither(evaluated, tmp_path):
    runs = [tmp_path / name / "seed-0" for name in ("a", "b")]
    assert labels([evaluated("eval", "LEASH", "seed-0", 40)], runs) == ["LEASH", "a/seed-0", "b/seed-0"]


def test_another_models_label_is_not_taken(evaluated, tmp_path):
    run = tmp_path / "train" / "leash"
    assert labels([evaluated("eval/leash", "leash", "elsewhere", 40)], [run]) == ["leash", "leash (train/leash)"]


def test_a_run_that_was_evaluated_into_its_own_folder_has_one_name(evaluated):
    run = evaluated("train", "LEASH", "copied/away", 40)
    assert run_labels([run], [run]) == {run: "LEASH"}
