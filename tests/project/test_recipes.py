"""Every recipe parses into a valid configuration, and the paper's six say what its table says."""

import os
import runpy
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml
from conftest import ROOT
from trl import DatasetMixtureConfig, ModelConfig, ScriptArguments, SFTConfig, TrlParser

from leash_trl.cli.arguments import parse
from leash_trl.cli.commands.compare import CompareArguments
from leash_trl.cli.commands.eval import EvalArguments
from leash_trl.cli.commands.filter import FilterArguments
from leash_trl.cli.comparison_arms import planned_runs
from leash_trl.cli.training_arguments import arguments_of, fields_of_command_line
from leash_trl.data import BOXED_SUFFIX
from leash_trl.data.sources import SOURCES
from leash_trl.engines.engine import SamplingSettings
from leash_trl.length_control.methods import METHODS


RECIPES = ROOT / "recipes"
COMPARISON = RECIPES / "gym" / "compare.yaml"
SAMPLING = sorted({*RECIPES.rglob("eval*.yaml"), *RECIPES.rglob("filter*.yaml")})
TUNING = RECIPES / "gym" / "tune.yaml"
ALL_METHODS = RECIPES / "gym" / "all_methods.yaml"
OTHER_WORK = [RECIPES / "gym" / f"{name}.yaml" for name in ("budgets", "controllers", "settled")]
COMPARISONS = [COMPARISON, TUNING, ALL_METHODS, *OTHER_WORK]
CHAIN_SUM = RECIPES / "reasoning_gym" / "chain_sum.yaml"
WARM_STARTS = {
    RECIPES / "smollm2_135m" / "warm_start.yaml": RECIPES / "smollm2_135m.yaml",
    RECIPES / "reasoning_gym" / "warm_start.yaml": CHAIN_SUM,
}
OTHERS = {*COMPARISONS, CHAIN_SUM, *SAMPLING, *WARM_STARTS, RECIPES / "own_task_compare.yaml"}
# variant -> target, lambda_init, lambda_lr; the paper's table "Penalty settings"
PAPER = {
    "leash_c_1.5b_4k": (4096, 0.1, 0.0),
    "leash_1.5b_4k": (4096, 0.1, 0.005),
    "leash_c_4b_12k": (12288, 0.2, 0.0),
    "leash_4b_12k": (12288, 0.2, 0.005),
    "leash_c_4b_8k": (8192, 0.2, 0.0),
    "leash_4b_8k": (8192, 0.2, 0.05),
}
# a missing one of the paper's fails
TRAINING = {*RECIPES.rglob("*.yaml"), *(RECIPES / f"{name}.yaml" for name in PAPER)} - OTHERS


