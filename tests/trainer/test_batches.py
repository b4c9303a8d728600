"""What a generation batch and a policy update are, as the recipes mean them; and the README's example fits a card."""

import ast
import re

import pytest
import yaml
from conftest import ROOT
from trl import ModelConfig

from leash_trl import LeashGRPOConfig
from leash_trl.cli.commands.plan import PlanArguments, make_settings
from leash_trl.planning.plan import peak_bytes, refusal


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").glob("leash*.yaml")), ids=lambda path: path.stem)
def test_a_recipe_on_its_hardware_makes_the_updates_that_it_means(path, monkeypatch):
    """256 completions as in the paper, two updates a generation batch; 128 with adapters on one GPU. And it leaves
    room for long prompts: R1-Distill-Qwen has 131,072 positions, Qwen3-4B-Thinking 262,144."""
    recipe = yaml.safe_load(path.read_text())
    gpus = int(re.search(r"# Hardware: +(\d+) GPU", path.read_text()).group(1))
    monkeypatch.setattr(LeashGRPOConfig, "world_size", gpus)
    names = ("per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation")
    args = LeashGRPOConfig(target_length=4096, use_cpu=True, **{name: recipe[name] for name in names})
    update = gpus * args.per_device_train_batch_size * args.gradient_accumulation_steps
    assert update == (128 if recipe.get("use_peft") else 256)
    assert args.generation_batch_size == (16 if recipe.get("load_in_4bit") else 2 * update)
    assert recipe.get("max_completion_length", 32768) <= (262144 if "_4b_" in path.stem else 131072) // 2


def test_the_example_of_the_readme_fits_one_card_of_80_gb():
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL).group(1)
    calls = {
        node.func.id: node for node in ast.walk(ast.parse(code)) if isinstance(getattr(node, "func", 0), ast.Name)
    }
    fields = {word.arg: ast.literal_eval(word.value) for word in calls["LeashGRPOConfig"].keywords}
    (model,) = (word.value.value for word in calls["LeashGRPOTrainer"].keywords if word.arg == "model")
    model_args = ModelConfig(model_name_or_path=model, **fields.pop("model_init_kwargs", {}))
    args = LeashGRPOConfig(use_cpu=True, **fields)
    assert (args.target_length, args.use_vllm) == (4096, True)
    settings = make_settings(PlanArguments(num_gpus=1, gpu_memory=80), args, model_args)
    assert refusal(settings) is None
    assert max(peak_bytes(settings)) < 80e9
