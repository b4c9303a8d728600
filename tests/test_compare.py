"""`leash compare`: its file, its runs, its numbers, its table and its figure."""

import csv
import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import yaml
from filelock import FileLock

from leash_trl.analysis.comparisons import read_comparison, read_trade_offs
from leash_trl.analysis.page import Paragraph, Table
from leash_trl.cli import compare, comparison_report, process_queue
from leash_trl.cli.comparison_plan import load_arms, planned_runs
from leash_trl.cli.gym_run import run_claim
from leash_trl.cli.main import main
from leash_trl.evaluation.comparison import (
    SeedResult,
    accuracy_efficiency_score,
    base_row,
    comparison_row,
    first_step_at_target,
    near_target_share,
    overshoot,
    settling_error,
)
from leash_trl.evaluation.comparison_table import HEADINGS, csv_table, markdown_table
from leash_trl.evaluation.intervals import Estimate, mean_amount, mean_over_seeds, mean_share
from leash_trl.evaluation.numbers import with_interval
from leash_trl.trainer.checkpoints import LOCK_FILE


RECORD = {"accuracy": 0.8, "accuracy_interval": [0.75, 0.85], "mean_tokens": 100.0, "p95_tokens": 170.0}
BASE = base_row(RECORD)


def seed_result(seed=0, is_correct=((1, 1), (1, 0)), lengths=((40, 50), (30, 60)), **changes):
    defaults = {
        "target_length": 46,
        "steps": np.array([1, 2, 3]),
        "mean_lengths": np.array([90.0, 46.0, 44.0]),
        "generated_tokens": 1000,
    }
    matrices = {"is_correct": np.array(is_correct, dtype=bool), "lengths": np.array(lengths)}
    return SeedResult(seed=seed, **{**matrices, **defaults, **changes})


# --- numbers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("accuracy", "tokens", "expected"),
    [
        (0.8, 100.0, 0.0),  # the base itself
        (0.8, 60.0, 0.4),  # 1 * 0.4
        (0.9, 60.0, 0.775),  # 1 * 0.4 + 3 * 0.125
        (0.7, 60.0, -0.225),  # 1 * 0.4 - 5 * 0.125
        (0.7, 120.0, -0.825),  # 1 * -0.2 - 5 * 0.125
    ],
)
def test_efficiency_score_by_hand(accuracy, tokens, expected):
    assert accuracy_efficiency_score(accuracy, tokens, 0.8, 100.0) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("mean_lengths", "expected"), [([60, 46, 50], 20), ([40, 60, 60], 10), ([60, 50, 46.1], None), ([], None)]
)
def test_steps_to_target_by_hand(mean_lengths, expected):
    steps = np.array([10, 20, 30][: len(mean_lengths)])
    assert first_step_at_target(steps, np.array(mean_lengths), 46) == expected


def test_settling_is_of_the_last_quarter_and_overshoot_of_a_running_mean():
    lengths = np.array([100.0] * 20 + [40.0] * 10 + [46.0, 50.0] * 5)
    assert settling_error(lengths, 50) == pytest.approx(1 - 48 / 50)
    assert settling_error(-lengths + 100, 48) == pytest.approx(52 / 48 - 1)
    assert overshoot(lengths, 50) == pytest.approx(0.2)
    assert overshoot(lengths, 40) == 0
    assert overshoot(lengths, 30) is None


def test_staying_near_counts_from_the_first_batch_at_the_target():
    lengths = np.array([100.0] * 5 + [50.0] * 10 + [30.0] * 10)
    # running means over ten: one of 50, nine on the way down by 2 each (48, 46 near; 44 and on not), one of 30
    assert near_target_share(lengths, 50) == pytest.approx(3 / 11)
    assert near_target_share(lengths, 20) is None


def test_row_by_hand():
    other = seed_result(1, is_correct=((1, 1), (0, 0)), lengths=((46, 47), (46, 81)), generated_tokens=3000)
    row = comparison_row("leash", [seed_result(), other], BASE)
    assert row.seeds == (0, 1)
    assert row.accuracy == 5 / 8
    assert row.mean_tokens == (180 + 220) / 8
    # 30 40 46 46 47 50 60 81 at place 0.95 * 7 = 6.65
    assert row.p95_tokens == pytest.approx(60 + 0.65 * 21)
    assert row.token_change == pytest.approx(-0.5)
    assert row.satisfaction_rate == 4 / 8
    assert row.settling_error == row.worst_settling_error == pytest.approx(1 - 44 / 46)
    assert row.near_target_share == 1  # 46 and 44 are met and near
    assert row.overshoot == 0  # the mean of all three batches is 60
    assert row.generated_tokens == 2000
    assert row.efficiency_score == pytest.approx(0.5 - 5 * (0.8 - 0.625) / 0.8)


