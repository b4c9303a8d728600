"""`leash compare`: its file, which runs there are, what is not run again, and what it writes."""

import csv
import json
import os
import re
import shutil
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml
from filelock import FileLock

from leash_trl import gym
from leash_trl.cli.commands import compare
from leash_trl.cli.commands.compare import CompareArguments, curves_of_effort
from leash_trl.cli.comparison_arms import planned_runs
from leash_trl.cli.main import main
from leash_trl.comparison import progress
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
ARMS = {
    "leash": {"seeds": 2, "lambda_lr": 0.02},
    "frozen": {"seeds": 1, "label": "LEASH-C", "lambda_lr": 0.0},
}


@pytest.fixture
def config(tmp_path):
    def write(content=None, **changes):
        path = tmp_path / "compare.yaml"
        path.write_text(yaml.safe_dump(content or {"base": FIELDS, "arms": ARMS, **changes}, sort_keys=False))
        return str(path)

    return write


def planned(file, arms=None, seeds=None, **overrides):
    options = CompareArguments(comparison=file, arms=arms, seeds=seeds, output_dir="out")
    base, *runs = planned_runs(options, overrides)
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


def test_a_recipe_is_a_comparison_of_one_arm(config):
    (run,) = planned(config(FIELDS), seeds=[4])
    assert (run.arm, run.recipe, run.seed) == ("compare", FIELDS, 4)


def test_arms_run_at_every_point_of_their_grids_and_the_later_setting_wins(config):
    arms = {
        "leash": {"grid": {"lambda_lr": [0.01, 0.04]}},
        "none": {"length_control": "none", "grid": {"target_length": None}},
        "fixed": {"target_length": 20},
        "own": {"target_length": 20, "grid": {"target_length": [28]}},
    }
    runs = planned(config(grid={"target_length": [12]}, arms=arms), seeds=[0], max_steps=9)
    assert [(run.arm, run.recipe.get("target_length")) for run in runs] == [
        ("leash-target_length-12-lambda_lr-0.01", 12),
        ("leash-target_length-12-lambda_lr-0.04", 12),
        ("none", None),
        ("fixed", 20),
        ("own-target_length-28", 28),
    ]
    assert runs[1].recipe == {
        **FIELDS,
        "target_length": 12,
        "lambda_lr": 0.04,
        "max_steps": 9,
    }
    assert runs[1].grid_values == {"target_length": 12, "lambda_lr": 0.04}


def test_null_is_the_default_of_an_arms_own_settings(config):
    settings = dict.fromkeys(["label", "seeds", "train", "grid", "evals"])
    runs = planned(config(arms={"leash": {}, "alp": {"length_control": "alp", **settings}}))
    assert [(run.label, run.is_trained) for run in runs] == [("leash", True), ("alp", True)] * 3


def test_a_grid_takes_one_entry_of_a_mapping(config):
    alpha = "length_control_kwargs.alpha"
    kwargs = {"alpha": 0.5, "budget_range": None}
    base = {**FIELDS, "length_control": "l1_max", "length_control_kwargs": kwargs}
    arms = {
        "own": {"grid": {alpha: [1, 2]}},
        "fixed": {"length_control_kwargs": kwargs},
        "out": {"grid": {alpha: None}},
    }
    runs = planned(config(base=base, grid={alpha: [3]}, arms=arms), seeds=[0])
    assert [(run.arm, run.recipe["length_control_kwargs"]) for run in runs] == [
        ("own-length_control_kwargs.alpha-1", {**kwargs, "alpha": 1}),
        ("own-length_control_kwargs.alpha-2", {**kwargs, "alpha": 2}),
        ("fixed", kwargs),
        ("out", {"budget_range": None}),
    ]


CUT = {"train": False, "grid": {"max_new_tokens": [20, 30]}}


