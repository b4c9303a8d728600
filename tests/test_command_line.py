"""The command line as a newcomer meets it: what is missing, suggestions, one name for one thing, overrides."""

import os
from pathlib import Path

import pytest
import yaml

from leash_trl.cli.main import main


ON_CPU = ["--use_cpu", "true", "--bf16", "false"]


def error_of(argv: list[str], capsys) -> str:
    assert main(argv) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    return lines[0]


@pytest.mark.parametrize(
    ("options", "missing", "present"),
    [
        ([], ["--config", "--model_name_or_path", "--dataset_name"], []),
        (["--model_name_or_path", "gym"], ["--dataset_name"], ["--model_name_or_path"]),
        (["--dataset_name", "gym", "--target_length", "40"], ["--model_name_or_path"], ["--dataset_name"]),
    ],
)
def test_train_names_the_model_and_data_that_are_missing_before_anything_else(options, missing, present, capsys):
    line = error_of(["train", *options], capsys)
    assert all(name in line for name in missing)
    assert not any(name in line for name in [*present, "bf16", "use_cpu"])


@pytest.mark.parametrize(
    ("argv", "meant"),
    [
        (["trian"], "train"),
        (["evaluate"], "eval"),
    ],
)
def test_a_misspelt_command_gets_a_suggestion(argv, meant, capsys):
    assert f"did you mean {meant}?" in error_of(argv, capsys)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["eval", "--model", "gym", "--benchmarks", "gym_test", "--output", "x", "--limt", "5"], "mean --limit?"),
        (["eval", "--benchmarks", "gym_test", "--output_dir", "x", "--model_nam_or_path=gym"], "mean --model_name_or"),
        (["plot", "x", "--figure", "paretto"], "'pareto'"),
        (["plot", "x", "--output_dir", "y"], "mean --output?"),
        (["bench", "step", "--zzz"], "leash bench step --help"),
        (["bench", "step", "--engines", "vllm"], "unknown option --engines, "),
        (
        ),
        (["push"], "run"),
    ],
)
def test_every_command_says_in_one_line_what_it_cannot_read(argv, said, capsys):
    assert said in error_of(argv, capsys)


def test_an_unknown_command_without_a_likeness_says_where_the_list_is(capsys):
    line = error_of(["xyzzy"], capsys)
    assert "leash --help" in line
    assert "did you mean" not in line