def test_steps_to_target_are_of_the_seeds_that_got_there():
    results = [
        seed_result(0),
        seed_result(1, mean_lengths=np.array([90.0, 80.0, 46.0])),
        seed_result(2, mean_lengths=np.array([90.0, 80.0, 70.0])),
    ]
    row = comparison_row("leash", results, BASE)
    assert (row.steps_to_target, row.num_reached) == (2.5, 2)


def test_without_target_and_token_count_their_numbers_are_absent():
    row = comparison_row("none", [seed_result(target_length=None, generated_tokens=None)], BASE)
    absent = (row.satisfaction_rate, row.settling_error, row.steps_to_target, row.generated_tokens)
    assert absent == (None, None, None, None)


# --- intervals -------------------------------------------------------------------------------------------------------


def test_the_interval_of_several_seeds_is_over_seeds():
    # half and all of the completions right: 0.5 and 1, mean 0.75, 12.706 * 0.3536 / sqrt(2) = 3.18, cut at 0 and 1
    alike = seed_result(0, is_correct=np.array([[True, False], [False, True]]), lengths=np.full((2, 2), 40))
    solved = seed_result(1, is_correct=np.ones((2, 2), dtype=bool), lengths=np.full((2, 2), 42))
    row = comparison_row("leash", [alike, solved], BASE)
    assert row.accuracy_interval == (0, 1)
    # 41 -+ 12.706 * 1
    assert row.mean_tokens_interval == pytest.approx((41 - 12.706, 41 + 12.706), abs=1e-3)


def test_problems_that_differ_do_not_widen_an_interval_over_seeds():
    # every seed gives the same completions of very unlike problems
    lengths = np.array([[10, 10], [1000, 1000]])
    row = comparison_row("leash", [seed_result(seed, lengths=lengths) for seed in range(3)], BASE)
    assert row.mean_tokens_interval == (505, 505)


def test_the_interval_of_one_seed_is_over_problems():
    result = seed_result(is_correct=np.eye(20, dtype=bool).repeat(2, axis=1)[:, :2], lengths=np.full((20, 2), 40))
    row = comparison_row("leash", [result], BASE)
    shares, tokens = mean_share(result.is_correct.mean(axis=1)), mean_amount(result.lengths.mean(axis=1))
    assert row.accuracy_interval == (shares.low, shares.high)
    assert row.mean_tokens_interval == (tokens.low, tokens.high)


def test_the_recorded_table_has_the_intervals_of_its_seeds():
    recipes = Path(__file__).parents[1] / "recipes" / "gym"
    with open(recipes / "compare_seeds.csv", newline="") as file:
        seeds = list(csv.DictReader(file))
    text = (recipes / "compare_results.md").read_text()
    table = next(part for part in text.split("\n\n") if part.startswith("| method |"))
    head, _, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    assert tuple(heading for heading in head if heading not in ("target", "alpha")) == HEADINGS
    keys = ("name", "target_length", "length_control_kwargs.alpha")
    assert len(rows) == len({tuple(row.get(key, "") for key in keys) for row in seeds})
    for cells in rows:
        row = dict(zip(head, cells, strict=True))
        key = [row["method"], row["target"], row.get("alpha", "")]
        own = [seed for seed in seeds if [seed.get(name, "") for name in keys] == key]
        assert row[HEADINGS[2]] == with_interval(_recorded(own, "accuracy", 1.0), "{:.3f}".format)
        assert row[HEADINGS[3]] == with_interval(_recorded(own, "mean_tokens"), "{:.1f}".format)


def test_the_figure_knows_how_many_seeds_a_point_has(tmp_path):
    table = tmp_path / "table.csv"
    ends = ("", "_interval_low", "_interval_high")
    head = ["name", "seeds", "target_length", *(name + end for name in ("accuracy", "mean_tokens") for end in ends)]
    rows = [["base", "", ""], ["LEASH", "1 2", "16"], ["LEASH", "1", "24"], ["DLER", "1", "16"], ["DLER", "2", "16"]]
    table.write_text("\n".join(",".join(row) for row in [head, *([*row, *["0.5"] * 6] for row in rows)]))
    assert [row.num_seeds for row in read_trade_offs(table)[1:]] == [2, 1, 2]


def _recorded(seeds, name, highest=math.inf):
    if len(seeds) > 1:
        return mean_over_seeds([float(seed[name]) for seed in seeds], highest)
    return Estimate(*(float(seeds[0][f"{name}{end}"]) for end in ("", "_interval_low", "_interval_high")))


# --- tables ----------------------------------------------------------------------------------------------------------


