"""The command line: help, errors, and the gym from recipe to figure."""

import json
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from leash_trl.cli.main import COMMANDS, main
from leash_trl.engines.checkpoint_path import length_control_state
from leash_trl.gym.dataset import SIZES


RECIPES = Path(__file__).parent.parent / "recipes"


@pytest.fixture(autouse=True)
def small_gym(monkeypatch):
    """Fewer problems to train on: each command reads and checks them all."""
    monkeypatch.setitem(SIZES, "train", 256)


def test_help_lists_every_command(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert [name for name in COMMANDS if name not in text] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    assert f"leash {command}" in capsys.readouterr().out


def test_module_form_works():
    run = subprocess.run([sys.executable, "-m", "leash_trl", "--version"], capture_output=True, text=True, check=True)
    assert re.fullmatch(r"leash-trl \d+\.\d+\.\d+\n", run.stdout)


GYM = ["--model_name_or_path", "gym", "--dataset_name", "gym", "--use_cpu", "true", "--bf16", "false"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config", "nowhere.yaml"], "nowhere.yaml: no such file"),
        (GYM, "target_length is None"),
        ([*GYM, "--target_length", "40", "--max_completion_length", "30"], "target_length is 40"),
        ([*GYM, "--target_length", "40", "--reward_funcs", "maths_reward"], "cannot load 'maths_reward'"),
        ([*GYM, "--target_length", "40", "--resume_from_checkpoint", "true"], "no whole checkpoint"),
        (
            [*GYM, "--target_length", "40", "--per_device_train_batch_size", "80000"],
            "takes 10000",
        ),
        (
            ["--model_name_or_path", "gym", "--target_length", "40", "--use_cpu", "true", "--bf16", "false"],
            "dataset_name",
        ),
    ],
)
def test_mistakes_are_one_line(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", *arguments]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("leash train: ")
    assert message in error


def test_a_warning_of_training_is_one_line_without_our_source(monkeypatch):
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    main(["train"])
    text = warnings.formatwarning("too hot", UserWarning, "/a/place.py", 7, "source()")
    assert text.strip() == "leash train: warning: too hot"


def test_unknown_recipe_keys_are_errors(tmp_path, capsys):
    recipe = tmp_path / "typo.yaml"
    recipe.write_text("model_name_or_path: gym\ndataset_name: gym\ntarget_lenght: 40\n")
    assert main(["train", "--config", str(recipe)]) == 2
    assert "unknown key 'target_lenght', did you mean target_length?" in capsys.readouterr().err


def test_missing_columns_are_named(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.jsonl").write_text(json.dumps({"prompt": "1 + 1 = ?", "answer": "2"}) + "\n")
    arguments = ["--model_name_or_path", "gym", "--dataset_name", "data", "--use_cpu", "true", "--bf16", "false"]
    assert main(["train", *arguments, "--target_length", "40"]) == 2
    assert "columns prompt, answer, but lacks solution" in capsys.readouterr().err


def test_train_from_local_files_with_a_reward_of_ones_own(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "tensorboard"))
    (tmp_path / "my_rewards.py").write_text(
        "def even(completions, **kwargs):\n    return [1.0 for _ in completions]\n"
    )
    (tmp_path / "data").mkdir()
    rows = [json.dumps({"prompt": f"{i} + 1 = ?"}) for i in range(1, 9)]
    (tmp_path / "data" / "train.jsonl").write_text("\n".join(rows))
    arguments = ["--model_name_or_path", "gym", "--dataset_name", "data", "--use_cpu", "true", "--bf16", "false"]
    arguments += ["--target_length", "10", "--max_completion_length", "16", "--max_steps", "2", "--output_dir", "run"]
    arguments += ["--reward_funcs", "my_rewards.even", "--prompt_suffix", " = ?", "--logging_steps", "1"]
    arguments += ["--gradient_checkpointing", "false"]
    assert main(["train", *arguments]) == 0
    (lam,) = length_control_state("run")["state"]["lambdas"].values()
    assert f"lambda={lam:.4g}" in capsys.readouterr().out
    history = json.loads((tmp_path / "run" / "trainer_state.json").read_text())["log_history"]
    assert "rewards/even/mean" in history[0]


def test_errors_of_the_work_itself_keep_their_traceback(tmp_path, monkeypatch):
    from leash_trl.trainer.leash_grpo_trainer import LeashGRPOTrainer

    def fails(self, *args, **kwargs):
        raise ValueError("a bug")

    monkeypatch.setattr(LeashGRPOTrainer, "train", fails)
    with pytest.raises(ValueError, match="a bug"):
        main(["train", *GYM, "--target_length", "40", "--output_dir", str(tmp_path)])


def test_a_split_that_is_not_there_is_named(tmp_path, capsys):
    arguments = [*GYM, "--target_length", "40", "--output_dir", str(tmp_path), "--dataset_train_split", "training"]
    assert main(["train", *arguments]) == 2
    assert "dataset_train_split is 'training'" in capsys.readouterr().err
