"""What a newcomer gets wrong: exit code 2, and the last line of stderr says which field, which value, what to do."""

import gzip
import json
import logging
import shutil

import pytest

from leash_trl import gym
from leash_trl.cli.errors import UserError, check_writable, user_errors
from leash_trl.cli.main import main
from leash_trl.cli.training_arguments import parse


GOOD = "".join(json.dumps({"prompt": f"{i} + 1 = ?", "solution": str(i + 1)}) + "\n" for i in range(40))
TRAIN = {"model_name_or_path": "gym", "dataset_name": "good.jsonl", "use_cpu": "true", "bf16": "false"}
TRAIN |= {"target_length": "40", "max_completion_length": "64", "gradient_checkpointing": "false", "max_steps": "1"}
TRAIN |= {"report_to": "none", "disable_tqdm": "true", "output_dir": "run"}
EVAL = {"model": "gym", "benchmarks": "good.jsonl", "num_samples": "1", "max_new_tokens": "16", "output_dir": "run"}
FILTER = {"model": "gym", "dataset": "good.jsonl", "num_samples": "2", "max_new_tokens": "16", "output_dir": "run"}
OPTIONS = {"train": TRAIN, "eval": EVAL, "filter": FILTER}
MODEL = {"train": "model_name_or_path", "eval": "model", "filter": "model"}
DATA = {"train": "dataset_name", "eval": "benchmarks", "filter": "dataset"}
NO_NULL = ("lora_r", "lora_alpha", "lora_dropout", "seed", "learning_rate")
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
        "no_messages.jsonl": line('[{"role": "user", "content": "x"}]', '"1"') + line("[]", '"1"'),
        "no_gold.jsonl": GOOD + line('"x"', "null"),
        "list_gold.jsonl": line('"x"', '["1"]') * 40,
        "response.jsonl": '{"prompt": "x", "response": "1"}\n' * 40,
        "columns.jsonl": '{"text": "x", "gold": "1"}\n' * 40,
        "target.jsonl": '{"prompt": "x", "solution": "1", "target_length": "long"}\n' * 40,
        "bad.parquet": "no parquet",
        "semicolons.csv": "prompt;solution\nx;1\n",
        "text.yaml": "learning_rate: fast\n",
        "half.yaml": "max_steps: 1.5\n",
        "mapping.yaml": "learning_rate: {a: 1}\n",
        "twice.yaml": "seed: 1\nbf16: false\nseed: 2\n",
        "mixture.yaml": "datasets:\n- {path: json, data_file: good.jsonl}\n",
        "mixture_of_nothing.yaml": "datasets:\n- {path: json, data_files: nowhere.jsonl}\n",
        "mixture_of_empty.yaml": "datasets:\n- {path: json, data_files: empty.jsonl}\n",
        **{f"null_{name}.yaml": f"{name}: null\n" for name in NO_NULL},
        "number.yaml": "model_name_or_path: 5\n",
        "list.yaml": "model_name_or_path: [gym]\n",
        "rollout_number.yaml": "rollout_func: 5\n",
        "rollout_list.yaml": "rollout_func: [a]\n",
        "no_limit.yaml": "max_completion_length: null\n",
        "text_eval.yaml": "num_samples: many\n",
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