def test_markdown_by_hand():
    reached_once = [seed_result(0), seed_result(1, mean_lengths=np.array([90.0, 80.0, 70.0]))]
    never = [seed_result(mean_lengths=np.array([90.0, 80.0, 70.0]))]
    rows = [BASE, comparison_row("leash", reached_once, BASE), comparison_row("kimi", never, BASE)]
    head, _, base, leash, kimi = (
        [cell.strip() for cell in line.strip("|").split("|")] for line in markdown_table(rows).splitlines()
    )
    assert tuple(head) == HEADINGS
    assert base[:5] == ["base", "", "0.800 [0.750, 0.850]", "100.0", "170"]
    assert base[5:] == [""] * 8
    assert leash[:2] == ["leash", "2"]
    # last batches 44 and 70 of 46: (4.3 % + 52.2 %) / 2; only the first met it
    assert leash[5:] == ["-55.0%", "0.500", "28.3% (52.2%)", "100%", "0.0%", "2 (1 of 2)", "0.00 M", "+0.24"]
    assert kimi[10] == "never"


def test_csv_has_every_column_in_full_precision():
    row = comparison_row("a, b", [seed_result(), seed_result(3)], BASE)
    base, read = csv.DictReader(csv_table([BASE, row]).splitlines())
    assert base["satisfaction_rate"] == base["mean_tokens_interval_low"] == ""
    assert (read["name"], read["seeds"]) == ("a, b", "0 3")
    assert float(read["settling_error"]) == row.settling_error
    assert (float(read["accuracy_interval_low"]), float(read["accuracy_interval_high"])) == row.accuracy_interval


# --- figure ----------------------------------------------------------------------------------------------------------


def row_at(name, tokens, accuracy):
    row = comparison_row(name, [seed_result()], BASE)
    ends = {
        "accuracy_interval": (accuracy - 0.03, accuracy + 0.03),
        "mean_tokens_interval": (tokens - 1, tokens + 1),
    }
    return dataclasses.replace(row, mean_tokens=tokens, accuracy=accuracy, **ends)


# --- the file --------------------------------------------------------------------------------------------------------

FIELDS = {
    "model_name_or_path": "gym",
    "dataset_name": "gym",
    "target_length": 46,
    "per_device_train_batch_size": 16,
    "max_completion_length": 64,
    "max_steps": 2,
    "logging_steps": 1,
    "save_steps": 2,
    "bf16": False,
    "use_cpu": True,
    "gradient_checkpointing": False,
}
ARMS = {"leash": {"seeds": 2, "lambda_lr": 0.02}, "frozen": {"seeds": 1, "label": "LEASH-C", "lambda_lr": 0.0}}


@pytest.fixture
def write_config(tmp_path):
    def write(content=None, **changes):
        path = tmp_path / "compare.yaml"
        content = {"base": FIELDS, "arms": ARMS, **changes} if content is None else content
        path.write_text(content if isinstance(content, str) else yaml.safe_dump(content, sort_keys=False))
        return str(path)

    return write


def test_arms_are_base_with_their_own_fields(write_config):
    leash, frozen = load_arms(write_config())
    assert (leash.name, leash.label, leash.num_seeds) == ("leash", "leash", 2)
    assert (frozen.name, frozen.label, frozen.num_seeds) == ("frozen", "LEASH-C", 1)
    assert frozen.recipe == {**FIELDS, "lambda_lr": 0.0}


def test_every_arms_first_seed_comes_before_any_second(write_config):
    arms = load_arms(write_config())
    order = [(run.arm.name, run.seed) for run in planned_runs(arms, None, Path("out"))]
    assert order == [("leash", 0), ("frozen", 0), ("leash", 1)]
    order = [(run.arm.name, run.seed) for run in planned_runs(arms, [7, 3], Path("out"))]
    assert order == [("leash", 7), ("frozen", 7), ("leash", 3), ("frozen", 3)]


GRID = {"target_length": [12, 18]}


def test_an_arm_runs_at_every_point_of_its_grid(write_config):
    arms = {
        "leash": {"label": "LEASH", "grid": {"lambda_lr": [0.01, 0.04]}},
        "none": {"length_control": "none", "seeds": 1, "grid": {"target_length": None}},
    }
    loaded = load_arms(write_config(grid=GRID, arms=arms))
    assert [arm.name for arm in loaded] == [
        "leash-target_length-12-lambda_lr-0.01",
        "leash-target_length-12-lambda_lr-0.04",
        "leash-target_length-18-lambda_lr-0.01",
        "leash-target_length-18-lambda_lr-0.04",
        "none",
    ]
    assert {arm.label for arm in loaded[:4]} == {"LEASH"}
    assert loaded[1].point == {"target_length": 12, "lambda_lr": 0.04}
    assert loaded[1].recipe == {**FIELDS, "target_length": 12, "lambda_lr": 0.04}
    without = {name: value for name, value in FIELDS.items() if name != "target_length"}
    assert (loaded[4].point, loaded[4].recipe) == ({}, {**without, "length_control": "none"})
    assert [arm.name for arm in load_arms(write_config(grid=GRID, arms=arms), ["none"])] == ["none"]
    assert len(load_arms(write_config(grid=GRID, arms=arms), ["leash"])) == 4