@pytest.fixture
def runs_by_arm(config):
    """Runs of trained and untrained arms, with a grid and an option of evaluation for all."""
    arms = {
        "concise": {"train": False, "prompt_ending": " Be concise."},
        "cut": CUT,
        "other": {"train": False, "model_name_or_path": "gym", "max_new_tokens": 25},
        **ARMS,
    }
    file = config(arms=arms, grid={"target_length": [12, 18]}, eval={"num_samples": 2})
    return {run.arm: run for run in planned(file, seeds=[5])}


@pytest.mark.parametrize(("length_of", "measured"), [("thinking", "thinking"), ("tool_calls", None)])
def test_every_arm_is_measured_by_the_cost_of_training_unless_it_needs_tools(length_of, measured, config):
    runs = planned(config(base={**FIELDS, "length_of": length_of}), seeds=[0])
    assert [run.eval_options.get("length_of") for run in runs] == [measured, measured]
    evaluation = next(command for command in runs[0].commands(1) if command[1] == "eval")
    assert ("--target_length=46" in evaluation) == (measured is not None)


def test_arms_of_several_costs_are_measured_by_a_common_one_and_by_their_targets_for_it(config):
    base = {**FIELDS, "length_of": "thinking"}
    arms = {"thinking": {}, "tokens": {"length_of": None}}
    runs = planned(config(base=base, arms=arms, eval={"length_of": "thinking"}), seeds=[0])
    assert [run.recipe.get("length_of") for run in runs] == ["thinking", None]
    assert [run.eval_options["length_of"] for run in runs] == ["thinking", "thinking"]
    assert ["--target_length=46" in [*run.commands(1)][1] for run in runs] == [True, False]


def test_a_common_target_of_the_evaluation_holds_for_every_arm(config, comparison, out):
    (run,) = planned(config(eval={"target_length": 20}), arms=["leash"], seeds=[0])
    assert run.eval_options["target_length"] == 20
    assert not [word for word in [*run.commands(1)][1] if word.startswith("--target_length")]
    assert comparison("--arms", "leash", "--seeds", "0", eval={"target_length": 20}) == 0
    assert line_with("target_length 20", out / "table.md")


def test_an_arm_without_training_has_a_grid_and_options_of_eval_of_its_own(runs_by_arm):
    untrained = [name for name, run in runs_by_arm.items() if not run.is_trained]
    assert untrained == ["concise", "cut-max_new_tokens-20", "cut-max_new_tokens-30", "other"]
    shared = runs_by_arm["leash-target_length-12"].eval_options
    assert runs_by_arm["concise"].eval_options == {**shared, "prompt_ending": " Be concise."}
    assert runs_by_arm["cut-max_new_tokens-30"].eval_options == {**shared, "max_new_tokens": 30}
    assert runs_by_arm["other"].recipe["model_name_or_path"] == "gym"


def test_an_arm_without_training_is_only_evaluated(runs_by_arm):
    run = runs_by_arm["cut-max_new_tokens-30"]
    (command,) = run.commands(num_devices=1)
    assert command[:2] == ["leash_trl", "eval"]
    assert command[command.index("--model_name_or_path") + 1] == "gym"
    assert "--seed=5" in command
    assert run.identifying_files()["recipe.yaml"] == {"train": False}  # so that the trained arm is another run


def test_an_arm_without_training_ignores_options_of_methods(config):
    options = {"length_control_kwargs": {"multiplier_per": "level"}, "min_accuracy": 0.5, "thinking_end": "[/T]"}
    runs = planned(config(base={**FIELDS, **options}, arms={**ARMS, "cut": CUT}), min_accuracy=0.25)
    assert {run.eval_options["thinking_end"] for run in runs} == {"[/T]"}


FORCED = {"decoding": "budget_forcing", "decoding_kwargs": {"max_thinking_tokens": 20}}


