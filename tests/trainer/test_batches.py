"""What a generation batch and a policy update are: as the recipes mean them, and planned."""

import ast
import re

import pytest
import yaml
from conftest import ROOT


RECIPES = ROOT / "recipes"


def config_for(processes: int, **fields):
    from leash_trl import LeashGRPOConfig

    class SharedConfig(LeashGRPOConfig):
        world_size = property(lambda self: processes)

    return SharedConfig(target_length=4096, use_cpu=True, **fields)


@pytest.mark.parametrize("path", sorted(RECIPES.glob("leash*.yaml")), ids=lambda path: path.stem)
def test_a_recipe_on_its_hardware_makes_the_updates_that_it_means(path):
    """256 completions as in the paper, two updates a generation batch; 128 with adapters on one GPU. And it leaves
    room for long prompts: R1-Distill-Qwen has 131,072 positions, Qwen3-4B-Thinking 262,144."""
    recipe = yaml.safe_load(path.read_text())
    gpus = int(re.search(r"# Hardware: +(\d+) GPU", path.read_text()).group(1))
    names = ("per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation")
    args = config_for(gpus, **{name: recipe[name] for name in names})
    update = gpus * args.per_device_train_batch_size * args.gradient_accumulation_steps
    assert update == (128 if recipe.get("use_peft") else 256)
    assert args.generation_batch_size == (16 if recipe.get("load_in_4bit") else 2 * update)
    assert recipe.get("max_completion_length", 32768) <= (262144 if "_4b_" in path.stem else 131072) // 2


def test_the_example_of_the_readme_fits_one_card_of_80_gb():
    from trl import ModelConfig

    from leash_trl.cli.plan import PlanArguments, make_settings
    from leash_trl.planning import plan as memory

    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL).group(1)
    calls = {
        node.func.id: node
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    fields = {word.arg: ast.literal_eval(word.value) for word in calls["LeashGRPOConfig"].keywords}
    (model,) = (word.value.value for word in calls["LeashGRPOTrainer"].keywords if word.arg == "model")
    assert fields["target_length"] == 4096
    assert fields["use_vllm"]
    model_args = ModelConfig(model_name_or_path=model, **fields.pop("model_init_kwargs", {}))
    plan = PlanArguments(num_gpus=1, gpu_memory=80)
    fields.pop("target_length")
    settings = make_settings(plan, config_for(1, **fields), model_args)
    assert memory.refusal(settings) is None
    assert max(memory.peak_bytes(settings)) < 80e9
