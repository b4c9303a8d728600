"""Every recipe parses into a valid configuration, and the paper's six say what its table says."""

from collections import Counter
from pathlib import Path

import pytest
import yaml


RECIPES = Path(__file__).parent.parent.parent / "recipes"
COMPARISON = RECIPES / "gym" / "compare.yaml"
SAMPLING = sorted({*RECIPES.rglob("eval*.yaml"), *RECIPES.rglob("filter*.yaml")})
TUNING = RECIPES / "gym" / "tune.yaml"
COMPARISONS = [COMPARISON, TUNING, *(RECIPES / "gym" / f"{name}.yaml" for name in ("budgets", "controllers"))]
WARM_START = RECIPES / "smollm2_135m" / "warm_start.yaml"
OTHERS = {
    *COMPARISONS,
    *SAMPLING,
    WARM_START,
    RECIPES / "own_task_compare.yaml",
    *(RECIPES / "accelerate").glob("*.yaml"),
}
FILES = sorted({*RECIPES.rglob("*.yaml")} - OTHERS)

# variant -> target, lambda_init, lambda_lr; the paper's table "Penalty settings"
PAPER = {
    "leash_c_1.5b_4k": (4096, 0.1, 0.0),
    "leash_1.5b_4k": (4096, 0.1, 0.005),
    "leash_c_4b_12k": (12288, 0.2, 0.0),
    "leash_4b_12k": (12288, 0.2, 0.005),
    "leash_c_4b_8k": (8192, 0.2, 0.0),
    "leash_4b_8k": (8192, 0.2, 0.05),
}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_recipe_parses(path, monkeypatch, tmp_path):
    from trained_arguments import parse

    monkeypatch.chdir(tmp_path)
    # what needs a GPU is checked by the parser on a machine without one
    _, training_args, _, _ = parse(["--config", str(path), "--use_cpu", "true", "--bf16", "false"])
    assert training_args.report_to == ["tensorboard"]
    assert training_args.loss_type == "dapo"


def test_the_warm_start_parses_as_trl_sft(monkeypatch, tmp_path):
    from trl import DatasetMixtureConfig, ModelConfig, ScriptArguments, SFTConfig, TrlParser

    monkeypatch.chdir(tmp_path)
    parser = TrlParser((ScriptArguments, SFTConfig, ModelConfig, DatasetMixtureConfig))
    _, training, model, data = parser.parse_args_and_config(["--config", str(WARM_START), "--bf16", "false"])
    recipe = yaml.safe_load((RECIPES / "smollm2_135m.yaml").read_text())
    assert recipe["model_name_or_path"] == str(Path(training.output_dir).parent / "warm_start")
    assert model.model_name_or_path == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert len(data.datasets) == 1


def arms_of(path):
    from leash_trl.cli.compare import CompareArguments, planned_runs

    _, *runs = planned_runs(CompareArguments(comparison=str(path), seeds=[0]), {})  # the first is the base
    return runs


@pytest.mark.parametrize("path", COMPARISONS, ids=lambda path: path.stem)
def test_every_arm_of_a_comparison_parses(path, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()
    Path("runs/half.jsonl").write_text('{"prompt": "1 + 1 = ?", "solution": "2", "target_length": 9.5, "level": 1}')
    assert len(arms_of(path)) >= 5


def test_every_method_of_the_comparison_parses_at_three_points():
    from leash_trl.length_control.methods import METHODS

    arms = arms_of(COMPARISON)
    assert {arm.recipe["length_control"] for arm in arms} <= METHODS.keys()
    points = Counter(arm.label for arm in arms)
    assert points.pop("no control") == 1
    assert {*points.values()} == {3}
    assert len(points) >= 7


def test_tuning_gives_every_compared_method_the_same_number_of_trials():

    trials = Counter(arm.label for arm in arms_of(TUNING))
    assert {*trials.values()} == {4}
    compared = arms_of(COMPARISON)
    shared = compared[0].recipe.keys() | {"target_length"}
    with_knobs = {arm.label for arm in compared if arm.recipe.keys() - shared}
    assert {*trials} == with_knobs
    assert {arm.label for arm in compared} - with_knobs == {"no control", "LEASH-Predictive"}


@pytest.mark.parametrize("path", SAMPLING, ids=lambda path: path.stem)
def test_recipes_of_evaluation_and_filter_parse(path):
    from leash_trl.cli.arguments import parse
    from leash_trl.cli.eval import EvalArguments
    from leash_trl.cli.filter import FilterArguments
    from leash_trl.data.sources import SOURCES
    from leash_trl.engines.engine import SamplingSettings

    kind = FilterArguments if path.stem.startswith("filter") else EvalArguments
    argv = ["--config", str(path), "--model_name_or_path", "gym", "--output_dir", "runs/x", "--engine", "transformers"]
    arguments = parse(kind, argv, "leash", takes_recipe=True)
    plan = arguments.plan()
    if path.parent == RECIPES:
        assert plan.sampling == SamplingSettings(0.6, 0.95, 0, 32768)
        assert plan.num_samples == {"eval_math": 32, "eval_general": 1, "filter_dapo": 4}[path.stem]
    names = [arguments.dataset_name] if kind is FilterArguments else arguments.benchmarks
    assert {*names} <= SOURCES.keys()


@pytest.mark.parametrize("name", PAPER)
def test_paper_variants(name):
    recipe = yaml.safe_load((RECIPES / f"{name}.yaml").read_text())
    assert (recipe["target_length"], recipe["lambda_init"], recipe["lambda_lr"]) == PAPER[name]
    # 32 GPUs: 512 completions (64 prompts x 8) a generation batch, two updates of 256
    assert 32 * recipe["per_device_train_batch_size"] * recipe["steps_per_generation"] == 512
    assert 32 * recipe["per_device_train_batch_size"] * recipe["gradient_accumulation_steps"] == 256
