"""`leash compare`: its file, which runs there are, what is not run again, and what it writes."""

import contextlib
import csv
import json
import os
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from filelock import FileLock

from leash_trl import gym
from leash_trl.cli.commands import compare
from leash_trl.cli.commands.compare import CompareArguments, planned_runs
from leash_trl.cli.main import main
from leash_trl.comparison.run import ComparedRun
from leash_trl.data import BOXED_SUFFIX
from leash_trl.errors import TrainingError
from leash_trl.run_folder import LOCK_FILE


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
    base, *runs = planned_runs(CompareArguments(comparison=config, arms=arms, seeds=seeds, output_dir="out"), given)
    assert (base.name, base.seed, base.folder) == ("base", None, Path("out/base"))
    return runs


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
    (run,) = planned(config(FIELDS), seeds=[4])  # a recipe is a comparison of one arm
    assert (run.arm, run.recipe, run.seed) == ("compare", FIELDS, 4)


def test_arms_run_at_every_point_of_their_grids_and_what_is_said_later_wins(config):
    arms = {
        "leash": {"grid": {"lambda_lr": [0.01, 0.04]}},
        "none": {"length_control": "none", "grid": {"target_length": None}},
        "fixed": {"target_length": 20},
        "own": {"target_length": 20, "grid": {"target_length": [28]}},
    }
    runs = planned(config(grid={"target_length": [12, 18]}, arms=arms), seeds=[0], max_steps=9)
    names = [f"leash-target_length-{target}-lambda_lr-{rate}" for target in (12, 18) for rate in (0.01, 0.04)]
    assert [run.arm for run in runs] == [*names, "none", "fixed", "own-target_length-28"]
    assert [run.label for run in runs] == [*["leash"] * 4, "none", "fixed", "own"]
    assert runs[1].recipe == {**FIELDS, "target_length": 12, "lambda_lr": 0.04, "max_steps": 9}
    assert runs[1].point == {"target_length": 12, "lambda_lr": 0.04}
    assert [run.recipe.get("target_length") for run in runs[4:]] == [None, 20, 28]


def test_an_arm_without_training_has_options_of_eval_over_those_of_all(config):
    rivals = {
        "asked": {"train": False, "prompt_ending": " Be concise.", "label": "asked"},
        "cut": {"train": False, "grid": {"max_new_tokens": [20, 30]}},
        "other": {"train": False, "model_name_or_path": "gym", "max_new_tokens": 25},
    }
    grid, own_eval = {"target_length": [12, 18]}, {"num_samples": 2}
    runs = planned(config(arms={**rivals, **ARMS}, grid=grid, eval=own_eval), seeds=[5])
    asked, first, second, other, *trained = runs
    assert [run.is_trained for run in runs] == [False] * 4 + [True] * 4
    assert [run.arm for run in (first, second, other)] == ["cut-max_new_tokens-20", "cut-max_new_tokens-30", "other"]
    usual = trained[0].evaluation
    assert asked.evaluation == {**usual, "prompt_ending": " Be concise."}
    assert (usual["max_new_tokens"], second.evaluation["max_new_tokens"]) == (64, 30)
    assert (second.point, other.recipe["model_name_or_path"]) == ({"max_new_tokens": 30}, "gym")
    (command,) = second.commands(1)
    assert command[:2] == ["leash_trl", "eval"]
    assert command[command.index("--model_name_or_path") + 1] == "gym"
    assert "--seed=5" in command
    methods = {"length_control_kwargs": {"multiplier_per": "level"}, "min_accuracy": 0.5, "thinking_end": "[/T]"}
    runs = planned(config(base={**FIELDS, **methods}, arms={**ARMS, "cut": rivals["cut"]}), min_accuracy=0.25)
    assert {run.evaluation["thinking_end"] for run in runs} == {"[/T]"}
    # an arm that is no longer trained, or only now, is another run
    assert second.claim()["recipe.yaml"] == "train: false\n" != trained[0].claim()["recipe.yaml"]


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


