"""`leash compare`: its file, which runs there are, what is not run again, and what it writes."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml
from filelock import FileLock

from leash_trl.cli import compare, gym_run
from leash_trl.cli.compare import CompareArguments, planned_runs
from leash_trl.cli.errors import UserError
from leash_trl.cli.main import main
from leash_trl.trainer.checkpoints import LOCK_FILE


FIELDS = {
    "model_name_or_path": "gym",
    "dataset_name": "gym",
    "target_length": 46,
    "per_device_train_batch_size": 16,
    "max_completion_length": 64,
    "max_steps": 2,
    "bf16": False,
    "use_cpu": True,
    "gradient_checkpointing": False,
}
ARMS = {"leash": {"seeds": 2, "lambda_lr": 0.02}, "frozen": {"seeds": 1, "label": "LEASH-C", "lambda_lr": 0.0}}


@pytest.fixture
def config(tmp_path):
    def write(content=None, **changes):
        path = tmp_path / "compare.yaml"
        path.write_text(yaml.safe_dump(content or {"base": FIELDS, "arms": ARMS, **changes}, sort_keys=False))
        return str(path)

    return write


def planned(config, arms=None, seeds=None, **given):
    return planned_runs(CompareArguments(comparison=config, arms=arms, seeds=seeds, output_dir="out"), given)


# --- the plan --------------------------------------------------------------------------------------------------------


def test_every_arms_first_seed_comes_before_any_second(config):
    runs = planned(config())
    assert [(run.arm, run.label, run.seed) for run in runs] == [
        ("leash", "leash", 0),
        ("frozen", "LEASH-C", 0),
        ("leash", "leash", 1),
    ]
    assert runs[1].recipe == {**FIELDS, "lambda_lr": 0.0}
    assert runs[1].folder == Path("out/frozen/seed-0")
    assert [(run.arm, run.seed) for run in planned(config(), ["leash"], [7, 3])] == [("leash", 7), ("leash", 3)]


def test_an_arm_runs_at_every_point_of_its_grid_and_null_takes_a_field_out(config):
    arms = {
        "leash": {"grid": {"lambda_lr": [0.01, 0.04]}},
        "none": {"length_control": "none", "grid": {"target_length": None}},
    }
    *leash, none = planned(config(grid={"target_length": [12, 18]}, arms=arms), seeds=[0])
    assert [run.arm for run in leash] == [
        f"leash-target_length-{target}-lambda_lr-{rate}" for target in (12, 18) for rate in (0.01, 0.04)
    ]
    assert {run.label for run in leash} == {"leash"}
    assert leash[1].recipe == {**FIELDS, "target_length": 12, "lambda_lr": 0.04}
    assert leash[1].point == {"target_length": 12, "lambda_lr": 0.04}
    assert (none.arm, none.point, "target_length" in none.recipe) == ("none", {}, False)


def test_the_later_of_base_grid_arm_own_grid_and_command_line_wins(config):
    arms = {"fixed": {"target_length": 20}, "own": {"target_length": 20, "grid": {"target_length": [28]}}}
    fixed, own = planned(config(grid={"target_length": [12]}, arms=arms), seeds=[0], max_steps=9)
    assert (fixed.arm, fixed.recipe["target_length"]) == ("fixed", 20)
    assert (own.arm, own.recipe["target_length"]) == ("own-target_length-28", 28)
    assert {run.recipe["max_steps"] for run in (fixed, own)} == {9}


def test_a_grid_takes_one_entry_of_a_mapping(config):
    kwargs = {"length_control": "l1_max", "length_control_kwargs": {"alpha": 0.5, "budget_range": None}}
    arms = {
        "own": {**kwargs, "grid": {"length_control_kwargs.alpha": [1, 2]}},
        "fixed": {**kwargs, "label": "fixed"},
        "out": {**kwargs, "label": "out", "grid": {"length_control_kwargs.alpha": None}},
    }
    one, two, fixed, out = planned(config(grid={"length_control_kwargs.alpha": [3]}, arms=arms), seeds=[0])
    assert [run.recipe["length_control_kwargs"]["alpha"] for run in (one, two, fixed)] == [1, 2, 0.5]
    assert out.recipe["length_control_kwargs"] == {"budget_range": None}
    assert two.arm == "own-length_control_kwargs.alpha-2"


def test_a_recipe_is_a_comparison_of_one_arm(config):
    (run,) = planned(config(FIELDS), seeds=[4])
    assert (run.arm, run.recipe, run.seed) == ("compare", FIELDS, 4)


@pytest.mark.parametrize(
    ("changes", "more", "named"),
    [
        ({"grid": {"target_length": 12}}, [], "12"),
        ({"grid": {"target_length": [12, 12]}}, [], "leash-target_length-12"),
        ({"grid": {"target_length": [12]}}, ["--target_length", "9"], "target_length"),
        ({"arms": {"a": {"grid": {"lambda_lr": [1]}}, "a-lambda_lr-1": {}}}, [], "a-lambda_lr-1"),
        ({"arms": {"a": {"label": "X"}, "b": {"label": "X", "lambda_lr": 2}}}, [], "X"),
        ({"arms": {**ARMS, "x": {"lamda_lr": 1}}}, [], "lambda_lr"),
        ({"arms": {**ARMS, "x": {"lambda_lr": -1.0}}}, [], "lambda_lr"),
        ({"arms": {**ARMS, "x": {"model_name_or_path": "a/b"}}}, [], "model_name_or_path"),
        ({"seeds": 3}, [], "seeds"),
        ({}, ["--arms", "lehs"], "lehs"),
        ({}, ["--max_stepz", "5"], "max_steps"),
    ],
)
def test_mistakes_are_one_line_and_nothing_is_run(changes, more, named, config, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(compare, "run_all", lambda *args: pytest.fail("a run was started"))
    assert main(["compare", "--config", config(**changes), "--output_dir", str(tmp_path / "out"), *more]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert named in line


def test_help_is_light():
    code = "import sys, leash_trl.cli.compare; print(' '.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "numpy", "matplotlib"} & set(loaded)


# --- claims ----------------------------------------------------------------------------------------------------------

METHOD = """from leash_trl import LengthControl
class Mine(LengthControl):
    name = 'mine'