def test_the_later_of_base_grid_arm_and_its_own_grid_wins(write_config):
    fixed, own = load_arms(
        write_config(
            base={**FIELDS, "target_length": 46},
            grid={"target_length": [12]},
            arms={"fixed": {"target_length": 20}, "own": {"target_length": 20, "grid": {"target_length": [28]}}},
        )
    )
    assert (fixed.name, fixed.recipe["target_length"]) == ("fixed", 20)
    assert (own.name, own.recipe["target_length"]) == ("own-target_length-28", 28)


def test_null_takes_a_field_or_an_entry_of_one_out(write_config):
    base = {**FIELDS, "length_control_kwargs": {"alpha": 0.5, "suffix": ""}}
    grid = {"length_control_kwargs.alpha": None, "use_cpu": None}
    (arm,) = load_arms(write_config(base=base, grid=grid, arms={"l1": {"length_control": "l1_max"}}))
    assert arm.recipe["length_control_kwargs"] == {"suffix": ""}
    assert "use_cpu" not in arm.recipe
    assert arm.point == {}


def test_a_grid_takes_one_entry_of_a_mapping(write_config):
    arms = {
        "alp": {
            "length_control_kwargs": {"alpha": 0.5, "suffix": ""},
            "grid": {"length_control_kwargs.alpha": [1, 2]},
        },
        "other": {"length_control_kwargs": {"beta": 0.5}},
        "fixed": {"length_control_kwargs": {"alpha": 7}},
    }
    config = write_config(grid={"length_control_kwargs.alpha": [3]}, arms=arms)
    one, two, other, fixed = load_arms(config)
    assert one.recipe["length_control_kwargs"] == {"alpha": 1, "suffix": ""}
    assert two.recipe["length_control_kwargs"] == {"alpha": 2, "suffix": ""}
    assert two.name == "alp-length_control_kwargs.alpha-2"
    assert other.recipe["length_control_kwargs"] == {"beta": 0.5, "alpha": 3}
    assert (fixed.name, fixed.recipe["length_control_kwargs"]) == ("fixed", {"alpha": 7})


def test_all_points_first_seeds_come_before_any_second(write_config):
    arms = load_arms(write_config(grid=GRID))
    runs = planned_runs(arms, [100, 101], Path("out"))
    assert [run.seed for run in runs] == [100] * 4 + [101] * 4
    assert runs[1].folder == Path("out/leash-target_length-18/seed-100")