def test_the_models_of_an_arm_are_evaluated_again_by_other_options_without_a_second_training(config, tmp_path):
    run = planned(config(arms={"leash": {"evals": {"forced": FORCED}}}, eval={"num_samples": 2}), seeds=[5])[0]
    assert run.identifying_files()["eval-forced.yaml"] == {**run.eval_options, **FORCED}
    run.folder = tmp_path
    (tmp_path / "trainer_state.json").write_text('{"global_step": 2}')
    (tmp_path / "eval").mkdir()
    (tmp_path / "eval" / "results.json").write_text("{}")
    assert not run.is_done()
    *_, forced = run.commands(num_devices=1)
    assert {"eval", str(tmp_path / "eval-forced.yaml"), str(tmp_path / "eval-forced")} <= {*forced}
    assert not any("train" in command for command in run.commands(num_devices=1))


def test_options_that_a_further_evaluation_sets_are_those_of_its_command(config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arm = {
        "efforts": {"low": 16, "off": 8},
        "effort_template_kwargs": {"low": {"reasoning_effort": "low"}},
        "length_control": "none",
        "evals": {
            "brief": {"prompt_ending": " Be brief."},
            "plain": {"chat_template_kwargs": {"enable_thinking": False}},
        },
    }
    (run,) = planned(config(arms={"arm": arm}), seeds=[0])
    commands = {Path(command[command.index("--output_dir") + 1]).name: command for command in [*run.commands(1)][1:]}
    brief = commands["eval-low-brief"]
    assert not [word for word in brief if word.startswith("--prompt_ending")]
    assert '--chat_template_kwargs={"reasoning_effort": "low"}' in brief
    plain = commands["eval-low-plain"]
    assert '--chat_template_kwargs={"enable_thinking": false, "reasoning_effort": "low"}' in plain
    assert {"--prompt_ending=", "--target_length=16"} <= {*plain}
    assert not [word for word in commands["eval-off"] if word.startswith("--chat_template_kwargs")]


@pytest.fixture
def refusal(tmp_path, capsys, monkeypatch):
    """The only line that the command prints for a file, before anything is run."""
    monkeypatch.setattr(compare, "run_jobs", lambda *args: pytest.fail("a run was started"))

    def line(file, *words):
        assert main(["compare", "--config", file, "--output_dir", str(tmp_path / "out"), *words]) == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        return line

    return line


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"grid": {"target_length": "24"}}, "target_length: '24'"),  # a text has characters, which are no values
        ({"grid": {"seed": [7, 8]}}, "seed is [7, 8]"),
        (
            {
                "arms": {
                    "a": {"label": "X"},
                    "b": {"label": "X", "lambda_lr": 2},
                }
            },
            "X",
        ),
        (
            {
                "arms": {
                    "a": {"grid": {"target_length": [10]}},
                    "a-target_length-10": {"label": "x", "target_length": 20},  # would have the folder of the first
                }
            },
            "a-target_length-10",
        ),
        ({"arms": {"a": {"label": "A", "evals": {"forced": {}}}, "b": {"label": "A, forced"}}}, "A, forced"),
        ({"arms": {"a": {"label": "A", "evals": {"forced": {}}}, "a, forced": {"label": "B"}}}, "a, forced"),
        # the folder of its runs would hold the evaluation of the base
        ({"arms": {"base": {"label": "untouched"}}}, "model before training"),
        ({"arms": {"x": {"train": False}}}, "leash eval"),
        ({"eval": {"seed": 123}}, "seed is 123"),
        ({"base": {**FIELDS, "dataset_name": None, "datasets": [{"path": "json"}]}}, "benchmarks"),
        ({"base": {**FIELDS, "dataset_config": "hard"}}, "benchmarks"),
        ({"base": {**FIELDS, "reward_model_name_or_path": "a/b"}}, "reward_model_name_or_path"),
        ({"base": {**FIELDS, "dataset_name": "./missing.jsonl"}}, "./missing.jsonl"),
        ({"seeds": 3}, "seeds"),
    ],
)
def test_mistakes_of_a_file_are_one_line_and_nothing_is_run(changes, named, config, refusal):
    assert named in refusal(config(**changes))


