"""The recipe beside a model repeats the run, and holds no secrets."""

from pathlib import Path

import numpy as np
import pytest
import yaml

from leash_trl.cli.training_arguments import arguments_of, fields_of_command_line
from leash_trl.hub.repository import HubRepository
from leash_trl.saved_recipe import RECIPE_FILE, non_default_fields, recipe_of_model, write_recipe


RECIPES = Path(__file__).parents[1] / "recipes"


def configuration(argv):
    script_args, training_args, model_args, _ = arguments_of(fields_of_command_line(argv))
    values = {**vars(script_args), **training_args.to_dict(), **vars(model_args)}
    values.pop("accelerator_config")
    return {name: value for name, value in values.items() if name not in ("output_dir", "run_name", "hub_token")}


@pytest.mark.parametrize(
    "argv",
    [
        ["--config", str(RECIPES / "gym" / "leash.yaml"), "--seed", "7", "--lambda_lr", "0.3", "--beta", "0.0"],
        ["--config", str(RECIPES / "leash_1.5b_4k.yaml"), "--use_cpu", "true", "--bf16", "false"],
    ],
    ids=["gym", "paper"],
)
def test_the_written_recipe_is_the_same_configuration(argv, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_recipe(tmp_path, fields_of_command_line(argv))
    assert configuration(["--config", str(tmp_path / RECIPE_FILE)]) == configuration(argv)


def test_a_trainer_without_a_recipe_tells_its_changed_fields(make_args, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    args = make_args(gradient_accumulation_steps=2, steps_per_generation=4, length_control_kwargs={}, seed=3)
    changed = non_default_fields(args)
    expected = {
        "target_length": 12,
        "lambda_lr": 0.1,
        "steps_per_generation": 4,
        "seed": 3,
    }
    assert expected.items() <= changed.items()
    assert not {"temperature", "generation_batch_size", "accelerator_config"} & changed.keys()
    write_recipe(tmp_path, {"model_name_or_path": "x", **changed})
    assert configuration(["--config", str(tmp_path / RECIPE_FILE)])["steps_per_generation"] == 4


def test_secrets_this_machine_and_its_user_stay_out_and_values_of_python_programs_become_plain_ones(tmp_path):
    private = {
        "hub_token": "x",
        "env": {"KEY": "y"},
        "output_dir": "/me",
        "push_to_hub": True,
        "hub_model_id": "me/x",
    }
    recipe = {
        "learning_rate": np.float64(1e-3),
        "reward_weights": (1.0, 0.5),
        "chat_template_path": Path("a.jinja"),
        "dataset_name": f"https://hf_{'z' * 30}@x",
        "generation_kwargs": {"top_p": 0.5, "bias": {(1, 2): 0.5}},
    }
    write_recipe(tmp_path, private | recipe)
    text = (tmp_path / RECIPE_FILE).read_text()
    assert yaml.safe_load(text) == {
        "learning_rate": 1e-3,
        "reward_weights": [1.0, 0.5],
        "chat_template_path": "a.jinja",
        "dataset_name": "https://<HUB_TOKEN>@x",
        "generation_kwargs": {"top_p": 0.5, "bias": {}},
    }
    assert "trl" in text.splitlines()[1]


def test_a_model_s_recipe_is_beside_it_or_that_of_its_run(tmp_path):
    run = tmp_path / "run"
    checkpoint = run / "checkpoint-5"
    other = run / "merged"
    checkpoint.mkdir(parents=True)
    other.mkdir()
    write_recipe(run, {"prompt_suffix": ""})
    assert recipe_of_model(str(run)) == recipe_of_model(str(checkpoint)) == {"prompt_suffix": ""}
    assert recipe_of_model(str(other)) == {}
    write_recipe(checkpoint, {"prompt_suffix": " Be brief."})
    assert recipe_of_model(str(checkpoint)) == {"prompt_suffix": " Be brief."}


def test_a_model_s_recipe_on_the_hub_is_that_of_its_revision(hub):
    for name in ("me/trained", "me/other"):
        HubRepository(name).create()
        HubRepository(name).commit({"config.json": b"{}"}, "model")
    first = hub.commits("me/trained")[-1].oid
    HubRepository("me/trained").commit({RECIPE_FILE: b"prompt_suffix: ''"}, "recipe")
    assert recipe_of_model("me/trained") == {"prompt_suffix": ""}
    assert recipe_of_model("me/trained", first) == recipe_of_model("me/other") == {}
    with pytest.raises(OSError, match="me/nothing"):
        recipe_of_model("me/nothing")