@pytest.mark.parametrize(
    ("changes", "more", "message"),
    [
        ({"grid": [12]}, [], "compare.yaml: grid is [12], but must be a mapping, as {target_length: [12, 18, 28]}"),
        ({"grid": {"target_length": 12}}, [], "grid: target_length is 12, but must be a list of values, or null"),
        ({"grid": {"target_length": []}}, [], "grid: target_length is [], but must be a list"),
        ({"grid": {"target_length": [12, 12]}}, [], "two runs would use the folder 'leash-target_length-12'"),
        ({"grid": {"target_length": [[12]]}}, [], "target_length has [12], but must have numbers"),
        ({"grid": {"lambda_lr": [float("inf")]}}, [], "lambda_lr has inf, but must have numbers"),
        ({"grid": {"length_control": ["a/b"]}}, [], "length_control has 'a/b', but must have numbers"),
        ({"grid": {"seed": [1, 2]}}, [], "grid has seed, but must not; arms have label and seeds, --seeds"),
        ({"grid": {"target_lenght": [1]}}, [], "arm 'leash-target_lenght-1': unknown key 'target_lenght', did you"),
        ({"grid": {"target_length": [-4]}}, [], "arm 'leash-target_length--4': target_length is -4"),
        ({"grid": {"target_length.x": [1]}}, [], "grid has target_length.x, but target_length is 46; write it as a"),
        ({"arms": {"leash": {"grid": 3}}}, [], "arm 'leash': grid is 3"),
        (
            {"arms": {"a": {"grid": {"lambda_lr": [1]}}, "a-lambda_lr-1": {"seeds": 1}}},
            [],
            "two runs would use the folder 'a-lambda_lr-1'; rename an arm or drop a value",
        ),
        ({"grid": GRID}, ["--target_length", "9"], "takes target_length from a grid; change the grid, or drop"),
        (
            {"arms": {"a": {"label": "X", "lambda_lr": 1}, "b": {"label": "X", "lambda_lr": 2}}},
            [],
            "arms 'a' and 'b' are both 'X' in table and figure; give one another label",
        ),
        ({"content": "base: [1"}, [], "is not valid YAML"),
        ({"content": "- 1"}, [], "must hold a YAML mapping of names to values"),
        ({"content": {"base": FIELDS}}, [], "arms is missing or empty"),
        ({"content": {"base": FIELDS, "arms": ["leash"]}}, [], "arms is ['leash'], but must be a mapping"),
        (
            {"arms": {"a": {"label": None, "lambda_lr": 1}}},
            [],
            "arm 'a': label is None, but must be text; leave it out",
        ),
        ({"arms": {"a": {"grid": None}}}, [], "to take a field of it out of an arm, write {target_length: null}"),
        ({}, ["--seeds", "0", "-1"], "--seeds has -1, but must have whole numbers from 0 to 4294967295"),
        ({}, ["--dataset_name", "runs/none.jsonl"], "runs/none.jsonl"),
        ({"seeds": 3}, [], "unknown key 'seeds'; a comparison has base (fields of a recipe), arms and grid"),
        ({"arms": {"leash": None}}, [], "arm 'leash' has no fields; write what differs"),
        ({"arms": {"leash": {"seeds": 0}}}, [], "arm 'leash': seeds is 0, but must be"),
        ({"arms": {"a/b": {"lambda_lr": 0.1}}}, [], "arm 'a/b' cannot name a folder"),
        ({}, ["--arms", "leash", "lehs"], "has no arm 'lehs'; it has leash, frozen"),
        ({}, ["--jobs", "0"], "--jobs is 0"),
        ({"arms": {**ARMS, "x": {"lamda_lr": 1}}}, [], "arm 'x': unknown key 'lamda_lr', did you mean lambda_lr?"),
        ({"arms": {**ARMS, "x": {"lambda_lr": -1.0}}}, [], "arm 'x': lambda_lr"),
        (
            {"base": {**FIELDS, "model_name_or_path": "a/b"}},
            [],
            "model_name_or_path is 'a/b', but this command compares",
        ),
        (
            {"arms": {"a": {"label": "X"}, "b": {"label": "X", "target_length": 9}}},
            ["--target_length", "9"],
            "arms 'a' and 'b' are both 'X' in table and figure; give one another label",
        ),
        (
            {"arms": {"a": {"efforts": {"low": 16}, "target_length": 46}}},
            [],
            "arm 'a' has efforts, which leash compare does not score by effort; use leash demo",
        ),
    ],
)
def test_mistakes_are_one_line_and_nothing_is_run(changes, more, message, write_config, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(compare, "child_command", lambda run: pytest.fail("a run was started"))
    command = ["compare", "--config", write_config(**changes), "--output_dir", str(tmp_path / "out"), *more]
    assert main(command) == 2
    error = capsys.readouterr().err.strip().splitlines()
    assert len(error) == 1
    assert message in error[0]


def test_help_is_light():
    code = "import sys, leash_trl.cli.compare; print(' '.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "transformers", "trl", "numpy", "matplotlib"} & set(loaded)


# --- runs ------------------------------------------------------------------------------------------------------------

RESULT = {
    "trained": {"accuracy": 0.75, "mean_tokens": 45.0},
    "target_length": 46,
    "generated_tokens": 1000,
    "steps": [1, 2],
    "mean_length": [90.0, 46.0],
    "is_correct": [[1, 1], [1, 0]],
    "lengths": [[40, 50], [30, 60]],
}
CHILD = """
import os, pathlib, sys
folder, result = pathlib.Path(sys.argv[1]), sys.argv[2]
with open(folder.parent.parent / "started.txt", "a") as file:
    file.write(f"{folder.parent.name}/{folder.name}\\n")
print("threads:", os.environ["OMP_NUM_THREADS"], flush=True)
if result == "fail":
    sys.exit("no luck today")
(folder / "result.json").write_text(result)
"""


@pytest.fixture
def comparison(write_config, tmp_path, monkeypatch):
    """A comparison whose runs only claim their folder and write a result; `fails` names runs that write none."""

    def run(*more, fails=(), draws=False, **changes):
        if not draws:  # the figure takes most of the time
            for name in ("pareto_figure", "write_figure"):
                monkeypatch.setattr(comparison_report, name, lambda *args: None)

        def child_command(run):
            run.folder.mkdir(parents=True, exist_ok=True)
            claim = run_claim(yaml.safe_load((run.folder.parent / "recipe.yaml").read_text()), run.seed)
            (run.folder / "claim.json").write_text(json.dumps(claim))
            is_failing = (run.arm.name, run.seed) in fails
            target = run.arm.recipe.get("target_length")
            result = "fail" if is_failing else json.dumps({"seed": run.seed, **RESULT, "target_length": target})
            return [sys.executable, "-c", CHILD, str(run.folder), result]

        monkeypatch.setattr(compare, "child_command", child_command)
        return main(["compare", "--config", write_config(**changes), "--output_dir", str(tmp_path / "out"), *more])

    return run


def test_runs_are_in_order_and_the_table_is_written(comparison, tmp_path, capsys):
    assert comparison("--jobs", "1", draws=True) == 0
    out = tmp_path / "out"
    assert (out / "started.txt").read_text().split() == ["leash/seed-0", "frozen/seed-0", "leash/seed-1"]
    assert (out / "leash" / "seed-0" / "log.txt").read_text() == "threads: 1\n"
    assert yaml.safe_load((out / "frozen" / "recipe.yaml").read_text()) == {**FIELDS, "lambda_lr": 0.0}
    text = (out / "table.md").read_text()
    assert text in capsys.readouterr().out
    head = text.splitlines()[0]
    for word in (
        "leash compare --config",
        "2 held-out problems, 2 samples each",
        "last checkpoint",
        "target 46 tokens",
    ):
        assert word in head
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert [line.split(" | ")[0].strip("| ") for line in lines[2:5]] == ["base", "leash", "LEASH-C"]
    # of the gym's first two test problems
    assert lines[5:] == [
        "| method | target | level 1 | level 7 |",
        "| --- | ---: | ---: | ---: |",
        "| leash | 46 | 1.000, 45.0 | 0.500, 45.0 |",
        "| LEASH-C | 46 | 1.000, 45.0 | 0.500, 45.0 |",
    ]
    rows, seeds = (list(csv.DictReader((out / name).read_text().splitlines())) for name in ("table.csv", "seeds.csv"))
    assert [row["seeds"] for row in rows] == ["", "0 1", "0"]
    assert [(row["name"], row["seeds"]) for row in seeds] == [("leash", "0"), ("leash", "1"), ("LEASH-C", "0")]
    assert (out / "pareto.png").stat().st_size > 10_000


def test_points_of_a_grid_have_rows_columns_and_words_of_their_own(comparison, tmp_path, capsys):
    base = {name: value for name, value in FIELDS.items() if name != "target_length"}
    arms = {
        "leash": {"label": "LEASH", "grid": {"lambda_lr": [0.01, 0.04]}},
        "none": {"length_control": "none", "grid": {"target_length": None}},
    }
    assert comparison("--seeds", "5", "6", base=base, grid=GRID, arms=arms, draws=True) == 0
    assert "10 of 10 ended" in capsys.readouterr().out
    out = tmp_path / "out"
    text = (out / "table.md").read_text()
    paragraphs = text.strip().split("\n\n")
    rows = [line.strip("| ").split(" | ")[:4] for line in paragraphs[1].splitlines()]
    assert rows[0] == ["method", "target", "lambda_lr", "seeds"]
    assert rows[3:] == [
        ["LEASH", "12", "0.01", "2"],
        ["LEASH", "12", "0.04", "2"],
        ["LEASH", "18", "0.01", "2"],
        ["LEASH", "18", "0.04", "2"],
        ["none", "", "", "2"],
    ]
    assert "target 12 or 18 tokens" in paragraphs[0]
    assert "pairs of methods" not in text  # two settings of one method at each target are none
    assert "| LEASH, lambda_lr 0.04 at 18 |" in paragraphs[3]
    assert "accuracy minus that of LEASH, lambda_lr 0.01" in paragraphs[5]
    seeds = list(csv.DictReader((out / "seeds.csv").read_text().splitlines()))
    assert len(seeds) == 10
    assert (seeds[0]["name"], seeds[0]["target_length"], seeds[0]["lambda_lr"]) == ("LEASH", "12", "0.01")
    for table in ("table.csv", "seeds.csv"):
        base_row, *rows = read_trade_offs(out / table)
        assert base_row.name == "base"
        assert [(row.name, row.settings, row.target_length) for row in rows] == [
            ("LEASH", "lambda_lr 0.01", 12),
            ("LEASH", "lambda_lr 0.04", 12),
            ("LEASH", "lambda_lr 0.01", 18),
            ("LEASH", "lambda_lr 0.04", 18),
            ("none", "", None),
        ]
    blocks, _ = read_comparison(out)
    tables = [block for block in blocks if isinstance(block, Table)]
    assert [table.head[:4] for table in tables] == [
        ["method", "target", "lambda_lr", "change"],
        ["point", "front", "beaten by", "after Holm"],
        ["method", "accuracy minus that of LEASH, lambda_lr 0.01 [95 % of the mean]", "tokens"],
        ["method", "target", "level 1", "level 7"],
    ]
    assert all(table.caption in text.replace("`", "") for table in tables)
    told = " ".join([block.text for block in blocks if isinstance(block, Paragraph)])
    assert "2 held-out problems, 2 samples each" in told
    assert "Student's t interval of the mean over seeds" in tables[0].caption


@pytest.mark.parametrize("milestones", [{0: 90, 1: 46}, "{0: 90, 1: 46}"])
def test_lengths_count_from_the_last_change_of_the_target(milestones, comparison, tmp_path):
    staged = {"target_schedule": "staged", "target_milestones": milestones, "max_completion_length": 96}
    assert comparison("--seeds", "5", arms={"fixed": {"lambda_lr": 0.1}, "staged": staged}) == 0
    _, fixed, changed = csv.DictReader((tmp_path / "out" / "table.csv").read_text().splitlines())
    assert fixed["steps_to_target"] == "2.0"
    assert changed["steps_to_target"] == "1.0"


def test_a_grid_of_one_value_needs_no_column(comparison, tmp_path):
    assert comparison("--seeds", "5", grid={"lambda_lr": [0.01]}, arms={"leash": {"max_steps": 2}}) == 0
    assert (tmp_path / "out" / "table.md").read_text().split("\n\n")[1].startswith("| method | seeds | accuracy")


def test_a_finished_run_is_not_run_again(comparison, tmp_path):
    assert comparison("--arms", "leash", "--seeds", "0") == 0
    assert comparison() == 0
    assert comparison() == 0
    started = (tmp_path / "out" / "started.txt").read_text().split()
    assert started[0] == "leash/seed-0"
    assert sorted(started) == ["frozen/seed-0", "leash/seed-0", "leash/seed-1"]


def test_a_failed_run_stops_no_other_and_is_named(comparison, tmp_path, capsys):
    assert comparison("--jobs", "1", fails=[("leash", 0)]) == 1
    captured = capsys.readouterr()
    log_file = tmp_path / "out" / "leash" / "seed-0" / "log.txt"
    assert f"leash seed 0 failed with exit code 1, see {log_file}: no luck today" in captured.err
    assert "Missing: leash seed 0." in captured.out
    assert comparison() == 0
    assert "Missing" not in capsys.readouterr().out


def test_a_smaller_comparison_says_what_its_table_leaves_out(comparison, tmp_path, capsys):
    assert comparison() == 0
    assert "more runs" not in capsys.readouterr().err
    assert comparison("--arms", "frozen") == 0
    assert f"{tmp_path / 'out'} holds 2 more runs, of other arms or seeds" in capsys.readouterr().err


def test_where_every_run_fails_there_is_no_table_but_every_name(comparison, capsys):
    assert comparison("--arms", "frozen", fails=[("frozen", 0)]) == 1
    assert "frozen seed 0 failed" in capsys.readouterr().err


def test_as_many_run_at_once_as_asked_for(tmp_path):
    code = f"""
import os, pathlib, time
here = pathlib.Path("{tmp_path}") / f"{{os.getpid()}}.running"
here.touch()
time.sleep(0.4)
print(len(list(here.parent.glob("*.running"))))
here.unlink()
"""
    jobs = [process_queue.Job(name, (sys.executable, "-c", code), tmp_path / name) for name in "abcd"]
    assert set(process_queue.run_jobs(jobs, 2, os.environ, lambda *ended: "").values()) == {0}
    at_once = [int(job.log_file.read_text()) for job in jobs]
    assert max(at_once) == 2


@pytest.mark.parametrize(
    ("num_ended", "seconds_each", "words"),
    [(3, 60.0, "3 of 12 ended, about 9 min left"), (11, 59.0, "11 of 12 ended"), (12, 600.0, "12 of 12 ended")],
)
def test_progress_says_how_many_have_ended_and_how_long_the_others_take(num_ended, seconds_each, words):
    assert process_queue.progress(num_ended, 12, seconds_each) == words


def test_a_run_that_failed_at_once_does_not_shorten_the_time_left(tmp_path, monkeypatch):
    each = []
    monkeypatch.setattr(process_queue, "progress", lambda ended, total, seconds: each.append(seconds) or "")
    codes = {"good": "", "bad": "raise SystemExit(1)", "waits": ""}
    jobs = [process_queue.Job(name, (sys.executable, "-c", code), tmp_path / name) for name, code in codes.items()]
    process_queue.run_jobs(jobs, 1, os.environ, lambda *ended: "")
    assert each[0] > 0
    assert each[1] == each[0]


def test_a_folder_with_another_run_is_an_error(comparison, tmp_path, capsys):
    folder = tmp_path / "out" / "leash" / "seed-1"
    folder.mkdir(parents=True)
    (folder / "claim.json").write_text(json.dumps({"recipe": {"max_steps": 9}, "overrides": [], "seed": 1}))
    assert comparison() == 2
    assert f"{folder} holds a run of another recipe" in capsys.readouterr().err
    (folder / "claim.json").unlink()
    (folder / "result.json").write_text(json.dumps(RESULT))
    assert comparison() == 2
    assert f"{folder} holds a run of another recipe" in capsys.readouterr().err
    assert not (tmp_path / "out" / "started.txt").exists()


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_stopping_the_comparison_stops_its_runs(sent, tmp_path):
    code = f"""
import os, pathlib
from leash_trl.cli.process_queue import Job, run_jobs
command = ("{sys.executable}", "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(60)")
jobs = [Job(name, command, pathlib.Path("{tmp_path}") / name) for name in ("a", "b", "c")]
run_jobs(jobs, 2, os.environ, lambda *ended: "")
"""
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    logs = [tmp_path / "a", tmp_path / "b"]
    deadline = time.monotonic() + 30
    while not all(log.is_file() and log.read_text().endswith("\n") for log in logs):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(sent)
    assert "KeyboardInterrupt" in process.communicate(timeout=30)[1]
    for log in logs:
        with pytest.raises(ProcessLookupError):
            os.kill(int(log.read_text()), 0)
    assert not (tmp_path / "c").exists()


def test_a_second_comparison_in_the_folder_is_refused(comparison, tmp_path, capsys):
    assert comparison() == 0
    with FileLock(tmp_path / "out" / LOCK_FILE):
        assert comparison() == 2
    assert "is in use by another run" in capsys.readouterr().err


def test_ctrl_c_is_no_traceback(comparison, monkeypatch, capsys):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(compare, "run_jobs", interrupted)
    assert comparison() == 130
    assert "the same command goes on from here" in capsys.readouterr().err


def test_a_child_that_will_not_stop_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(process_queue, "STOP_SECONDS", 0.3)
    code = "import signal as s, time; s.signal(s.SIGTERM, s.SIG_IGN); print('ready', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        process_queue._stop([process])
        assert process.poll() == -signal.SIGKILL


def test_a_model_is_asked_as_it_was_taught(make_args, tmp_path):
    from leash_trl.cli.gym_run import _prompt_suffix

    def write_state(method, state):
        saved = {"stateful_callbacks": {"LengthControl": {"method": method, "state": state}}}
        (tmp_path / "trainer_state.json").write_text(json.dumps(saved), encoding="utf-8")

    parameters = {"stages": {0: 20, 10: 15}, "suffix": " {limit} at most"}
    args = make_args(length_control="thinkprune", length_control_kwargs=parameters, lambda_lr=None)
    write_state("thinkprune", {"steps_done": 10})
    assert _prompt_suffix(args, tmp_path) == " 15 at most"
    write_state("leash", make_args().make_length_control().state_dict())
    assert _prompt_suffix(make_args(), tmp_path) == ""


@pytest.mark.slow
def test_two_arms_from_file_to_table(write_config, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "tensorboard"))
    arms = {"leash": {"lambda_lr": 0.02}, "none": {"length_control": "none"}}
    config = write_config(arms=arms)
    command = ["compare", "--config", config, "--output_dir", str(tmp_path / "out"), "--seeds", "0"]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert "512 held-out problems, 4 samples each" in text
    assert "Missing" not in text
    results = [json.loads((tmp_path / "out" / arm / "seed-0" / "result.json").read_text()) for arm in arms]
    assert np.shape(results[0]["is_correct"]) == np.shape(results[0]["lengths"]) == (512, 4)
    assert np.mean(results[0]["lengths"]) == pytest.approx(results[0]["trained"]["mean_tokens"])
    assert results[0]["steps"] == [1, 2]
    assert 0 < results[0]["generated_tokens"] <= 2 * 16 * 64
    assert results[0]["lambda_end"] > 0
    assert results[1]["lambda_end"] is None
    before = (tmp_path / "out" / "leash" / "seed-0" / "result.json").stat().st_mtime
    assert main(command) == 0
    assert (tmp_path / "out" / "leash" / "seed-0" / "result.json").stat().st_mtime == before