"""


def test_a_run_of_other_settings_data_or_code_is_not_taken_for_this_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    rows, method = Path("rows.jsonl"), Path("claimed_method.py")
    rows.write_text('{"prompt": "1 + 1 = ?", "solution": "2"}\n')
    method.write_text(METHOD)
    recipe = {**FIELDS, "dataset_name": "rows.jsonl", "length_control": "claimed_method.Mine"}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.yaml").write_text(gym_run.claim(recipe, 0))
    gym_run.check_claim(tmp_path / "run", gym_run.claim(recipe, 0))
    for changed, seed in (({**recipe, "max_steps": 3}, 0), (recipe, 1)):
        with pytest.raises(UserError):
            gym_run.check_claim(tmp_path / "run", gym_run.claim(changed, seed))
    for file in (rows, method):
        before = file.read_text()
        file.write_text(before.replace("2", "3") + "\n")
        with pytest.raises(UserError):
            gym_run.check_claim(tmp_path / "run", gym_run.claim(recipe, 0))
        file.write_text(before)


# --- runs ------------------------------------------------------------------------------------------------------------

CHILD = """
import json, os, pathlib, sys
folder, fails = pathlib.Path(sys.argv[1]), sys.argv[2] == "fails"
with open(folder.parent.parent / "started.txt", "a") as file:
    file.write(f"{folder.parent.name}/{folder.name}\\n")
if fails:
    raise ValueError("no luck today")