MISTAKES = [
    *(("every", {"MODEL": path}, [path, "no such folder"]) for path in ("./nowhere", "no_files/at/all")),
    ("every", {"MODEL": "owner/nothing"}, ["owner/nothing", "connect"]),
    ("every", {"MODEL": "no_weights"}, ["no_weights", "model.safetensors"]),
    ("every", {"MODEL": "torn_weights"}, ["torn_weights", "complete"]),
    ("every", {"MODEL": "no_files"}, ["no_files", "config.json"]),
    ("train", {"MODEL": "adapter"}, ["an adapter", "leash merge adapter --output_dir DIR"]),
    ("every", {"MODEL": "no_template", "DATA": "messages.jsonl"}, ["chat_template"]),
    *(("every", {"output_dir": path}, ["output_dir", path]) for path in ("a_file", "a_file/run", "/proc/run")),
    ("every", {"DATA": "empty.jsonl"}, ["empty.jsonl"]),
    ("every", {"DATA": "broken.jsonl"}, ["broken.jsonl", "JSON"]),
    ("every", {"DATA": "null.jsonl"}, ["row 40", "prompt", "None"]),
    ("every", {"DATA": "blank.jsonl"}, ["row 40", "prompt"]),
    ("every", {"DATA": "no_messages.jsonl"}, ["row 1", "prompt"]),
    ("every", {"DATA": "no_gold.jsonl"}, ["row 40", "solution", "None"]),
    ("every", {"DATA": "list_gold.jsonl"}, ["row 0", "solution"]),
    ("every", {"DATA": "columns.jsonl"}, ["columns text, gold"]),
    ("train", {"DATA": "response.jsonl"}, ["columns prompt, response", "solution", "rename"]),
    ("train", {"DATA": "response.jsonl", "rollout_func": SHRINKING}, ["columns prompt, response", "solution"]),
    ("eval", {"DATA": "response.jsonl"}, ["columns prompt, response", "solution", "rename"]),
    ("every", {"DATA": "target.jsonl"}, ["row 0", "target_length", "'long'"]),
    ("every", {"DATA": "nowhere.jsonl"}, ["nowhere.jsonl"]),
    ("every", {"DATA": "data.jsonl.gz"}, ["data.jsonl.gz", ".jsonl"]),
    ("every", {"DATA": "bad.parquet"}, ["bad.parquet"]),
    ("every", {"DATA": "semicolons.csv"}, ["columns prompt;solution"]),
    ("every", {"DATA": "no_files"}, ["no_files"]),
    ("train", {"loss_type": "dapoo"}, ["loss_type", "'dapoo'", "dapo"]),
    ("train", {"scale_rewards": "groups"}, ["scale_rewards", "'groups'", "'group'"]),
    (
        "train",
        {"MODEL": "no_template", "DATA": "messages.jsonl", "rollout_func": SHRINKING},
        ["chat_template"],
    ),
    *(
        ("train", {name: "0"}, [name, "0"])
        for name in ("per_device_train_batch_size", "gradient_accumulation_steps", "num_generations", "temperature")
    ),
    ("train", {"learning_rate": "-1"}, ["learning_rate", "-1"]),
    ("train", {"learning_rate": "fast"}, ["learning_rate", "'fast'"]),
    *(("train", {"config": f"null_{name}.yaml"}, [name, "null", "leave it out"]) for name in NO_NULL),
    ("train", {"config": "number.yaml", "model_name_or_path": None}, ["model_name_or_path is '5'"]),
    ("train", {"config": "list.yaml", "model_name_or_path": None}, ["model_name_or_path", "['gym']", "one value"]),
    ("train", {"config": "rollout_number.yaml"}, ["rollout_func", "'5'", "import path"]),
    ("train", {"config": "rollout_list.yaml"}, ["rollout_func", "['a']", "one value"]),
    ("train", {"rollout_func": ""}, ["rollout_func", "''", "import path"]),
    ("train", {"rollout_func": "math.pi"}, ["rollout_func", "'math.pi'", "no function", "import path"]),
    ("train", {"reward_funcs": "math.pi"}, ["reward_funcs", "'math.pi'", "no function"]),
    (
        "train",
        {"config": "no_limit.yaml", "max_completion_length": None, "rollout_func": SHRINKING},
        ["max_completion_length", "None"],
    ),
    ("train", {"min_p": "2"}, ["min_p is 2", "between 0 and 1"]),
    ("train", {"top_p": "-0.5"}, ["top_p is -0.5", "between 0 and 1"]),
    ("train", {"max_steps": "0"}, ["max_steps is 0", "-1"]),
    ("train", {"output_dir": ""}, ["output_dir is ''"]),
    ("train", {"config": "text.yaml"}, ["text.yaml", "learning_rate", "'fast'"]),
    ("train", {"config": "half.yaml", "max_steps": None}, ["half.yaml", "max_steps", "1.5"]),
    ("train", {"config": "mapping.yaml"}, ["learning_rate", "{'a': 1}"]),
    ("train", {"config": "mixture.yaml", "dataset_name": None}, ["data_file"]),
    ("train", {"config": "mixture_of_nothing.yaml", "dataset_name": None}, ["datasets", "nowhere.jsonl"]),
    ("train", {"config": "mixture_of_empty.yaml", "dataset_name": None}, ["datasets", "empty.jsonl"]),
    *((command, {"config": "twice.yaml"}, ["twice.yaml", "'seed'", "1 and 3"]) for command in ("train", "eval")),
    ("train", {"length_control": "lesh"}, ["length_control", "'lesh'"]),
    *(
        ("train", {"length_control": name, "lambda_lr": "0.02"}, ["lambda_lr is 0.02", "set lambda_lr to null"])
        for name in ("leash_predictive", "leash_c")
    ),
    ("train", {"dataset_name": "splits", "dataset_train_split": "trian"}, ["dataset_train_split", "'trian'"]),
    ("train", {"chat_template_kwargs": "thinking"}, ["chat_template_kwargs", "'thinking'"]),
    ("train", {"reward_model_name_or_path": "./nowhere"}, ["reward_model_name_or_path", "./nowhere"]),
    ("eval", {"config": "text_eval.yaml", "num_samples": None}, ["num_samples", "'many'"]),
    ("eval", {"batch_size": "0"}, ["batch_size", "0"]),
    ("eval", {"dtype": "float17"}, ["dtype", "'float17'"]),
]
CASES = [
    *(
        (name, *rest)
        for command, *rest in MISTAKES
        for name in (("train", "eval") if command == "every" else (command,))
    ),
    ("filter", {"MODEL": "./nowhere"}, ["./nowhere", "no such folder"]),  # shares what loads with eval
    ("filter", {"DATA": "null.jsonl"}, ["row 40", "prompt", "None"]),
    ("filter", {"output_dir": "a_file/run"}, ["output_dir", "a_file/run"]),
]


