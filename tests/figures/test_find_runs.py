"""Runs in folders: what kinds lie there, and a label of its own for each."""

import pytest
from written_runs import GYM_SEEDS, said, write_evaluation, write_training

from leash_trl.figures.runs import draw_figure, find_runs, load_evaluated_runs, load_labeled_curves, run_types


ROWS = [{"leash/mean_length": 9.0}]


@pytest.fixture
def evaluated(tmp_path):
    def make(place, label):
        return write_evaluation(tmp_path / place, label, {"gym": [[said(9)]]})

    return make


def test_kinds_are_told_by_what_lies_there(evaluated, tmp_path):
    checkpoint = write_training(tmp_path / "runs" / "a" / "checkpoint-3", ROWS)
    assert run_types(checkpoint.parent) == ["training"]
    assert run_types(tmp_path / "runs") == []
    evaluated("runs/a", "both")
    assert run_types(checkpoint.parent) == ["evaluation", "training"]


def test_a_folder_stands_for_its_runs_of_the_kind_that_is_asked_for_once(evaluated, tmp_path):
    first = write_training(tmp_path / "runs" / "a", ROWS)
    second = write_training(tmp_path / "runs" / "b", ROWS)
    evaluation = evaluated("runs/c", "base")
    runs = {"comparison": [], "evaluation": [evaluation], "training": [second, first]}
    assert find_runs([second, first.parent]) == runs
    assert find_runs([first.parent], ["evaluation"]) == {"evaluation": [evaluation]}


def test_runs_of_one_name_are_told_apart_by_folder(evaluated, tmp_path):
    base = evaluated("x", "base")
    fifth = evaluated("5", "leash")
    ninth = evaluated("9", "leash")
    labels = [run.label for run in load_evaluated_runs([base, fifth, ninth])]
    assert labels == ["base", f"leash ({fifth})", f"leash ({ninth})"]
    first = write_training(tmp_path / "a" / "seed-0", ROWS)
    second = write_training(tmp_path / "b" / "seed-0", ROWS)
    labels = [run.attrs["label"] for run in load_labeled_curves([first, second])]
    assert labels == [f"seed-0 ({first})", f"seed-0 ({second})"]


@pytest.mark.parametrize("figure", ["dynamics", "training", "budget", "pareto"])
def test_a_run_that_a_figure_cannot_show_is_named(figure, evaluated, tmp_path):
    trained = write_training(tmp_path / "trained", ROWS)
    evaluation = evaluated("evals/a", "base")
    other, fitting = (evaluation, trained) if figure in ("dynamics", "training") else (trained, evaluation)
    with pytest.raises(ValueError, match=str(other)):
        draw_figure(figure, [other])
    assert draw_figure(figure, [fitting]).axes


def test_a_figure_is_of_runs_with_the_same_benchmarks(tmp_path):
    rows = [[said(9)]]
    both = write_evaluation(tmp_path / "both", "both", {"gym": rows, "aime": rows})
    gym_only = write_evaluation(tmp_path / "gym", "gym_only", {"gym": rows})
    assert draw_figure("budget", [both]).axes
    with pytest.raises(ValueError, match="'gym_only'"):
        draw_figure("budget", [both, gym_only])


def test_the_figure_of_one_comparison_is_not_drawn_of_two():
    with pytest.raises(ValueError, match=str(GYM_SEEDS)):
        draw_figure("pareto", [GYM_SEEDS, GYM_SEEDS.with_name("settled_seeds.csv")])