def test_help_prints_the_defaults_of_the_method_and_no_none(capsys):
    from leash_trl.length_control.leash import Leash

    with pytest.raises(SystemExit):
        main(["train", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    for name in ("lambda_init", "lambda_lr", "lambda_min", "lambda_max"):
        entry = text.partition(f"--{name} ")[2].partition(" --")[0]
        assert f"{getattr(Leash(), name):g} for leash" in entry
    assert "None)" not in text


# one name for one thing


@pytest.fixture
def in_tmp(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_train_takes_the_short_names_on_the_command_line_and_in_recipes(in_tmp):
    from leash_trl.cli.training_arguments import given_fields, parse

    long = ["--model_name_or_path", "gym", "--dataset_name", "gym", "--output_dir", "run"]
    short = ["--model", "gym", "--dataset=gym", "--output", "run"]
    Path("short.yaml").write_text("model: gym\ndataset: gym\noutput: run\n")
    for argv in (long, short, ["--config", "short.yaml"]):
        argv = [*argv, *ON_CPU, "--target_length", "40"]
        script_args, training_args, model_args, _ = parse(argv)
        assert (model_args.model_name_or_path, script_args.dataset_name) == ("gym", "gym")
        assert training_args.output_dir == "run"
        assert given_fields(argv) == given_fields([*long, *ON_CPU, "--target_length", "40"])
    # the command line comes before the recipe under either name
    _, _, model_args, _ = parse(["--config", "short.yaml", "--model", "other", *ON_CPU, "--target_length", "40"])
    assert model_args.model_name_or_path == "other"


@pytest.mark.parametrize(
    "name", ["rollout_func", "lora_target_modules", "lambda_init", "target_length", "length_control_kwargs"]
)
def test_null_takes_out_what_the_recipe_sets(name):
    from leash_trl.cli.training_arguments import given_fields

    assert given_fields(["--config", "smollm2_135m.yaml", f"--{name}", "null"])[name] is None


@pytest.mark.parametrize("command", ["eval", "filter"])
def test_sampling_commands_take_both_names_on_the_command_line_and_in_recipes(command, in_tmp):
    import importlib

    from leash_trl.cli.recipe import parse_with_recipe

    module = importlib.import_module(f"leash_trl.cli.{command}")
    what = {"eval": ["--benchmarks", "gym_test"], "filter": ["--dataset", "gym"]}[command]
    Path("short.yaml").write_text("model: gym\noutput: run\n")
    Path("long.yaml").write_text("model_name_or_path: gym\noutput_dir: run\n")
    parsed = [
        parse_with_recipe(module.build_parser(), [*argv, *what])
        for argv in (
            ["--model", "gym", "--output", "run"],
            ["--model_name_or_path", "gym", "--output_dir", "run"],
            ["--config", "short.yaml"],
            ["--config", "long.yaml"],
            ["--config", "long.yaml", "--model", "gym", "--output", "run"],
        )
    ]
    for arguments in parsed:
        assert (arguments.model_name_or_path, arguments.output_dir) == ("gym", "run")
        assert command == "eval" or arguments.dataset_name == "gym"
    # another name on the command line overrides the recipe, it does not contradict it
    assert (
        parse_with_recipe(module.build_parser(), ["--config", "long.yaml", "--model", "x", *what]).model_name_or_path
        == "x"
    )


@pytest.mark.parametrize(
    "argv",
    [
        ["train", "--config", "both.yaml"],
        ["eval", "--config", "both.yaml", "--benchmarks", "gym_test", "--output", "x"],
        ["plan", "--config", "both.yaml", "--num_gpus", "1", "--gpu_memory", "80"],
    ],
)
def test_a_recipe_with_both_names_and_different_values_is_an_error_in_one_line(argv, in_tmp, capsys):
    Path("both.yaml").write_text("model: gym\nmodel_name_or_path: other\n")
    line = error_of(argv, capsys)
    assert all(word in line for word in ("model_name_or_path", "gym", "other"))


def test_a_recipe_sets_the_environment_and_says_what_is_no_environment(in_tmp, monkeypatch, capsys):
    from leash_trl.cli.training_arguments import parse

    monkeypatch.setenv("MY_VARIABLE", "before")
    Path("env.yaml").write_text("model: gym\ndataset: gym\nenv: {MY_VARIABLE: 1}\n")
    parse(["--config=env.yaml", *ON_CPU, "--target_length", "40"])
    assert os.environ["MY_VARIABLE"] == "1"
    Path("env.yaml").write_text("model: gym\ndataset: gym\nenv: [MY_VARIABLE]\n")
    assert "env is ['MY_VARIABLE']" in error_of(["train", "--config=env.yaml", *ON_CPU], capsys)


def test_every_command_with_a_folder_for_output_calls_it_output_dir(in_tmp, capsys):
    for command in (
        ["eval"],
        ["filter"],
        ["behavior"],
        ["report"],
        ["merge"],
        ["bench", "step"],
        ["demo"],
        ["gym", "build"],
    ):
        with pytest.raises(SystemExit):
            main([*command, "--help"])
        assert "--output_dir" in capsys.readouterr().out, command
    Path("nothing").mkdir()
    for name in ("--output", "--output_dir"):
        assert "nothing" in error_of(["report", "nothing", name, "page"], capsys)


# comparisons with other settings

COMPARISON = """
base:
  {model: gym, dataset: gym, target_length: 46, learning_rate: 3.0e-4, max_completion_length: 64, max_steps: 2,
   use_cpu: true, bf16: false, per_device_train_batch_size: 8}
arms:
  none: {length_control: none}
  leash: {lambda_lr: 0.02}
"""


def test_none_is_a_value_on_the_command_line_and_in_recipes(tmp_path):
    from leash_trl.cli.training_arguments import parse

    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({"max_completion_length": "None", "lambda_lr": None}))
    argv = ["--config", str(recipe), *ON_CPU, "--target_length", "40", "--save_total_limit", "none"]
    training_args = parse(argv)[1]
    assert (training_args.max_completion_length, training_args.save_total_limit) == (None, None)
