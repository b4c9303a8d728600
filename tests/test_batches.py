"""What a generation batch and a policy update are: said at the start, compared with what is meant, and planned."""

import ast
import re
import warnings
from pathlib import Path

import pytest
import yaml

from leash_trl.cli.main import main
from leash_trl.gym.dataset import SIZES


ROOT = Path(__file__).parent.parent
RECIPES = ROOT / "recipes"


def config_for(processes: int, **fields):
    from leash_trl import LeashGRPOConfig

    class SharedConfig(LeashGRPOConfig):
        world_size = property(lambda self: processes)

    return SharedConfig(target_length=4096, use_cpu=True, **fields)


PAPER = yaml.safe_load((RECIPES / "leash_1.5b_4k.yaml").read_text())
BATCHES = {
    name: PAPER[name]
    for name in ("per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation")
} | {"update_batch_size": PAPER.get("update_batch_size")}


@pytest.mark.filterwarnings("error:.*update_batch_size")
def test_the_paper_recipe_on_its_gpus_has_the_papers_batches():
    line = config_for(32, **BATCHES).batches()
    assert "512 completions (64 prompts x 8)" in line
    assert "256 completions (processes 32 x per_device_train_batch_size 1 x gradient_accumulation_steps 8)" in line


def remedy_in(text: str) -> dict[str, int]:
    return {name: int(value) for name, value in re.findall(r"(\w+) to (\d+)", text)}


def test_on_fewer_gpus_the_warning_says_what_is_meant_and_what_to_set_and_that_holds():
    with pytest.warns(UserWarning, match="update_batch_size") as warned:
        config = config_for(8, **BATCHES)
    assert "64 completions (processes 8" in config.batches()
    text = str(next(w.message for w in warned if "update_batch_size" in str(w.message)))
    # 8 processes x 16 and 8 steps; 256 an update keep two updates a generation batch
    assert text.startswith("128 completions a generation batch, 64 an update; ")
    assert "the recipe means 256 an update: set " in text
    remedy = remedy_in(text)
    assert remedy.keys() == {"gradient_accumulation_steps", "steps_per_generation"}
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*update_batch_size")
        line = config_for(8, **{**BATCHES, **remedy}).batches()
    assert "512 completions" in line
    assert "256 completions (processes 8" in line


def test_what_is_meant_comes_from_the_recipes_own_fields():
    fields = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "steps_per_generation": 12}
    with pytest.warns(UserWarning, match="update_batch_size") as warned:
        config_for(4, **fields, update_batch_size=96)
    text = str(next(w.message for w in warned if "update_batch_size" in str(w.message)))
    # 4 processes x 2 rows; three updates a generation batch stay three
    assert text.startswith("96 completions a generation batch, 32 an update; ")
    assert "means 96 an update: set gradient_accumulation_steps to 12, and set steps_per_generation to 36" in text
    assert text.endswith("to keep 3 updates a generation batch")


def warnings_of(processes: int, **fields) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        config_for(processes, **fields)
    return [str(warning.message) for warning in caught if "generation batch, " in str(warning.message)]


@pytest.mark.parametrize(
    ("fields", "batches", "remedy"),
    [
        # the recipe's 16 steps of 8 processes, but 64 or 32 to an update: how many updates it means is not known
        (
            {**BATCHES, "gradient_accumulation_steps": 64},
            "128 completions a generation batch, 512 an update; by its update_batch_size the recipe means 256 an",
            {"gradient_accumulation_steps": 32, "steps_per_generation": 32},
        ),
        (
            {**BATCHES, "gradient_accumulation_steps": 32},
            "128 completions a generation batch, 256 an update: ",
            {"steps_per_generation": 32},
        ),
        (
            {"gradient_accumulation_steps": 4, "steps_per_generation": 6},
            "384 completions a generation batch, 256 an update: ",
            {"steps_per_generation": 4},
        ),
        (
            {"gradient_accumulation_steps": 4, "generation_batch_size": 384},
            "384 completions a generation batch, 256 an update: ",
            {"generation_batch_size": 256},
        ),
    ],
)
def test_generation_batches_that_are_no_whole_updates_are_warned_of(fields, batches, remedy):
    (text,) = warnings_of(8, **fields, use_vllm=True)
    assert text.startswith(batches)
    assert text.endswith("or a multiple of it")
    assert remedy_in(text) == remedy
    assert warnings_of(8, **{**fields, **remedy}, use_vllm=True) == []


