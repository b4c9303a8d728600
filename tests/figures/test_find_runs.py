"""Runs in folders: what kinds lie there, and a label of its own for each."""

import pytest
from written_runs import said, seeds_of, write_comparison, write_evaluation, write_training

from leash_trl.cli.main import main
from leash_trl.figures.runs import draw, figures_of, find_runs, kinds_of, load_evaluated_runs, load_runs


ROWS = [{"leash/mean_length": 9.0}]


@pytest.fixture
def evaluated(tmp_path):
    def make(place, label, model="models/tiny", step=None):
        return write_evaluation(tmp_path / place, label, {"gym": [[said(9)]]}, step, model)

    return make


@pytest.fixture
def compared(tmp_path):
    return write_comparison(tmp_path / "compare", seeds_of("LEASH", 40, 0.9))


def test_kinds_are_told_by_what_lies_there(evaluated, compared, tmp_path):
    run = write_training(tmp_path / "runs" / "a", ROWS)
    assert [kinds_of(run), kinds_of(run.parent), kinds_of(compared)] == [["training"], [], ["comparison"]]
    evaluated("runs/a", "both")
    checkpoint = run / "checkpoint-3"
    checkpoint.mkdir()
    (run / "trainer_state.json").rename(checkpoint / "trainer_state.json")
    assert kinds_of(run) == ["evaluation", "training"]


def test_a_folder_stands_for_its_runs_of_the_kind_that_is_asked_for_once_or_is_refused(evaluated, tmp_path):
    first = write_training(tmp_path / "runs" / "a", ROWS)
    second = write_training(tmp_path / "runs" / "b", ROWS)
    evaluation = evaluated("runs/c", "base")
    runs = {"comparison": [], "evaluation": [evaluation], "training": [second, first]}
    assert find_runs([second, first.parent]) == runs
    assert find_runs([first.parent], ["evaluation"]) == {"evaluation": [evaluation]}
    for path, kinds in ((tmp_path / "nowhere", ["training"]), (first, ["evaluation"])):
        with pytest.raises(ValueError, match=str(path)):
            find_runs([path], kinds)


def test_runs_of_one_name_are_told_apart_by_folder_and_training_runs_are_called_like_their_evaluation(
    evaluated, tmp_path
):
    runs = [write_training(tmp_path / name / "seed-0", ROWS) for name in ("a", "b", "c")]
    folders = [
        evaluated("x", "base"),
        evaluated("5", "leash", runs[0]),
        evaluated("9", "leash", runs[1] / "checkpoint-2"),
    ]
    evaluations = load_evaluated_runs(folders)
    assert [run.label for run in evaluations] == ["base", "leash (5)", "leash (9)"]
    assert [run.attrs["label"] for run in load_runs(runs, evaluations)] == ["leash (5)", "leash (9)", "seed-0"]
    assert [run.attrs["label"] for run in load_runs(runs[:2])] == ["seed-0 (a/seed-0)", "seed-0 (b/seed-0)"]


def test_a_run_that_a_figure_cannot_show_names_the_figures_that_can(evaluated, compared, tmp_path, capsys):
    trained = write_training(tmp_path / "trained", ROWS)
    evaluation = evaluated("evals/a", "base")
    assert figures_of(trained) == ["dynamics", "training"]
    assert figures_of(evaluation) == figures_of(evaluation.parent) == ["behavior", "budget", "pareto"]
    assert figures_of(compared) == ["pareto"]
    assert figures_of(tmp_path / "nowhere") == []
    for figure, path, other in [
        ("dynamics", evaluation, "budget"),
        ("dynamics", evaluation.parent, "budget"),
        ("training", compared, "pareto"),
        ("budget", trained, "dynamics"),
    ]:
        assert main(["plot", str(path), "--figure", figure]) == 2
        line = capsys.readouterr().err.splitlines()[-1]
        assert [part for part in ("--figure", figure, other) if part not in line] == []


def test_a_figure_is_of_benchmarks_that_all_runs_have(tmp_path):
    both = write_evaluation(tmp_path / "both", "both", {"gym": [[said(9)]], "aime": [[said(9)]]})
    gym_only = write_evaluation(tmp_path / "gym", "gym_only", {"gym": [[said(8)]]})
    assert draw("budget", [both, gym_only], "gym").axes
    assert draw("budget", [both]).axes
    for benchmark in ("aime", None):
        with pytest.raises(ValueError, match=str(benchmark)):
            draw("budget", [both, gym_only], benchmark)
