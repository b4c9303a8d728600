"""`leash methods`: every method says what it is, when to use it and where it comes from."""

import re
from pathlib import Path

import pytest
import yaml

import leash_trl.length_control
from leash_trl.cli.main import main
from leash_trl.length_control.description import description, first_line, recipe_lines
from leash_trl.length_control.methods import METHODS


CODE = {"nemo_rl": "[NeMo-RL](https://github.com/NVIDIA-NeMo/RL/pull/3852)"}
CODE |= {"mai": CODE["nemo_rl"], "prime_rl": "[prime-rl](https://github.com/PrimeIntellect-ai/prime-rl)"}


def hyper_parameters(method):
    """Defaults of a method's fields, by name."""
    return yaml.safe_load(recipe_lines(method))["length_control_kwargs"]


def markdown_table():
    """A row for each method: name, what it does, its source, and three hyper-parameters, inherited ones last."""
    rows = ["| `length_control` | what it does | source | main knobs |", "|---|---|---|---|"]
    for name, method in METHODS.items():
        paper, defaults = method.paper, hyper_parameters(method)
        source = f"[{paper.title}](https://huggingface.co/papers/{paper.id})" if paper else CODE.get(name, "")
        names = sorted(defaults, key=lambda knob: knob not in method.__annotations__)[:3]
        knobs = [yaml.safe_dump({k: defaults[k]}, default_flow_style=True, width=999).strip()[1:-1] for k in names]
        rows.append(f"| `{name}` | {first_line(method)} | {source} | {', '.join(f'`{knob}`' for knob in knobs)} |")
    return "\n".join(rows)


@pytest.mark.parametrize("name", METHODS)
def test_every_page_says_use_and_source_and_explains_every_hyper_parameter(name):
    page = description(METHODS[name])
    assert page.startswith(f"{name}\n=")
    assert "\nUse: " in page
    assert name == "none" or "\nSource: " in page
    assert [field for field in hyper_parameters(METHODS[name]) if not re.search(rf"\b{field}\b.*\(`", page)] == []


@pytest.mark.parametrize("name", METHODS)
def test_the_recipe_of_a_page_is_the_method_with_its_defaults(name):
    recipe = yaml.safe_load(recipe_lines(METHODS[name]))
    method = METHODS[name]
    assert recipe["length_control"] == name
    kwargs = recipe.get("length_control_kwargs", {})
    kwargs = {key: tuple(value) if isinstance(value, list) else value for key, value in kwargs.items()}
    assert method(**kwargs) == method()


def test_the_readme_has_the_table_of_all_methods():
    table, readme = markdown_table(), Path(leash_trl.length_control.__path__[0], "README.md")
    assert table in readme.read_text(encoding="utf-8"), f"the table of README.md must be:\n{table}"


def test_a_name_that_is_no_method_is_one_line(capsys):
    assert main(["methods", "lesh"]) == 2
    assert "must be one of leash, leash_c" in capsys.readouterr().err


def test_the_recipe_of_a_users_method_has_its_import_path():
    class Mine(METHODS["kimi"]):
        __module__ = "my_methods"

    Mine.__qualname__ = "Mine"
    assert recipe_lines(Mine).startswith("length_control: my_methods.Mine\n")


def test_every_method_but_ours_and_none_names_its_paper_or_its_code():
    unnamed = {name for name, method in METHODS.items() if name not in CODE and method.paper is None}
    assert unnamed == {"leash_predictive", "none"}
    assert METHODS["laser_d"].paper.id == "2505.15612"