def test_small_generation_batches_that_save_memory_may_stay():
    recipe = yaml.safe_load((RECIPES / "leash_7b_4k_qlora.yaml").read_text())
    fields = {name: recipe[name] for name in BATCHES}
    assert warnings_of(1, **fields) == []
    (text,) = warnings_of(2, **fields)
    assert remedy_in(text) == {"gradient_accumulation_steps": 64}


def test_a_generation_batch_that_no_whole_steps_make_up_is_not_kept():
    fields = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "steps_per_generation": 3}
    (text,) = warnings_of(1, **fields, update_batch_size=8)
    assert text.startswith("24 completions a generation batch, 16 an update; ")
    assert remedy_in(text) == {"gradient_accumulation_steps": 1}  # which makes 3 updates a generation batch


def test_the_plan_prints_what_is_meant_as_a_line_of_its_own(capsys, recwarn):
    argv = ["plan", "--config", str(RECIPES / "leash_1.5b_4k.yaml"), "--num_gpus", "8", "--gpu_memory", "96"]
    assert main(argv) == 0
    out = capsys.readouterr().out
    (line,) = [line for line in out.splitlines() if "update_batch_size" in line]
    assert line.startswith("warning: 128 completions a generation batch, 64 an update; ")
    assert "; by its update_batch_size the recipe means 256 an update: set " in line
    assert not [warning for warning in recwarn if "update_batch_size" in str(warning.message)]
    assert main([*argv, *(f"--{name}={value}" for name, value in remedy_in(line).items())]) == 0
    out = capsys.readouterr().out
    assert "512 completions, 2 policy updates of 256" in out
    assert "warning" not in out


def test_a_generation_batch_that_was_given_is_left_out_of_the_remedy():
    fields = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 8, "generation_batch_size": 512}
    with pytest.warns(UserWarning, match="gradient_accumulation_steps to 32$"):
        config_for(8, **fields, update_batch_size=256)


def test_an_update_that_no_accumulation_makes_up_says_so():
    with pytest.warns(UserWarning, match="no whole gradient_accumulation_steps"):
        config_for(3, per_device_train_batch_size=8, gradient_accumulation_steps=1, update_batch_size=256)


def test_several_generation_batches_for_an_update_are_counted():
    fields = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 128, "steps_per_generation": 16}
    assert "batches an update: 8" in config_for(1, **fields).batches()


@pytest.mark.parametrize("value", [0, -1, 2.5, True])
def test_an_update_batch_size_must_be_a_number_of_completions(value):
    with pytest.raises(ValueError, match="update_batch_size"):
        config_for(1, update_batch_size=value)


@pytest.mark.parametrize("path", sorted(RECIPES.glob("leash*.yaml")), ids=lambda path: path.stem)
def test_a_recipe_states_the_update_that_its_hardware_makes(path):
    recipe = yaml.safe_load(path.read_text())
    gpus = int(re.search(r"# Hardware: +(\d+) GPU", path.read_text()).group(1))
    at_once = gpus * recipe["per_device_train_batch_size"]
    assert recipe["update_batch_size"] == at_once * recipe["gradient_accumulation_steps"]


def test_train_says_the_batches_first(tmp_path, monkeypatch, capsys):
    from leash_trl.trainer.leash_grpo_trainer import LeashGRPOTrainer

    class Enough(Exception):
        pass

    def stop(self, *args, **kwargs):
        raise Enough

    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(SIZES, "train", 256)  # each is read and checked
    monkeypatch.setattr(LeashGRPOTrainer, "train", stop)
    options = ["--per_device_train_batch_size", "16", "--gradient_accumulation_steps", "2", "--output_dir", "run"]
    with pytest.raises(Enough):
        main(["train", "--config", str(RECIPES / "gym" / "smoke.yaml"), *options])
    lines = [line for line in capsys.readouterr().out.splitlines() if "generation batch" in line]
    assert len(lines) == 1
    assert "32 completions (4 prompts x 8)" in lines[0]


def test_the_example_of_the_readme_fits_one_card_of_80_gb():
    from trl import ModelConfig

    from leash_trl.cli.plan import build_parser, make_settings
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
    plan = build_parser().parse_args(["--config", "-", "--num_gpus", "1", "--gpu_memory", "80"])
    fields.pop("target_length")
    settings = make_settings(plan, config_for(1, **fields), model_args)
    assert memory.refusal(settings) is None
    assert max(memory.peak_bytes(settings)) < 80e9