@pytest.mark.parametrize(
    ("arm", "named"),
    [
        ({"lamda_lr": 1}, "lamda_lr"),
        ({"lambda_lr": -1.0}, "lambda_lr"),
        ({"model_name_or_path": "a/b"}, "model_name_or_path"),
        ({"dataset_name": "gym_stories"}, "benchmarks"),
        ({"label": "base"}, "model before training"),
        ({"seed": 6}, "seed is 6"),
        ({"train": False, "lambda_lr": 0.1}, "lambda_lr"),
        ({"train": False, "num_samples": 1}, "num_samples"),
        ({"train": False, "evals": {"forced": FORCED}}, "evals"),
        ({"evals": {"again": {"seed": 6}}}, "seed is 6"),
        ({"evals": {"again": {"output_dir": "there"}}}, "output_dir is 'there'"),
        ({"evals": {"again": {"revision": "main"}}}, "revision is 'main'"),
        ({"evals": {"again": None}}, "'again': None"),
        ({"evals": ["again"]}, "evals is ['again']"),
        ({"evals": {"../again": {}}}, "'../again'"),
        ({"evals": {"again": {"decoding_kwargs": {"wait": "Hm"}}}}, "'wait'"),
        ({"evals": {"fewer": {"num_samples": 1}}}, "1 in 'x, fewer'"),
        ({"length_of": "thinking"}, "length_of is 'completion' in 'leash', but 'thinking' in 'x'"),
        ({"train": False, "length_of": "thinking"}, "eval: {length_of: "),
    ],
)
def test_mistakes_of_an_arm_are_one_line_and_nothing_is_run(arm, named, config, refusal):
    assert named in refusal(config(arms={**ARMS, "x": arm}))


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--target_length 9", "target_length"),  # which the grid sets
        ("--arms lehs", "lehs"),
        ("--seed 9", "seed is 9"),
        ("--devices 0,1;2", "0,1;2"),
    ],
)
def test_mistakes_on_the_command_line_are_one_line_and_nothing_is_run(words, named, config, refusal):
    assert named in refusal(config(grid={"target_length": [12]}), *words.split())


OF_TRAINING = {
    "reward_funcs": ["think_format_reward", "math_reward"],
    "reward_weights": [0.1, 1.0],
    "temperature": 0.8,
    "top_p": 0.9,
    "top_k": 7,
    "prompt_suffix": " Be brief.",
    "system_prompt": "You add.",
    "chat_template": "{{ messages }}",
}


def test_problems_rewards_and_sampling_are_those_of_training(config):
    base = {**FIELDS, **OF_TRAINING, "generation_kwargs": {"max_new_tokens": 48}}
    run = planned(config(base=base))[0]
    expected = {
        "benchmarks": ["gym"],
        "split": "test",
        "max_new_tokens": 48,
        "num_samples": 4,
        **OF_TRAINING,
    }
    assert expected.items() <= run.eval_options.items()


def test_options_of_eval_replace_those_of_training(config):
    options = {
        "benchmarks": ["gym_stories_test"],
        "reward_funcs": ["math_reward"],
        "num_samples": 2,
        "max_new_tokens": 32,
    }
    run = planned(config(base={**FIELDS, **OF_TRAINING}, eval=options))[0]
    assert options.items() <= run.eval_options.items()
    assert not {"split", "reward_weights"} & run.eval_options.keys()