def words(command: str, changes: dict) -> list[str]:
    """A command line that is right but for the changes."""
    names = {"MODEL": MODEL[command], "DATA": DATA[command]}
    options = {**OPTIONS[command], **{names.get(name, name): value for name, value in changes.items()}}
    return [command, *(word for name, value in options.items() if value is not None for word in (f"--{name}", value))]


def case_id(case) -> str:
    return "-".join([case[0], *(f"{name}={value}" for name, value in case[1].items())])


@pytest.mark.parametrize(("command", "changes", "parts"), CASES, ids=map(case_id, CASES))
def test_a_mistake_is_one_line(command, changes, parts, files, tmp_path, capsys, monkeypatch):
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
    named = [*parts, *(MODEL[command] for name in changes if name == "MODEL" and parts != ["chat_template"])]
    assert [part for part in named if part not in line] == []
    assert len(line) < 1000


def test_debugging_keeps_the_traceback_and_the_line_comes_last(files, capsys, monkeypatch):
    monkeypatch.chdir(files)
    assert main([*words("train", {"MODEL": "no_weights"}), "--log_level", "debug"]) == 2
    error = capsys.readouterr().err
    assert "Traceback" in error
    assert error.rstrip("\n").split("\n")[-1].startswith("leash train: model_name_or_path is 'no_weights'")


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


def test_a_folder_that_can_be_made_is_not_made(tmp_path):
    check_writable(tmp_path / "not" / "yet")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("field", "value"),
    [("loss_type", "dapoo"), ("scale_rewards", "groups"), ("per_device_train_batch_size", 0), ("num_generations", 1)],
)
def test_python_hears_of_it_before_anything_is_generated(field, value, make_args):
    with pytest.raises(ValueError, match=f"{field} is {value!r}, but must be"):
        make_args(**{field: value})


@pytest.mark.parametrize("scale", [True, False, "group", "batch", "none"])
def test_every_scale_of_trl_is_taken(scale, make_args):
    make_args(scale_rewards=scale)


def test_numbers_as_golds_train_as_they_are_evaluated(files, tmp_path, make_args):
    from leash_trl.cli.train import load_training_data

    (tmp_path / "numbers.jsonl").write_text('{"prompt": "x", "solution": 4}\n')
    script_args, _, _, dataset_args = parse(words("train", {"DATA": str(tmp_path / "numbers.jsonl")})[1:])
    (row,) = load_training_data(script_args, dataset_args)["train"]
    assert row["solution"] == "4"


def test_no_in_yaml_means_no_strategy(tmp_path):
    names = ("eval_strategy", "logging_strategy", "save_strategy")
    (tmp_path / "no.yaml").write_text("".join(f"{name}: no\n" for name in names))
    given = [word for name, value in TRAIN.items() for word in (f"--{name}", value)]
    training_args = parse(["--config", str(tmp_path / "no.yaml"), *given])[1]
    assert [getattr(training_args, name) for name in names] == ["no"] * 3


def test_an_import_that_fails_in_training_keeps_its_traceback(files, monkeypatch, tmp_path):
    (tmp_path / "late_import.py").write_text(
        "def reward(completions, **kwargs):\n    import no_such_package_of_mine\n"
    )
    monkeypatch.chdir(files)
    monkeypatch.syspath_prepend(tmp_path)
    given = {**TRAIN, "reward_funcs": "late_import.reward", "output_dir": str(tmp_path / "run")}
    with pytest.raises(ImportError, match="no_such_package_of_mine"):
        main(["train", *(word for name, value in given.items() for word in (f"--{name}", value))])