@pytest.fixture(autouse=True)
def in_tmp(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("path", sorted(TRAINING - {*RECIPES.glob("accelerate/*")}), ids=lambda path: path.stem)
def test_recipe_parses_and_the_papers_say_what_its_table_says(path):
    # what needs a GPU is checked by the parser on a machine without one
    _, args, _, _ = arguments_of(
        fields_of_command_line(["--config", str(path), "--use_cpu", "true", "--bf16", "false"])
    )
    assert (args.report_to, args.loss_type) == (["tensorboard"], "dapo")
    if path.stem in PAPER:
        assert (args.target_length, args.lambda_init, args.lambda_lr) == PAPER[path.stem]
        # 32 GPUs: 512 completions (64 prompts x 8) a generation batch, two updates of 256
        rows = 32 * args.per_device_train_batch_size
        assert rows * args.steps_per_generation == 64 * 8
        assert rows * args.gradient_accumulation_steps == 256
        assert args.num_generations == 8


@pytest.mark.parametrize(("warm_start", "recipe"), WARM_STARTS.items(), ids=lambda path: path.parent.name)
def test_a_warm_start_parses_as_trl_sft_and_is_what_its_recipe_trains(warm_start, recipe):
    parser = TrlParser((ScriptArguments, SFTConfig, ModelConfig, DatasetMixtureConfig))
    training = parser.parse_args_and_config(["--config", str(warm_start), "--bf16", "false"])[1]
    fields = yaml.safe_load(recipe.read_text())
    fields = fields.get("base", fields)
    assert fields["model_name_or_path"] == str(Path(training.output_dir).parent / "warm_start")


def arms_of(path):
    _, *runs = planned_runs(CompareArguments(comparison=str(path), seeds=[0]), {})  # the first is the base
    return runs


@pytest.mark.parametrize("path", COMPARISONS, ids=lambda path: path.stem)
def test_every_arm_of_a_comparison_parses(path):
    Path("runs").mkdir()
    Path("runs/half.jsonl").write_text('{"prompt": "1 + 1 = ?", "solution": "2", "target_length": 9.5, "level": 1}')
    assert len(arms_of(path)) >= 5


def test_both_arms_on_a_task_of_reasoning_gym_parse_and_ask_as_the_warm_start_does():
    arms = arms_of(CHAIN_SUM)
    assert [arm.recipe["length_control"] for arm in arms] == ["none", "leash_predictive"]
    assert {arm.recipe["prompt_suffix"] for arm in arms} == {arms[0].eval_options["prompt_suffix"]} == {BOXED_SUFFIX}


def test_every_method_is_on_the_same_work():
    counts = Counter(arm.recipe["length_control"] for arm in arms_of(ALL_METHODS))
    assert counts == {**dict.fromkeys(METHODS, 3), "none": 1, "smart_thinker": 1}  # these two have nothing to set


def test_methods_are_compared_at_three_points_each_and_tuned_with_the_same_number_of_trials():
    compared = arms_of(COMPARISON)
    points = Counter(arm.label for arm in compared)
    trials = Counter(arm.label for arm in arms_of(TUNING))
    assert points.pop("no control") == 1
    assert {*points.values()} == {3}
    assert {*trials.values()} == {4}
    shared = compared[0].recipe.keys() | {"target_length"}
    tuned = {arm.label for arm in compared if arm.recipe.keys() - shared}
    assert {*trials} == tuned == {*points} - {"LEASH-Predictive"}


@pytest.mark.parametrize("path", SAMPLING, ids=lambda path: path.stem)
def test_recipes_of_evaluation_and_filter_parse(path):
    kind = FilterArguments if path.stem.startswith("filter") else EvalArguments
    words = "--model_name_or_path gym --output_dir runs/x --engine transformers"
    arguments = parse(kind, ["--config", str(path), *words.split()], "leash", takes_recipe=True)
    plan = arguments.sampling_plan()
    if path.parent == RECIPES:
        assert plan.sampling == SamplingSettings(0.6, 0.95, 0, 32768)
        assert plan.num_samples == {"eval_math": 32, "eval_general": 1, "filter_dapo": 4}[path.stem]
    names = [arguments.dataset_name] if kind is FilterArguments else arguments.benchmarks
    assert {*names} <= SOURCES.keys()


def test_keywords_are_whole_words_with_any_hyphen_and_space():
    script = runpy.run_path(str(RECIPES / "smollm2_135m" / "keywords.py"))
    counts = script["keyword_counts"]("So also: re\u2011evaluate, check\nagain, misstep, Step 2, first, await")
    assert counts == {"summary": 1, "rethink": 2, "plan": 2}


@pytest.mark.parametrize("script", ["gym/all_methods.py", "gym/settled.py", "smollm2_135m/picture.py"])
def test_a_picture_can_be_drawn_again_from_the_committed_numbers(script, tmp_path):
    folder = shutil.copytree((RECIPES / script).parent, tmp_path / "recipes")
    for picture in folder.glob("*.svg"):
        picture.unlink()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, str(folder / Path(script).name)], check=True, env=environment)
    assert [*folder.glob("*.svg")]
