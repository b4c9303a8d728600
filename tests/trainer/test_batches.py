"""What a generation batch and a policy update are, as the recipes mean them; and the README's example fits a card."""

import re

import pytest
import yaml
from conftest import ROOT

from leash_trl import LeashGRPOConfig


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").glob("leash*.yaml")), ids=lambda path: path.stem)
def test_a_recipe_on_its_hardware_makes_the_updates_that_it_means(path, monkeypatch):
    """256 completions as in the paper, two updates a generation batch; 128 with adapters on one GPU."""
    recipe = yaml.safe_load(path.read_text())
    gpus = int(re.search(r"# Hardware: +(\d+) GPU", path.read_text()).group(1))
    monkeypatch.setattr(LeashGRPOConfig, "world_size", gpus)
    names = ("per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation")
    args = LeashGRPOConfig(target_length=4096, use_cpu=True, **{name: recipe[name] for name in names})
    update = gpus * args.per_device_train_batch_size * args.gradient_accumulation_steps
    assert update == (128 if recipe.get("use_peft") else 256)
    assert args.generation_batch_size == (16 if recipe.get("load_in_4bit") else 2 * update)