@pytest.mark.parametrize(
    ("base", "evaluation", "suffix"),
    [
        ({}, {}, BOXED_SUFFIX),
        # who is not trained is asked as in training too, whatever grades the evaluation
        ({"reward_funcs": ["think_format_reward"]}, {"reward_funcs": ["math_reward"]}, ""),
        ({"dataset_name": "tasks.jsonl"}, {"benchmarks": ["gym_test"]}, ""),
        ({}, {"prompt_suffix": ""}, ""),
    ],
    ids=str,
)
def test_all_models_of_a_comparison_are_asked_as_in_training(base, evaluation, suffix, config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("tasks.jsonl").write_text('{"prompt": "1 + 1 = ?", "reasoning_gym": "0 {}"}\n')
    file = config(base={**FIELDS, **base}, arms={**ARMS, "cut": CUT}, eval=evaluation)
    runs = planned_runs(CompareArguments(comparison=file), overrides={})
    assert {run.is_trained for run in runs} == {True, False}
    assert {run.eval_options["prompt_suffix"] for run in runs} == {suffix}


def test_a_model_has_the_prompts_of_the_comparison_unless_another_training_saved_it(config, tmp_path):
    model = shutil.copytree(gym.CHECKPOINT, tmp_path / "model")
    base = {**FIELDS, "system_prompt": "You add.", "thinking_end": "[/T]"}

    def evaluation(**options):
        rival = {"train": False, "model_name_or_path": str(model), **options}
        return planned(config(base=base, arms={**ARMS, "rival": rival}), arms=["rival", "leash"])[0].eval_options

    assert evaluation()["system_prompt"] == "You add."
    assert evaluation()["thinking_end"] == "[/T]"
    # leash eval takes them from the recipe
    (model / "leash_recipe.yaml").write_text("system_prompt: You sum.\n")
    fields = {"prompt_suffix", "system_prompt", "thinking_end", "chat_template_kwargs"}
    assert not fields & evaluation().keys()
    assert evaluation(system_prompt="Add.")["system_prompt"] == "Add."


@pytest.fixture
def second_run(config, tmp_path):
    """The second seed of an arm, of which nothing is there yet."""
    run = planned(config())[-1]
    run.folder = tmp_path / "run"
    return run


def test_a_run_on_several_devices_trains_in_as_many_processes(second_run):
    train, evaluate = second_run.commands(num_devices=2)
    assert train[:2] == ["torch.distributed.run", "--standalone"]
    assert {"--nproc_per_node=2", "train", str(second_run.folder)} <= {*train}
    assert {"eval", str(second_run.folder), str(second_run.folder / "eval"), "--seed=1"} <= {*evaluate}


def test_a_run_goes_on_with_what_is_left(second_run):
    assert second_run.identifying_files()["recipe.yaml"] == {**FIELDS, "lambda_lr": 0.02, "seed": 1}
    checkpoint = second_run.folder / "checkpoint-1"
    checkpoint.mkdir(parents=True)
    (checkpoint / "trainer_state.json").write_text("{}")
    train, _ = second_run.commands(num_devices=1)
    assert train[:2] == ["leash_trl", "train"]
    assert train[-2:] == ["--resume_from_checkpoint", "true"]
    (second_run.folder / "trainer_state.json").write_text("{}")
    assert [command[1] for command in second_run.commands(num_devices=1)] == ["eval"]


L1 = {"length_control": "l1_max", "length_control_kwargs": {"budget_range": None}}


@pytest.mark.parametrize(
    ("arm", "state", "endings"),
    [
        (L1, {}, [r"\D+46\D*"]),
        ({"efforts": {"low": 17, "high": 41}, **L1}, {}, [r" Effort: low\.\D+17\D*", r" Effort: high\.\D+41\D*"]),
        (
            {"length_control": "thinkprune", "length_control_kwargs": {"stages": {0: 40, 5: 20}}},
            {"steps_done": 9},
            [r" The output should be within 20 tokens\."],
        ),
    ],
    ids=["l1", "efforts of l1", "the last stage"],
)
def test_the_request_at_the_end_of_training_ends_the_prompts_of_the_evaluation(
    arm, state, endings, config, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (run,) = planned(config(arms={"arm": arm}), seeds=[0])
    run.folder.mkdir(parents=True)
    saved = {"stateful_callbacks": {"LengthControl": {"state": state}}}
    (run.folder / "trainer_state.json").write_text(json.dumps(saved))
    texts = [command[-1].removeprefix("--prompt_ending=") for command in run.commands(1)]
    for text, ending in zip(texts, endings, strict=True):
        assert re.fullmatch(ending, text)


ROW = '{"prompt": "1 + 1 = ?", "solution": "2"}\n'
REWARD = "def claimed(completions, **kwargs):\n    return [2.0 for _ in completions]\n"
OWN_FILES = {
    "rows.jsonl": ROW,
    "claimed_method.py": "from leash_trl import LengthControl\nclass Mine(LengthControl):\n    name = '2'\n",
    "held_out.jsonl": ROW,
    "claimed.py": REWARD,
    "beside.py": REWARD,
    "counted.py": REWARD,
}


@pytest.fixture(params=["claimed_method.Mine", "claimed_method.py:Mine"])
def claimed_runs(request, config, tmp_path, monkeypatch):
    """Plans runs whose recipes have changes; the folders hold those of the recipe without changes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for name, content in OWN_FILES.items():
        monkeypatch.delitem(sys.modules, name.removesuffix(".py"), raising=False)
        Path(name).write_text(content)
    shutil.copytree(gym.CHECKPOINT, "model")

    def runs(**changes):
        base = {
            **FIELDS,
            "model_name_or_path": "model",
            "dataset_name": "rows.jsonl",
            "length_control": request.param,
            "reward_funcs": ["claimed.py:claimed"],
            "correctness_func": "beside.py:claimed",
            "length_of": "counted.py:claimed",
            **changes,
        }
        file = config(base=base, arms={"a": {"seeds": 1}}, eval={"benchmarks": ["held_out.jsonl"]})
        return planned_runs(CompareArguments(comparison=file), overrides={})

    for run in runs():
        run.folder.mkdir(parents=True)
        for name, content in run.identifying_files().items():
            (run.folder / name).write_text(yaml.safe_dump(content))
    return runs


def refusals(runs):
    """What is said of each run, and nothing if its folder holds it."""
    messages = []
    for run in runs:
        try:
            run.check_holds_this_run(run.identifying_files())
            messages.append("")
        except TrainingError as error:
            messages.append(str(error))
    return messages


def test_a_run_of_other_settings_is_refused_with_the_first_field_that_differs(claimed_runs):
    assert refusals(claimed_runs()) == ["", ""]
    base, run = refusals(claimed_runs(max_steps=3))
    assert base == ""
    assert "max_steps is 3, but was 2" in run
    base, run = refusals(claimed_runs(max_completion_length=48))
    assert "max_new_tokens is 48, but was 64" in base
    assert "max_completion_length is 48" in run


def test_of_an_evaluation_with_other_options_the_model_may_stay(config, tmp_path):
    def run(**options):
        planned_run = planned(config(arms={"a": {"evals": {"forced": {**FORCED, **options}}}}), seeds=[5])[0]
        planned_run.folder = tmp_path
        return planned_run

    (tmp_path / "eval-forced.yaml").write_text(yaml.safe_dump(run().identifying_files()["eval-forced.yaml"]))
    (line,) = refusals([run(max_new_tokens=30)])
    assert "max_new_tokens is 30, but was 64" in line
    assert "eval-forced.yaml and eval-forced" in line


@pytest.mark.parametrize(
    ("name", "changed", "concerns_base"),
    [
        ("rows.jsonl", "data of rows.jsonl", False),  # the base is not trained
        ("claimed_method.py", "code of claimed_method", False),
        ("held_out.jsonl", "data of held_out.jsonl", True),
        ("claimed.py", "code of claimed", True),
        ("beside.py", "code of beside", True),
        ("counted.py", "code of counted", True),  # by which the base is measured too
        ("model/chat_template.jinja", "the model model", True),
    ],
)
def test_a_run_of_other_data_or_code_is_refused_by_its_name(name, changed, concerns_base, claimed_runs):
    content = Path(name).read_text()
    Path(name).write_text(content.replace("2", "3") + "\n")
    base, run = refusals(claimed_runs())
    assert changed in run
    assert (changed in base) == concerns_base


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
run |= {"length_of": "completion", "target_length": 46}
run["benchmarks"] = {"gym": {"num_problems": 2}}
length = 80 if name == "base" else 40
lines = []
for i in range(2):
    common = {"finish_reason": "length" if name.startswith(("base", "brief")) else "stop", "num_thinking_tokens": 0}
    common |= {"answer": None, "grader_failure": None}
    completions = [{"is_correct": i + k < 2, **common, "num_tokens": length + 10 * k} for k in range(2)]
    lines.append(json.dumps({"index": i, "id": str(i), "solution": "", "completions": completions}) + "\\n")
for part in sys.argv[4:]:
    (folder / part / "samples").mkdir(parents=True, exist_ok=True)
    (folder / part / "run.json").write_text(json.dumps(run))
    (folder / part / "samples" / "gym.jsonl").write_text("".join(lines))
    (folder / part / "results.json").write_text("{}")
"""


@pytest.fixture
def comparison(config, tmp_path, monkeypatch):
    """A comparison whose runs only write a result; those in `failing` fail before."""
    (tmp_path / "fake_run.py").write_text(CHILD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)

    def run(*more, failing=(), devices=1, **changes):
        def commands(self, num_devices):
            assert num_devices == devices
            ways = ["fails", "works"] if self.name in failing else ["works"]
            return [["fake_run", str(self.folder), self.name, how, *self.requests] for how in ways]

        monkeypatch.setattr(ComparedRun, "commands", commands)
        return main(["compare", "--config", config(**changes), "--output_dir", str(tmp_path / "out"), *more])

    return run


@pytest.fixture
def out(tmp_path):
    """The folder of the comparison."""
    return tmp_path / "out"


def rows_of(file):
    return list(csv.DictReader(file.read_text().splitlines()))


def line_with(text, file):
    """The only line of a file that has a text."""
    (line,) = [line for line in file.read_text().splitlines() if text in line]
    return line


def test_tables_and_figure_are_of_all_runs(comparison, out, capsys):
    assert comparison("--devices", "0,1", devices=2) == 0
    assert (out / "table.md").read_text() in capsys.readouterr().out
    assert [row["name"] for row in rows_of(out / "table.csv")] == ["base", "leash", "LEASH-C"]
    base, *seeds = rows_of(out / "seeds.csv")
    assert (base["name"], base["seeds"]) == ("base", "")
    assert [(row["name"], row["seeds"]) for row in seeds] == [("leash", "0"), ("leash", "1"), ("LEASH-C", "0")]
    for row in seeds:
        assert float(row["score"]) == 0.75  # three of four are right
        assert float(row["mean_tokens"]) == 45  # of 40, 50, 40 and 50
        assert float(row["token_change"]) == 45 / 85 - 1
        assert float(row["steps_to_target"]) == 2  # of batches with 90 and 45 tokens, the second is below 46
        assert row["generated_tokens"] == "1000.0"
    # of seed 0, the only one that both have
    assert [row["value"] for row in rows_of(out / "differences.csv")] == ["0.0", "0.0"]
    assert (out / "pareto.png").stat().st_size > 10_000


def test_runs_start_in_the_order_of_the_plan_and_finished_ones_are_not_run_again(comparison, out):
    for _ in range(2):
        assert comparison("--jobs", "1") == 0
        started = (out / "started.txt").read_text().split()
        assert started == ["base", "leash/seed-0", "frozen/seed-0", "leash/seed-1"]


def test_a_failed_run_stops_no_other_and_is_named_with_its_cause(comparison, out, capsys):
    assert comparison("--arms", "frozen", failing=["frozen/seed-0"]) == 1
    assert not (out / "table.md").exists()
    assert comparison("--jobs", "1", failing=["leash/seed-0"]) == 1
    printed = capsys.readouterr()
    (line,) = [line for line in printed.err.splitlines() if "leash/seed-0 failed" in line]
    assert "ValueError: no luck today" in line
    assert str(out / "leash" / "seed-0" / "log.txt") in line
    assert "Missing: leash/seed-0." in printed.out


def test_what_runs_in_progress_do_is_shown_by_their_logs(comparison, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(compare, "SECONDS_BETWEEN_READINGS", 0.05)
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0)
    bar = "| 1/2 [00:07<00:07,  7.00s/update, length=90, target=46]"
    child = tmp_path / "fake_run.py"
    child.write_text(f"import time\nprint('{bar}', flush=True)\ntime.sleep(0.5)\n{child.read_text()}")
    assert comparison("--arms", "leash", "--jobs", "1") == 0
    printed = capsys.readouterr().err
    assert "leash/seed-0: 1/2 [00:07<00:07,  7.00s/update, length=90, target=46]" in printed
    assert "1 of 4 updates" in printed
    assert printed.index("seed-0: 1/2") < printed.index("seed-0 done") < printed.index("seed-1: 1/2")
    last_line = printed.splitlines()[-1]
    assert "4 of 4 updates" in last_line
    assert "3 of 3 runs" in last_line


def test_one_arm_stands_below_its_base_with_its_curves(comparison, out):
    assert comparison("--arms", "frozen") == 0
    assert "| -47.1% | 0.500 | 0.250 (0.500) |" in line_with("| LEASH-C |", out / "table.md")
    # from the base, of which as many answers are right, in 85 tokens
    assert "| -40.0 [-40.0, -40.0] |" in line_with("LEASH-C at 46", out / "table.md")
    assert (out / "dynamics.png").stat().st_size > 10_000


def test_what_was_truncated_is_named_but_no_arm_that_is_cut_on_purpose(comparison, out):
    assert (
        comparison(
            "--seeds",
            "1",
            arms={
                "leash": {},
                "brief": {"train": False, "max_new_tokens": 8},
            },
        )
        == 0
    )
    line = line_with("Truncated at", out / "table.md")
    assert [name for name in ("base", "leash", "brief") if name in line] == ["base"]


def test_every_effort_is_a_row_and_lengths_count_from_the_last_change_of_the_target(comparison, out):
    arms = {
        "fixed": {},
        "staged": {
            "target_schedule": "staged",
            "target_milestones": {0: 90, 1: 46},
            "max_completion_length": 96,
        },
        "leash": {
            "efforts": {"low": 40, "high": 50},
            "length_control_kwargs": {"multiplier_per": "effort"},
        },
        "one lambda": {"efforts": {"low": 40}},
    }
    assert comparison("--seeds", "5", arms=arms, eval={"max_new_tokens": 64}) == 0
    columns = ("name", "effort", "target_length", "steps_to_target")
    assert [[row[name] for name in columns] for row in rows_of(out / "seeds.csv")] == [
        ["base", "", "", ""],
        ["fixed", "", "46.0", "2.0"],
        ["staged", "", "46.0", "1.0"],
        ["leash", "low", "40.0", "2.0"],
        ["leash", "high", "50.0", ""],
        ["one lambda", "low", "40.0", ""],
    ]


def test_an_effort_has_the_curves_of_its_target(config):
    arm = {
        "efforts": {"low": 12345.67},
        "length_control_kwargs": {"multiplier_per": "target_length"},
        "max_completion_length": 20_000,
    }
    (run,) = planned(config(arms={"arm": arm}), seeds=[0])
    # as they are logged, with the target of each budget and its curves
    values = {"leash/lambda": [0.5], "leash/lambda/12345.67": [0.25], "leash/target_length/12345.67": [1]}
    (request,) = run.requests.values()
    curves = curves_of_effort(run, pd.DataFrame(values), request)
    assert curves["leash/lambda"].tolist() == [0.25]


def test_a_further_evaluation_is_a_row_of_its_own_and_may_be_cut_on_purpose(comparison, out):
    assert comparison("--seeds", "5", arms={"brief": {"evals": {"cut": {"max_new_tokens": 8}}}}) == 0
    rows = rows_of(out / "seeds.csv")
    assert [(row["name"], row["lambda_end"]) for row in rows[1:]] == [("brief", "0.25"), ("brief, cut", "")]


def test_a_second_comparison_in_the_folder_is_refused(comparison, out):
    out.mkdir()
    with FileLock(out / LOCK_FILE):
        assert comparison() == 2
    assert not (out / "started.txt").exists()
