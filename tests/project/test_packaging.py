"""Recipes without a clone: names in the package, the wheel, and the demo from an empty folder."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml
from conftest import ROOT

from leash_trl.cli.arguments import load_recipe


RECIPES = ROOT / "recipes"


def test_recipes_go_by_their_names_in_the_package_but_files_of_the_users_come_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    smoke = yaml.safe_load((RECIPES / "gym" / "smoke.yaml").read_text())
    for name in ("gym/smoke.yaml", "recipes/gym/smoke.yaml"):
        assert load_recipe(name) == smoke
    Path("gym").mkdir()
    Path("gym/smoke.yaml").write_text("max_steps: 7\n")
    assert load_recipe("gym/smoke.yaml") == {"max_steps": 7}
    for name in ("nope.yaml", "../pyproject.toml"):
        with pytest.raises(FileNotFoundError, match=name):
            load_recipe(name)


@pytest.fixture(scope="session")
def installed_wheel(tmp_path_factory):
    """A folder with the wheel's files, as pip puts them into site-packages."""
    pytest.importorskip("setuptools", minversion="77")
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for name in ("leash_trl", "recipes"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = "from setuptools.build_meta import build_wheel; build_wheel('..')"
    subprocess.run([sys.executable, "-c", build], cwd=source, check=True, capture_output=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        wheel.extractall(folder / "installed")
    return folder / "installed"


def test_the_wheel_holds_every_module_and_recipe_and_nothing_at_the_top(installed_wheel):
    assert {path.name for path in installed_wheel.iterdir() if path.suffix != ".dist-info"} == {"leash_trl"}

    def held(folder, pattern):
        return {str(path.relative_to(folder)) for path in folder.rglob(pattern)}

    assert held(installed_wheel / "leash_trl" / "recipes", "*.yaml") == held(RECIPES, "*.yaml")
    for pattern in ("*.py", "*.j2", "*.safetensors", "py.typed"):
        packed = {name for name in held(installed_wheel / "leash_trl", pattern) if not name.startswith("recipes/")}
        assert packed == held(ROOT / "leash_trl", pattern)


@pytest.mark.slow
def test_a_recipe_of_the_wheel_works_in_an_empty_folder(installed_wheel, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(installed_wheel)}
    command = [sys.executable, "-m", "leash_trl", "compare", "--config", "gym/leash.yaml", "--seeds", "0"]
    command += ["--max_steps", "2", "--per_device_train_batch_size", "8", "--save_steps", "2"]
    run = subprocess.run(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    assert "| leash |" in run.stdout
    assert (tmp_path / "runs" / "compare" / "dynamics.png").is_file()
