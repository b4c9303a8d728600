"""Recipes without a clone: names in the package, the wheel, and the demo from an empty folder."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml


ROOT = Path(__file__).parent.parent.parent
RECIPES = ROOT / "recipes"


@pytest.fixture
def in_tmp(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_recipes_go_by_their_names_in_the_package(in_tmp):
    from trained_arguments import parse

    from leash_trl.cli.arguments import read_recipe

    smoke = yaml.safe_load((RECIPES / "gym" / "smoke.yaml").read_text())
    for name in ("gym/smoke.yaml", "recipes/gym/smoke.yaml"):
        assert read_recipe(name) == smoke
        assert parse(["--config", name])[1].max_steps == smoke["max_steps"]
    # a file of the user's comes first
    Path("gym").mkdir()
    Path("gym/smoke.yaml").write_text("max_steps: 7\n")
    assert read_recipe("gym/smoke.yaml") == {"max_steps": 7}
    with pytest.raises(FileNotFoundError, match=r"nope\.yaml.*gym/leash\.yaml"):
        read_recipe("nope.yaml")
    with pytest.raises(FileNotFoundError):
        read_recipe("../pyproject.toml")


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

    def held(folder: Path, pattern: str) -> set[str]:
        return {str(path.relative_to(folder)) for path in folder.rglob(pattern)}

    assert held(installed_wheel / "leash_trl" / "recipes", "*.yaml") == held(RECIPES, "*.yaml")
    for pattern in ("*.py", "*.j2", "*.safetensors", "py.typed"):
        packed = {name for name in held(installed_wheel / "leash_trl", pattern) if not name.startswith("recipes/")}
        assert packed == held(ROOT / "leash_trl", pattern)


def run_installed(installed_wheel: Path, folder: Path, *argv: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(installed_wheel), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "leash_trl", *argv]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.slow
def test_a_recipe_of_the_wheel_works_in_an_empty_folder(installed_wheel, tmp_path):
    options = ["--max_steps", "2", "--per_device_train_batch_size", "8", "--save_steps", "2"]
    run = run_installed(installed_wheel, tmp_path, "compare", "--config", "gym/leash.yaml", "--seeds", "0", *options)
    assert run.returncode == 0, run.stderr
    assert "| leash |" in run.stdout
    assert (tmp_path / "runs" / "compare" / "dynamics.png").is_file()