log = [{"step": 1, "leash/mean_length": 90.0, "leash/generated_tokens": 500, "leash/lambda": 0.5}]
log.append({"step": 2, "leash/mean_length": 45.0, "leash/generated_tokens": 1000, "leash/lambda": 0.25})
(folder / "trainer_state.json").write_text(json.dumps({"global_step": 2, "log_history": log}))
rows = [f"{i},{i},{k},{40 + 10 * k},{float(i + k < 2)},,46,trained" for i in range(2) for k in range(2)]
(folder / "samples.csv").write_text("\\n".join(["id,index,sample,num_tokens,is_correct,effort,target,model", *rows]))
"""


@pytest.fixture
def comparison(config, tmp_path, monkeypatch):
    """A comparison whose runs only write a result; those in `failing` fail."""
    (tmp_path / "fake_run.py").write_text(CHILD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)

    def run(*more, failing=(), **changes):
        def commands(folder):
            fails = f"{folder.parent.name}/{folder.name}" in failing
            return [["fake_run", str(folder), "fails" if fails else "works"]]

        monkeypatch.setattr(gym_run, "commands", commands)
        return main(["compare", "--config", config(**changes), "--output_dir", str(tmp_path / "out"), *more])

    return run


def table(path):
    return list(csv.DictReader(path.read_text().splitlines()))


def test_tables_and_figure_are_of_all_runs_and_finished_runs_are_not_run_again(comparison, tmp_path, capsys):
    out = tmp_path / "out"
    assert comparison("--jobs", "1") == 0
    assert (out / "started.txt").read_text().split() == ["leash/seed-0", "frozen/seed-0", "leash/seed-1"]
    assert (out / "table.md").read_text() in capsys.readouterr().out
    assert [row["name"] for row in table(out / "table.csv")] == ["base", "leash", "LEASH-C"]
    seeds = table(out / "seeds.csv")
    assert [(row["name"], row["seeds"]) for row in seeds] == [("leash", "0"), ("leash", "1"), ("LEASH-C", "0")]
    # three of four are right; 40, 50, 40 and 50 tokens; the second batch of 90 and 45 tokens is below 46
    assert {(float(row["accuracy"]), float(row["mean_tokens"]), float(row["steps_to_target"])) for row in seeds} == {
        (0.75, 45.0, 2.0)
    }
    assert {row["level"] for row in table(out / "levels.csv")} == {"1", "7"}  # of the gym's first two test problems
    assert (out / "pareto.png").stat().st_size > 10_000
    assert comparison() == 0
    assert len((out / "started.txt").read_text().split()) == 3


def test_a_failed_run_stops_no_other_and_is_named_with_its_cause(comparison, tmp_path, capsys):
    assert comparison("--jobs", "1", failing=["leash/seed-0"]) == 1
    said = capsys.readouterr()
    (line,) = [line for line in said.err.splitlines() if "leash/seed-0 failed" in line]
    assert "ValueError: no luck today" in line
    assert str(tmp_path / "out" / "leash" / "seed-0" / "log.txt") in line
    assert "Missing: leash/seed-0." in said.out
    assert comparison() == 0
    assert "Missing" not in capsys.readouterr().out


def test_one_arm_is_shown_before_and_after_training(comparison, tmp_path):
    assert comparison("--arms", "frozen") == 0
    *_, row = (tmp_path / "out" / "table.md").read_text().strip().splitlines()
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    # run, target; accuracy and tokens of the base and after training; satisfied; lambda at the end and at its peak
    assert cells == ["frozen/seed-0", "46.0", "0.748", "70.3", "0.750", "45.0", "0.500", "0.250 (0.500)"]
    assert (tmp_path / "out" / "dynamics.png").stat().st_size > 10_000


def test_where_every_run_fails_there_is_no_table(comparison, tmp_path):
    assert comparison("--arms", "frozen", failing=["frozen/seed-0"]) == 1
    assert not (tmp_path / "out" / "table.md").exists()


def test_lengths_count_from_the_last_change_of_the_target(comparison, tmp_path):
    staged = {"target_schedule": "staged", "target_milestones": {0: 90, 1: 46}, "max_completion_length": 96}
    assert comparison("--seeds", "5", arms={"fixed": {}, "staged": staged}) == 0
    assert [float(row["steps_to_target"]) for row in table(tmp_path / "out" / "seeds.csv")] == [2, 1]


def test_a_second_comparison_in_the_folder_is_refused(comparison, tmp_path):
    (tmp_path / "out").mkdir()
    with FileLock(tmp_path / "out" / LOCK_FILE):
        assert comparison() == 2
    assert not (tmp_path / "out" / "started.txt").exists()


@pytest.mark.slow
def test_two_arms_from_file_to_table(config, tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "tensorboard"))
    arms = {"leash": {"lambda_lr": 0.02}, "none": {"length_control": "none"}}
    command = ["compare", "--config", config(arms=arms), "--output_dir", str(tmp_path / "out"), "--seeds", "0"]
    assert main(command) == 0
    leash = pd.read_csv(tmp_path / "out" / "leash" / "seed-0" / "samples.csv")
    assert len(leash) == 512 * 4
    row, _ = table(tmp_path / "out" / "seeds.csv")
    assert float(row["mean_tokens"]) == leash["num_tokens"].mean()
    assert 0 < float(row["generated_tokens"]) <= 2 * 16 * 64
    before = (tmp_path / "out" / "table.md").read_text()
    trained = (tmp_path / "out" / "leash" / "seed-0" / "model.safetensors").stat().st_mtime
    # stopped before its evaluation, a run goes on with that
    (tmp_path / "out" / "leash" / "seed-0" / "samples.csv").unlink()
    assert main(command) == 0
    assert (tmp_path / "out" / "table.md").read_text() == before
    assert (tmp_path / "out" / "leash" / "seed-0" / "model.safetensors").stat().st_mtime == trained
