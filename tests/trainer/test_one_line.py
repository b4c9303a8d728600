"""What a newcomer gets wrong: exit code 2, and the last line of stderr says which field and which value."""

import gzip
import json
import logging
import shutil

import pytest
from conftest import ROOT
from trained_arguments import parse

from leash_trl import gym
from leash_trl.cli.errors import UserError, user_errors
from leash_trl.cli.main import main


GOOD = "".join(json.dumps({"prompt": f"{i} + 1 = ?", "solution": str(i + 1)}) + "\n" for i in range(40))
TRAIN = {"model_name_or_path": "gym", "dataset_name": "good.jsonl", "use_cpu": "true", "bf16": "false"}
TRAIN |= {"target_length": "40", "max_completion_length": "64", "gradient_checkpointing": "false", "max_steps": "1"}
TRAIN |= {"report_to": "none", "disable_tqdm": "true", "output_dir": "run"}
EVAL = {
    "model_name_or_path": "gym",
    "benchmarks": "good.jsonl",
    "num_samples": "1",
    "max_new_tokens": "16",
    "output_dir": "run",
}
FILTER = {
    "model_name_or_path": "gym",
    "dataset_name": "good.jsonl",
    "num_samples": "2",
    "max_new_tokens": "16",
    "output_dir": "run",
}
OPTIONS = {"train": TRAIN, "eval": EVAL, "filter": FILTER}
DATA = {"train": "dataset_name", "eval": "benchmarks", "filter": "dataset_name"}
SHRINKING = "leash_trl.engines.shrinking_batch.shrinking_rollout"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder of data sets, models and recipes, most of them broken."""
    folder = tmp_path_factory.mktemp("mistakes")
    line = '{{"prompt": {}, "solution": {}}}\n'.format
    (folder / "no_files").mkdir()
    (folder / "splits").mkdir()
    texts = {
        "good.jsonl": GOOD,
        "splits/train.jsonl": GOOD,
        "a_file": "",
        "empty.jsonl": "",
        "broken.jsonl": GOOD + '{"prompt": "x\n',
        "null.jsonl": GOOD + line("null", '"1"'),
        "blank.jsonl": GOOD + line('" "', '"1"'),
        "messages.jsonl": line('[{"role": "user", "content": "x"}]', '"1"') * 40,
        "no_gold.jsonl": GOOD + line('"x"', "null"),
        "list_gold.jsonl": line('"x"', '["1"]') * 40,
        "response.jsonl": '{"prompt": "x", "response": "1"}\n' * 40,
        "columns.jsonl": '{"text": "x", "gold": "1"}\n' * 40,
        "target.jsonl": '{"prompt": "x", "solution": "1", "target_length": "long"}\n' * 40,
        "bad.parquet": "no parquet",
        "text.yaml": "learning_rate: fast\n",
        "half.yaml": "max_steps: 1.5\n",
        "twice.yaml": "seed: 1\nbf16: false\nseed: 2\n",
        "mixture.yaml": "datasets:\n- {path: json, data_file: good.jsonl}\n",
        "mixture_of_nothing.yaml": "datasets:\n- {path: json, data_files: nowhere.jsonl}\n",
        "null.yaml": "learning_rate: null\n",
        "no_folder.yaml": "output_dir: null\n",
        "list.yaml": "model_name_or_path: [gym]\n",
        "text_eval.yaml": "num_samples: many\n",
        "broken_reward.py": "def endless(completions, **kwargs):\n    return [float('inf') for _ in completions]\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "data.jsonl.gz").write_bytes(gzip.compress(GOOD.encode()))
    for name in ("no_weights", "torn_weights", "no_template"):
        shutil.copytree(gym.CHECKPOINT, folder / name)
    (folder / "adapter").mkdir()
    (folder / "adapter" / "adapter_config.json").write_text('{"base_model_name_or_path": "gym"}')
    (folder / "no_weights" / "model.safetensors").unlink()
    (folder / "torn_weights" / "model.safetensors").write_bytes(b"torn")
    (folder / "no_template" / "chat_template.jinja").unlink()
    return folder


BOTH = ("train", "eval")
COMMANDS = [
    (("train", "eval", "filter"), {"MODEL": "./nowhere"}, "MODEL", "./nowhere"),
    (BOTH, {"MODEL": "owner/nothing"}, "MODEL", "owner/nothing"),
    *((BOTH, {"MODEL": name}, "MODEL", name) for name in ("no_weights", "torn_weights")),
    (BOTH, {"MODEL": "no_files"}, "no_files", ""),
    (("train",), {"MODEL": "adapter"}, "leash merge", "adapter"),
    (BOTH, {"MODEL": "no_template", "DATA": "messages.jsonl"}, "chat_template", "chat_template"),
    (("train", "eval", "filter"), {"output_dir": "a_file/run"}, "output_dir", "a_file/run"),
    (BOTH, {"output_dir": "/proc/run"}, "output_dir", "/proc/run"),
    *((BOTH, {"DATA": name}, name, "") for name in ("empty.jsonl", "broken.jsonl", "nowhere.jsonl", "bad.parquet")),
    (("train", "eval", "filter"), {"DATA": "null.jsonl"}, "prompt", "row 40"),
    (BOTH, {"DATA": "blank.jsonl"}, "prompt", "row 40"),
    (BOTH, {"DATA": "no_gold.jsonl"}, "solution", "row 40"),
    (BOTH, {"DATA": "list_gold.jsonl"}, "solution", "row 0"),
    (BOTH, {"DATA": "columns.jsonl"}, "columns", "text, gold"),
    (BOTH, {"DATA": "response.jsonl"}, "columns prompt, response", "solution"),
    (("train",), {"DATA": "target.jsonl"}, "target_length", "'long'"),
    (BOTH, {"DATA": "data.jsonl.gz"}, "data.jsonl.gz", ".jsonl"),
    (("train",), {"target_length": "64"}, "target_length", "64"),
    (("train",), {"learning_rate": "fast"}, "learning_rate", "'fast'"),
    (("train",), {"config": "null.yaml"}, "learning_rate", "null"),
    (("train",), {"config": "text.yaml"}, "learning_rate", "'fast'"),
    (("train",), {"config": "half.yaml", "max_steps": None}, "max_steps", "1.5"),
    (("train",), {"config": "list.yaml", "model_name_or_path": None}, "model_name_or_path", '["gym"]'),
    (("train",), {"config": "no_folder.yaml", "output_dir": None}, "output_dir", "None"),
    (("train",), {"config": "mixture.yaml", "dataset_name": None}, "DatasetConfig", "data_file"),
    (("train",), {"config": "mixture_of_nothing.yaml", "dataset_name": None}, "datasets", "nowhere.jsonl"),
    (BOTH, {"config": "twice.yaml"}, "'seed'", "1 and 3"),
    (("train",), {"rollout_func": "math.tau_"}, "rollout_func", "'math.tau_'"),
    (("train",), {"reward_model_name_or_path": "./nowhere"}, "reward_model_name_or_path", "./nowhere"),
    (("train",), {"DATA": "response.jsonl", "rollout_func": SHRINKING}, "columns", "solution"),
    (("train",), {"output_dir": ""}, "output_dir", "''"),
    (("train",), {"DATA": "splits", "dataset_train_split": "trian"}, "dataset_train_split", "'trian'"),
    (("train",), {"chat_template_kwargs": "thinking"}, "chat_template_kwargs", "'thinking'"),
    (("train",), {"zzz": "1"}, "--zzz", "--help"),
    (("train",), {"reward_funcs": "broken_reward.endless"}, "reward function", "'endless'"),
    (("eval",), {"config": "text_eval.yaml", "num_samples": None}, "num_samples", "'many'"),
    (("eval",), {"dtype": "float17"}, "dtype", "'float17'"),
]


def words(command: str, changes: dict) -> list[str]:
    """A command line that is right but for the changes."""
    names = {"MODEL": "model_name_or_path", "DATA": DATA[command]}
    options = {**OPTIONS[command], **{names.get(name, name): value for name, value in changes.items()}}
    return [command, *(word for name, value in options.items() if value is not None for word in (f"--{name}", value))]


@pytest.mark.parametrize(
    ("command", "changes", "field", "value"), [(name, *case) for names, *case in COMMANDS for name in names], ids=str
)
def test_on_the_command_line_it_is_the_last_line(command, changes, field, value, files, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    monkeypatch.setattr(logging, "raiseExceptions", False)  # libraries log to the stderr of the test before
    monkeypatch.chdir(tmp_path)
    for path in files.iterdir():
        (tmp_path / path.name).symlink_to(path)
    assert main(words(command, changes)) == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    line = error.rstrip("\n").split("\n")[-1]
    assert line.startswith(f"leash {command}: ")
    named = ["model_name_or_path" if field == "MODEL" else field, value]
    assert [part for part in named if part not in line] == []


@pytest.mark.parametrize("error", [KeyError("x"), OSError("gone\nmuch more"), ImportError("no such package")])
def test_an_error_of_loading_is_the_users(error):
    with pytest.raises(UserError) as failure, user_errors(only_loads=True, model="here"):
        raise error
    assert str(failure.value).startswith("model is 'here': ")
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize("error", [TypeError("a bug"), AttributeError("a bug"), IndexError("a bug")])
def test_a_bug_keeps_its_traceback(error):
    with pytest.raises(type(error)), user_errors(model="here"):
        raise error


@pytest.mark.parametrize("recipe", sorted((ROOT / "recipes").glob("leash*b_*.yaml")), ids=lambda path: path.stem)
def test_our_recipes_leave_room_for_long_prompts(recipe):
    """R1-Distill-Qwen has 131,072 positions, Qwen3-4B-Thinking 262,144."""
    args = parse(["--config", str(recipe), "--use_cpu", "true", "--bf16", "false"])[1]
    assert args.max_completion_length <= (262144 if "_4b_" in recipe.stem else 131072) // 2