@pytest.mark.parametrize(
    ("changes", "more", "named"),
    [
        ({"grid": {"target_length": 12}}, [], "12"),
        ({"grid": {"target_length": [12, 12]}}, [], "leash-target_length-12"),
        ({"grid": {"target_length": [12]}}, ["--target_length", "9"], "target_length"),
        ({"arms": {"a": {"label": "X"}, "b": {"label": "X", "lambda_lr": 2}}}, [], "X"),
        ({"arms": {**ARMS, "x": {"lamda_lr": 1}}}, [], "lamda_lr"),
        ({"arms": {**ARMS, "x": {"lambda_lr": -1.0}}}, [], "lambda_lr"),
        ({"arms": {**ARMS, "x": {"model_name_or_path": "a/b"}}}, [], "model_name_or_path"),
        ({"arms": {"base": {}}}, [], "model before training"),
        ({"arms": {"x": {"label": "base"}}}, [], "model before training"),
        ({}, ["--arms", "base"], "model before training"),
        ({"eval": {"seed": 123}}, [], "seed is 123"),
        ({"arms": {**ARMS, "x": {"train": False, "seed": 5}}}, [], "seed is 5"),
        ({"arms": {**ARMS, "x": {"seed": 6}}}, [], "seed is 6"),
        ({"arms": {"x": {"grid": {"seed": [7, 8]}}}}, [], "seed is [7, 8]"),
        ({"grid": {"seed": [7, 8]}}, [], "seed is [7, 8]"),
        ({}, ["--seed", "9"], "seed is 9"),
        ({"arms": {"x": {"train": False}}}, [], "leash eval"),
        ({"arms": {**ARMS, "x": {"train": False, "lambda_lr": 0.1}}}, [], "lambda_lr"),
        ({"arms": {**ARMS, "x": {"train": "false"}}}, [], "'false'"),
        ({"arms": {**ARMS, "x": {"train": False, "num_samples": 1}}}, [], "num_samples"),
        ({"arms": {**ARMS, "x": {"dataset_name": "gym_stories"}}}, [], "benchmarks"),
        ({"eval": {"num_sample": 4}}, [], "num_sample"),
        ({"base": {**FIELDS, "dataset_name": None, "datasets": [{"path": "json"}]}}, [], "benchmarks"),
        ({"base": {**FIELDS, "dataset_config": "hard"}}, [], "benchmarks"),
        ({"base": {**FIELDS, "reward_model_name_or_path": "a/b"}}, [], "reward_model_name_or_path"),
        ({}, ["--devices", "0,1;2"], "0,1;2"),
        ({}, ["--devices", "0;1", "--jobs", "1"], "jobs is 1"),
        ({"seeds": 3}, [], "seeds"),
        ({}, ["--arms", "lehs"], "lehs"),
        ({}, ["--max_stepz", "5"], "max_stepz"),
    ],
)
def test_mistakes_are_one_line_and_nothing_is_run(changes, more, named, config, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(compare, "run_all", lambda *args: pytest.fail("a run was started"))
    assert main(["compare", "--config", config(**changes), "--output_dir", str(tmp_path / "out"), *more]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert named in line


def test_problems_rewards_and_sampling_are_those_of_training_unless_said(config):
    shared = {"reward_funcs": ["think_format_reward", "math_reward"], "reward_weights": [0.1, 1.0]}
    shared |= {"temperature": 0.8, "top_p": 0.9, "top_k": 7, "prompt_suffix": " Be brief."}
    shared |= {"system_prompt": "You add.", "chat_template": "{{ messages }}"}
    base = {**FIELDS, **shared}
    (run, *_) = planned(config(base=base))
    (brief, *_) = planned(config(base={**base, "generation_kwargs": {"max_new_tokens": 48}}))
    assert brief.evaluation["max_new_tokens"] == 48
    expected = {"benchmarks": ["gym"], "split": "test", "max_new_tokens": 64, "num_samples": 4, **shared}
    assert expected.items() <= run.evaluation.items()
    own = {"benchmarks": ["gym_stories_test"], "reward_funcs": ["math_reward"], "num_samples": 2, "max_new_tokens": 32}
    (run, *_) = planned(config(base=base, eval=own))
    assert own.items() <= run.evaluation.items()
    assert not {"split", "reward_weights"} & run.evaluation.keys()


@pytest.mark.parametrize(
    ("base", "own_eval", "suffix"),
    [
        ({}, {}, BOXED_SUFFIX),
        ({"reward_funcs": ["think_format_reward"]}, {}, ""),
        # who is not trained is asked as in training too, whatever grades the evaluation
        ({"reward_funcs": ["think_format_reward"]}, {"reward_funcs": ["math_reward"]}, ""),
        ({}, {"reward_funcs": ["think_format_reward"]}, BOXED_SUFFIX),
        ({"dataset_name": "reasoning_gym:{task: chain_sum, size: 3}"}, {"benchmarks": ["gym_test"]}, ""),
        ({"dataset_name": "tasks.jsonl"}, {"benchmarks": ["gym_test"]}, ""),
        ({"dataset_name": "tasks.jsonl", "prompt_suffix": " Be brief."}, {"benchmarks": ["gym_test"]}, " Be brief."),
        ({}, {"prompt_suffix": ""}, ""),
    ],
    ids=str,
)
def test_all_models_of_a_comparison_are_asked_as_in_training(base, own_eval, suffix, config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks.jsonl").write_text('{"prompt": "1 + 1 = ?", "reasoning_gym": "0 {}"}\n')
    arms = {**ARMS, "asked": {"train": False, "prompt_ending": " Be concise."}}
    runs = planned_runs(CompareArguments(comparison=config(base={**FIELDS, **base}, arms=arms, eval=own_eval)), {})
    assert {run.is_trained for run in runs} == {True, False}
    assert {run.evaluation["prompt_suffix"] for run in runs} == {suffix}


def test_a_model_that_another_training_saved_has_the_prompts_of_its_own_training(config, tmp_path):
    fields = ("prompt_suffix", "system_prompt", "thinking_end", "chat_template_kwargs")
    model = shutil.copytree(gym.CHECKPOINT, tmp_path / "model")
    rival = {"train": False, "model_name_or_path": str(model)}
    base = {**FIELDS, "system_prompt": "You add.", "thinking_end": "[/T]"}
    compared = config(base=base, arms={**ARMS, "rival": rival, "asked": {**rival, "system_prompt": "Add."}})
    plain, *_ = planned(compared, ["rival", "leash"])
    assert (plain.evaluation["system_prompt"], plain.evaluation["thinking_end"]) == ("You add.", "[/T]")
    (model / "leash_recipe.yaml").write_text("system_prompt: You sum.\n")
    saved, asked, *_ = planned(compared, ["rival", "asked", "leash"])
    assert not saved.evaluation.keys() & {*fields}  # which leash eval takes from the recipe
    assert {name: asked.evaluation.get(name) for name in fields} == {**dict.fromkeys(fields), "system_prompt": "Add."}


def test_a_run_on_several_devices_trains_in_as_many_processes_and_goes_on_with_what_is_left(config, tmp_path):
    *_, run = planned(config())
    assert yaml.safe_load(run.claim()["recipe.yaml"]) == {**FIELDS, "lambda_lr": 0.02, "seed": 1}
    run.folder = tmp_path / "run"
    train, evaluate = run.commands(2)
    assert train[:2] == ["torch.distributed.run", "--standalone"]
    assert {"--nproc_per_node=2", "train", str(run.folder)} <= {*train}
    assert {"eval", str(run.folder), str(run.folder / "eval"), "--seed=1"} <= {*evaluate}
    (run.folder / "checkpoint-1").mkdir(parents=True)
    (run.folder / "checkpoint-1" / "trainer_state.json").write_text("{}")
    train, _ = run.commands(1)
    assert (train[:2], train[-2:]) == (["leash_trl", "train"], ["--resume_from_checkpoint", "true"])
    (run.folder / "trainer_state.json").write_text("{}")
    assert [command[1] for command in run.commands(1)] == ["eval"]


def test_what_is_asked_at_the_end_of_training_ends_the_prompts_of_the_evaluation(config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arms = {
        "l1": {"length_control": "l1_max", "length_control_kwargs": {"budget_range": None}},
        "leash": {},
        "efforts": {"efforts": {"low": 16, "high": 40}, "length_control": "none"},
        "l1_efforts": {
            "efforts": {"low": 17, "high": 41},
            "length_control": "l1_max",
            "length_control_kwargs": {"budget_range": None},
        },
        "pruned": {"length_control": "thinkprune", "length_control_kwargs": {"stages": {0: 40, 5: 20}}},
    }
    state = {"stateful_callbacks": {"LengthControl": {"state": {"steps_done": 9}}}}
    (tmp_path / "out" / "pruned" / "seed-0").mkdir(parents=True)
    (tmp_path / "out" / "pruned" / "seed-0" / "trainer_state.json").write_text(json.dumps(state))
    asked = {
        run.label: {
            word.partition("=")[2] for command in run.commands(1) for word in command if "--prompt_ending=" in word
        }
        for run in planned(config(arms=arms), seeds=[0])
    }
    assert "46" in asked.pop("l1").pop()
    assert all(str(target) in text for target, text in zip((41, 17), sorted(asked.pop("l1_efforts")), strict=True))
    efforts = {" Effort: low.", " Effort: high."}
    assert asked == {"leash": {""}, "efforts": efforts, "pruned": {" The output should be within 20 tokens."}}


ROW = '{"prompt": "1 + 1 = ?", "solution": "2"}\n'
OWN_FILES = {
    "rows.jsonl": ROW,
    "claimed_method.py": "from leash_trl import LengthControl\nclass Mine(LengthControl):\n    name = '2'\n",
    "held_out.jsonl": ROW,
    "claimed.py": "def claimed(completions, **kwargs):\n    return [2.0 for _ in completions]\n",
}
TEMPLATE = "model/chat_template.jinja"
OF_THE_BASE = ("held_out.jsonl", "claimed.py", TEMPLATE)  # which is not trained


@pytest.mark.parametrize("method", ["claimed_method.Mine", "claimed_method.py:Mine"])
def test_a_run_of_other_settings_data_or_code_is_not_taken_for_this_one(method, config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for module in ("claimed", "claimed_method"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    for name, content in OWN_FILES.items():
        Path(name).write_text(content)
    shutil.copytree(gym.CHECKPOINT, "model")

    def runs(**changes):
        base = {
            **FIELDS,
            "model_name_or_path": "model",
            "dataset_name": "rows.jsonl",
            "length_control": method,
            **changes,
        }
        base["reward_funcs"] = ["claimed.py:claimed"]
        file = config(base=base, arms={"a": {}}, eval={"benchmarks": ["held_out.jsonl"]})
        return planned_runs(CompareArguments(comparison=file), {})

    def is_another(run):
        with contextlib.suppress(TrainingError):
            run.check_claim(run.claim())
            return False
        return True

    for run in runs():
        run.folder.mkdir(parents=True)
        for name, content in run.claim().items():
            (run.folder / name).write_text(content)
    assert [*map(is_another, runs())] == [False] * 4
    assert [*map(is_another, runs(max_steps=3))] == [False, True, True, True]
    assert [*map(is_another, runs(max_completion_length=48))] == [True] * 4
    for name in (*OWN_FILES, TEMPLATE):
        content = Path(name).read_text()
        Path(name).write_text(content.replace("2", "3") + "\n")
        assert [*map(is_another, runs())] == [name in OF_THE_BASE, True, True, True]
        Path(name).write_text(content)


CHILD = """
import json, pathlib, sys
folder, name, fails = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "fails"
root = folder.parent if name == "base" else folder.parent.parent
with open(root / "started.txt", "a") as file:
    file.write(name + "\\n")
if fails:
    raise ValueError("no luck today")
log = [{"step": 1, "leash/mean_length": 90.0, "leash/generated_tokens": 500, "leash/lambda": 0.5, "leash/accuracy": 1}]
log.append({"step": 2, "leash/mean_length": 45.0, "leash/generated_tokens": 1000, "leash/lambda": 0.25})
if "multiplier_per" in (folder / "recipe.yaml").read_text():
    for row, low, high in zip(log, (60.0, 39.0), (120.0, 51.0)):
        for name, length, target in (("low", low, 40), ("high", high, 50)):
            row |= {f"leash/mean_length/{name}": length, f"leash/target_length/{name}": target}
(folder / "trainer_state.json").write_text(json.dumps({"global_step": 2, "log_history": log}))
run = {"label": name, "model": "", "num_samples": 2, "sampling": {"max_new_tokens": 64}, "decoding": {}}
run["benchmarks"] = {"gym": {"num_problems": 2}}
has_rewards = "reward_funcs" in (folder / "eval.yaml").read_text()
length = 80 if name == "base" else 40
lines = []
for i in range(2):
    scores = [{"is_correct": i + k < 2, **({"reward": (i + k < 2) - 0.5} if has_rewards else {})} for k in range(2)]
    common = {"finish_reason": "length" if name.startswith(("base", "brief")) else "stop", "num_thinking_tokens": 0}
    common |= {"answer": None, "grader_failure": None}
    completions = [{**score, **common, "num_tokens": length + 10 * k} for k, score in enumerate(scores)]
    lines.append(json.dumps({"index": i, "id": str(i), "solution": "", "completions": completions}) + "\\n")
for part in sys.argv[4:]:
    (folder / part / "samples").mkdir(parents=True, exist_ok=True)
    (folder / part / "run.json").write_text(json.dumps(run))
    (folder / part / "samples" / "gym.jsonl").write_text("".join(lines))
    (folder / part / "results.json").write_text("{}")
"""


@pytest.fixture
def comparison(config, tmp_path, monkeypatch):
    """A comparison whose runs only write a result; those in `failing` fail."""
    (tmp_path / "fake_run.py").write_text(CHILD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)

    def run(*more, failing=(), devices=1, **changes):
        def commands(self, num_devices):
            assert num_devices == devices
            how = "fails" if self.name in failing else "works"
            return [["fake_run", str(self.folder), self.name, how, *self.requests]]

        monkeypatch.setattr(ComparedRun, "commands", commands)
        return main(["compare", "--config", config(**changes), "--output_dir", str(tmp_path / "out"), *more])

    return run


def table(path):
    return list(csv.DictReader(path.read_text().splitlines()))


def test_tables_and_figure_are_of_all_runs_and_finished_runs_are_not_run_again(comparison, tmp_path, capsys):
    out = tmp_path / "out"
    assert comparison("--devices", "0,1", devices=2) == 0
    assert (out / "started.txt").read_text().split() == ["base", "leash/seed-0", "frozen/seed-0", "leash/seed-1"]
    text = (out / "table.md").read_text()
    assert text in capsys.readouterr().out
    (cut,) = [line for line in text.splitlines() if "max_new_tokens" in line]
    assert ("base" in cut, "leash" in cut) == (True, False)
    assert [row["name"] for row in table(out / "table.csv")] == ["base", "leash", "LEASH-C"]
    seeds = table(out / "seeds.csv")
    names = [(row["name"], row["seeds"]) for row in seeds]
    assert names == [("base", ""), ("leash", "0"), ("leash", "1"), ("LEASH-C", "0")]
    # three of four are right; 40, 50, 40 and 50 tokens; the second batch of 90 and 45 tokens is below 46
    numbers = [[float(row[name]) for name in ("score", "mean_tokens", "steps_to_target")] for row in seeds[1:]]
    assert numbers == [[0.75, 45, 2]] * 3
    assert {(row["generated_tokens"], float(row["token_change"])) for row in seeds[1:]} == {("1000.0", 45 / 85 - 1)}
    assert (out / "pareto.png").stat().st_size > 10_000
    assert comparison() == 0
    assert len((out / "started.txt").read_text().split()) == 4


def test_a_failed_run_stops_no_other_and_is_named_with_its_cause(comparison, tmp_path, capsys):
    out = tmp_path / "out"
    assert comparison("--arms", "frozen", failing=["frozen/seed-0"]) == 1
    assert not (out / "table.md").exists()
    assert comparison("--jobs", "1", failing=["leash/seed-0"]) == 1
    said = capsys.readouterr()
    (line,) = [line for line in said.err.splitlines() if "leash/seed-0 failed" in line]
    assert "ValueError: no luck today" in line
    assert str(out / "leash" / "seed-0" / "log.txt") in line
    assert "Missing: leash/seed-0." in said.out
    assert comparison() == 0
    assert "Missing" not in capsys.readouterr().out


def test_one_arm_stands_below_its_base_with_its_curves(comparison, tmp_path):
    assert comparison("--arms", "frozen") == 0
    (arm,) = [line for line in (tmp_path / "out" / "table.md").read_text().splitlines() if "LEASH-C" in line]
    assert "| -47.1% | 0.500 | 0.250 (0.500) |" in arm
    assert (tmp_path / "out" / "dynamics.png").stat().st_size > 10_000


def test_an_arm_that_is_cut_on_purpose_is_not_said_to_be_truncated(comparison, tmp_path):
    assert comparison("--seeds", "1", arms={"leash": {}, "brief": {"train": False, "max_new_tokens": 8}}) == 0
    (line,) = [each for each in (tmp_path / "out" / "table.md").read_text().splitlines() if "max_new_tokens" in each]
    assert ("base" in line, "brief" in line) == (True, False)


def test_the_curves_of_training_are_found_whatever_the_order_of_the_grids(comparison):
    arms = {"a": {"learning_rate": 1e-6, "grid": {"lambda_init": [0.1]}}, "b": {"grid": {"lambda_init": [0.1]}}}
    assert comparison("--seeds", "5", arms=arms, grid={"learning_rate": [1e-5]}) == 0


def test_rewards_of_several_values_are_compared_by_their_mean(comparison, tmp_path):
    assert comparison(eval={"reward_funcs": ["math_reward", "think_format_reward"], "benchmarks": ["gym_test"]}) == 0
    rows = table(tmp_path / "out" / "seeds.csv")
    assert {row["measure"] for row in rows} == {"reward"}
    assert float(rows[1]["score"]) == pytest.approx(0.25 * 3 - 0.5)
    assert rows[1]["efficiency_score"] == ""


def test_every_effort_is_a_row_and_lengths_count_from_the_last_change_of_the_target(comparison, tmp_path):
    staged = {"target_schedule": "staged", "target_milestones": {0: 90, 1: 46}, "max_completion_length": 96}
    efforts = {"efforts": {"low": 40, "high": 50}, "length_control_kwargs": {"multiplier_per": "effort"}}
    arms = {"fixed": {}, "staged": staged, "leash": efforts, "one lambda": {"efforts": {"low": 40}}}
    assert comparison("--seeds", "5", arms=arms, eval={"max_new_tokens": 64}) == 0
    columns = ("name", "effort", "target_length", "steps_to_target")
    assert [[row[name] for name in columns] for row in table(tmp_path / "out" / "seeds.csv")] == [
        ["base", "", "", ""],
        ["fixed", "", "46.0", "2.0"],
        ["staged", "", "46.0", "1.0"],
        ["leash", "low", "40.0", "2.0"],
        ["leash", "high", "50.0", ""],
        ["one lambda", "low", "40.0", ""],
    ]


def test_a_second_comparison_in_the_folder_is_refused(comparison, tmp_path):
    (tmp_path / "out").mkdir()
    with FileLock(tmp_path / "out" / LOCK_FILE):
        assert comparison() == 2
    assert not (tmp_path / "out" / "started.txt").exists()
