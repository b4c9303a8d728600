"""Options from recipe and command line: who wins, null, lists, mappings, and recipes with mistakes."""

import os
from dataclasses import dataclass, field

import pytest

from leash_trl.cli.arguments import parse
from leash_trl.cli.errors import UserError
from leash_trl.cli.training_arguments import fields_of_command_line, training_parser


@dataclass
class Options:
    output_dir: str = field(metadata={"help": "folder"})
    benchmarks: list[str] = field(metadata={"help": "several"})
    limit: int | None = field(default=3, metadata={"help": "number"})
    num_samples: int = field(default=4, metadata={"help": "number"})
    temperature: float = field(default=0.6, metadata={"help": "number"})
    engine_kwargs: dict = field(default_factory=dict, metadata={"help": "mapping"})


@pytest.fixture
def options(tmp_path):
    """What a command reads from a recipe's text and a command line."""

    def read(recipe, *argv):
        (tmp_path / "recipe.yaml").write_text(f"output_dir: run\nbenchmarks: a\n{recipe}\n")
        return parse(Options, ["--config", str(tmp_path / "recipe.yaml"), *argv], "leash x", takes_recipe=True)

    return read


def test_the_command_line_comes_before_the_recipe_and_the_recipe_before_the_default(options):
    read = options("num_samples: 8\ntemperature: 1e-1", "--num_samples", "2")
    assert read == Options("run", ["a"], 3, 2, 0.1, {})


@pytest.mark.parametrize("value", ["{top: {k: 5}}", '{"top": {"k": 5}}'])
def test_a_mapping_is_json_or_yaml_in_both_places(value, options):
    assert options("", "--engine_kwargs", value).engine_kwargs == {"top": {"k": 5}}
    assert options(f"engine_kwargs: {value}").engine_kwargs == {"top": {"k": 5}}


@pytest.mark.parametrize("text", ["4096", "1.5"])
def test_a_target_may_be_a_fraction_and_stays_as_it_is_written(text):
    target = fields_of_command_line(["--target_length", text])["target_length"]
    assert repr(target) == text


def test_null_takes_out_what_the_recipe_sets(options):
    assert options("limit: 5", "--limit", "null").limit is None
    for name in ("lora_target_modules", "lambda_init", "target_length", "rollout_func", "max_completion_length"):
        assert fields_of_command_line(["--config", "smollm2_135m.yaml", f"--{name}", "null"])[name] is None


def test_null_means_the_default_where_there_must_be_a_value(options):
    assert options("num_samples: null").num_samples == 4


@pytest.mark.parametrize(
    ("mistake", "named"),
    [
        ("num_samples: true", "num_samples"),
        ("num_samples: [1, 2]", "num_samples is [1, 2]"),
        ("engine_kwargs: 5", "engine_kwargs"),
        ("limti: 2", "limti"),
        ("limit: [", "recipe.yaml"),
    ],
)
def test_a_mistake_in_a_recipe_is_one_line_that_names_it(mistake, named, options):
    with pytest.raises(UserError) as error:
        options(mistake)
    assert named in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "words",
    [
        ["--config", "old.yaml"],
        ["--warmup_ratio", "0.1", "--max_prompt_length", "512", "--limti", "2"],
    ],
    ids=["recipe", "words"],
)
def test_all_unknown_keys_are_named_at_once(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.yaml").write_text("warmup_ratio: 0.1\nmax_prompt_length: 512\nlimti: 2\n")
    with pytest.raises(UserError) as error:
        fields_of_command_line(words)
    for named in ("warmup_ratio", "max_prompt_length", "limti"):
        assert named in str(error.value)
    assert "\n" not in str(error.value)


def test_a_recipe_sets_the_environment_but_in_a_comparison_that_of_its_runs(options, monkeypatch):
    monkeypatch.setenv("MY_VARIABLE", "before")
    assert training_parser().parse_recipe({"env": {"MY_VARIABLE": 1}}, "arm") == {"env": {"MY_VARIABLE": 1}}
    assert os.environ["MY_VARIABLE"] == "before"
    options("env: {MY_VARIABLE: 1}")
    assert os.environ["MY_VARIABLE"] == "1"
