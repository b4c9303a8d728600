"""`leash methods`: every method says what it is, when to use it and where it comes from."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import leash_trl.length_control
from leash_trl.cli.commands.methods import first_docstring_line, method_page, recipe_yaml
from leash_trl.cli.main import main
from leash_trl.length_control.methods import METHODS
from leash_trl.length_control.targets import check_target


NEMO_RL = "[NeMo-RL](https://github.com/NVIDIA-NeMo/RL/pull/3852)"
# source of the methods without a paper
SOURCES = {
    "nemo_rl": NEMO_RL,
    "mai": NEMO_RL,
    "prime_rl": "[prime-rl](https://github.com/PrimeIntellect-ai/prime-rl)",
    "leash_predictive": "",
    "none": "",
}


def hyperparameter_values(method):
    """Defaults of a method's fields, by name."""
    return yaml.safe_load(recipe_yaml(method, method.name))["length_control_kwargs"]


def markdown_row(name):
    """Name, what it does, its paper or its code, and three hyper-parameters, inherited ones last."""
    method = METHODS[name]
    paper = method.paper
    source = f"[{paper.title}](https://huggingface.co/papers/{paper.id})" if paper else SOURCES[name]
    if method.formula_from:
        source += f"; formula from {method.formula_from}, not from the paper"
    defaults = hyperparameter_values(method)
    cells = []
    for field in sorted(defaults, key=lambda field: field not in method.__annotations__)[:3]:
        value = yaml.safe_dump({field: defaults[field]}, default_flow_style=True, width=999)
        cells.append(f"`{value.strip()[1:-1]}`")  # without the braces
    return f"| `{name}` | {first_docstring_line(method)} | {source} | {', '.join(cells)} |"


def test_the_readme_has_the_table_of_all_methods():
    table = "\n".join(["|---|---|---|---|", *map(markdown_row, METHODS)])
    readme = Path(leash_trl.length_control.__path__[0], "README.md").read_text(encoding="utf-8")
    assert table in readme, f"the table of README.md must be:\n{table}"


def test_the_table_says_which_formulas_come_from_code_and_not_from_the_paper(capsys):
    assert main(["methods"]) == 0
    lines = {line.partition(" ")[0]: line for line in capsys.readouterr().out.splitlines()}
    for name, method in METHODS.items():
        assert (f"Formula from {method.formula_from}" in lines[name]) == bool(method.formula_from)


@pytest.mark.parametrize("name", METHODS)
def test_every_page_says_use_and_source_and_explains_every_hyper_parameter(name):
    method = METHODS[name]
    page = method_page(method, name)
    assert page.startswith(f"{name}\n=")
    assert "\nUse: " in page
    assert name == "none" or "\nSource: " in page
    assert [field for field in hyperparameter_values(method) if not re.search(rf"\b{field}\b.*\(`", page)] == []
    # arguments that are inherited begin in the first column, as the method's own do in its docstring
    assert not re.search(r"^ +\w+ \(`", page.partition("\nFrom ")[2], re.MULTILINE)


@pytest.mark.parametrize("name", METHODS)
def test_the_recipe_of_a_page_has_the_defaults_and_a_target_where_the_method_needs_one(name):
    recipe = yaml.safe_load(recipe_yaml(METHODS[name], name))
    kwargs = {}
    for field, value in recipe["length_control_kwargs"].items():
        kwargs[field] = tuple(value) if isinstance(value, list) else value  # YAML has lists for tuples
    method = METHODS[name](**kwargs)
    assert method == METHODS[name]()
    assert ("target_length" in recipe) == (method.target_use == "required")
    if method.target_use == "required":
        check_target(recipe["target_length"], method, generation_limit=2**20)


def test_a_method_in_a_file_is_described_with_the_path_by_which_it_is_found(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.path", [*sys.path])
    head = "from leash_trl.length_control.method import LengthControl\n\n\n"
    named = head + "class Mine(LengthControl):\n    name = 'mine'\n"
    (tmp_path / "described_methods.py").write_text(named + "\n\nclass NoName(LengthControl):\n    pass\n")
    path = f"{tmp_path}/described_methods.py"
    assert main(["methods", f"{path}:Mine"]) == 0
    assert f"length_control: {path}:Mine\n" in capsys.readouterr().out
    assert main(["methods", f"{path}:NoName"]) == 2
    assert "NoName" in capsys.readouterr().err


def test_output_that_is_read_only_in_part_is_no_error():
    command = subprocess.Popen(
        [sys.executable, "-m", "leash_trl", "methods"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    command.stdout.close()  # as head does, once it has its lines
    assert command.stderr.read() == ""
    assert command.wait() == 1
