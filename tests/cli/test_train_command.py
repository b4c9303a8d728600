"""`leash train`: from files to a trained model, and what stops it."""

import errno
import json
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import yaml
from published_rows import user, write_rows

from leash_trl.cli.commands.train import build_trainer, checkpoint_to_resume, with_used_suffix
from leash_trl.cli.main import main
from leash_trl.cli.training_arguments import arguments_of, fields_of_command_line
from leash_trl.data import BOXED_SUFFIX
from leash_trl.trainer.leash_grpo_trainer import LeashGRPOTrainer


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Two steps on eight questions with a reward of one's own, of which `my_rewards.py` holds the code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", "tensorboard")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_rewards", raising=False)
    write_rows(tmp_path / "rows.jsonl", [{"prompt": f"{i} + 1 = ?", "solution": str(i + 1)} for i in range(1, 9)])
    Path("my_rewards.py").write_text("def even(prompts, **kwargs):\n    return [1.0 for _ in prompts]\n")
    words = "train --model_name_or_path gym --dataset_name rows.jsonl --output_dir run --use_cpu true --bf16 false "
    words += "--target_length 10 --reward_funcs my_rewards.even "
    words += "--max_completion_length 16 --max_steps 2 --logging_steps 1 --gradient_checkpointing false"
    return words.split()


def training_log():
    return json.loads(Path("run/trainer_state.json").read_text())["log_history"]


def saved_recipe():
    return yaml.safe_load(Path("run/leash_recipe.yaml").read_text())


def test_training_from_a_file_with_a_reward_of_ones_own(command, capsys):
    assert main(command) == 0
    assert "rewards/even/mean" in training_log()[0]
    assert "leash report run" in capsys.readouterr().out.strip().splitlines()[-1]
    assert Path("run/model.safetensors").is_file()
    assert Path("run/training_curves.png").is_file()
    fields = {"target_length": 10, "reward_funcs": ["my_rewards.even"], "dataset_name": "rows.jsonl"}
    # nothing was appended, since the reward grades no mathematics
    assert {**fields, "prompt_suffix": ""}.items() <= saved_recipe().items()


@pytest.mark.parametrize(
    ("option", "prompt", "expected"),
    [
        ({}, f"1 + 1 = ?{BOXED_SUFFIX}", {"prompt_suffix": BOXED_SUFFIX}),
        # messages stay as they are: a default is not recorded, and an option without effect is empty
        ({}, user("1 + 1 = ?"), {}),
        ({"prompt_suffix": " Be brief."}, user("1 + 1 = ?"), {"prompt_suffix": ""}),
    ],
    ids=["text", "messages", "option for messages"],
)
def test_the_recipe_records_the_suffix_that_prompts_got(option, prompt, expected):
    suffix = option.get("prompt_suffix", BOXED_SUFFIX)
    assert with_used_suffix({"seed": 1, **option}, suffix, prompt) == {"seed": 1, **expected}


def test_an_adapter_and_four_bits_reach_the_trainer(command, monkeypatch):
    trainer_class = Mock(side_effect=InterruptedError)
    monkeypatch.setattr("leash_trl.cli.commands.train.LeashGRPOTrainer", trainer_class)
    words = [*command[1:], "--use_peft", "true", "--lora_r", "8", "--load_in_4bit", "true"]
    with pytest.raises(InterruptedError):
        build_trainer(*arguments_of(fields_of_command_line(words)))
    arguments = trainer_class.call_args.kwargs
    assert (arguments["peft_config"].r, arguments["quantization_config"].load_in_4bit) == (8, True)


@pytest.mark.parametrize(
    ("stop", "exit_code"),
    [
        (KeyboardInterrupt(), 130),
        (OSError(errno.ENOSPC, "No space left on device"), 2),
        (FloatingPointError("in run with --resume_from_checkpoint true"), 2),
        (ValueError("a bug"), None),  # keeps its traceback
    ],
    ids=["Ctrl-C", "full disk", "weights", "bug"],
)
def test_what_stops_the_work_from_outside_says_how_to_go_on(stop, exit_code, command, capsys, monkeypatch):
    def fails(self, *args, **kwargs):
        raise stop

    monkeypatch.setattr(LeashGRPOTrainer, "train", fails)
    if exit_code is None:
        with pytest.raises(ValueError, match="a bug"):
            main(command)
        return
    assert main(command) == exit_code
    assert "in run with --resume_from_checkpoint true" in capsys.readouterr().err.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("word", "checkpoint"),
    [
        ("true", True),
        ("True", True),
        ("false", False),
        ("x", "x"),
    ],
)
def test_true_and_false_on_a_command_line_are_no_checkpoints(word, checkpoint, command):
    Path("run").mkdir()
    Path("x").mkdir()
    _, args, *_ = arguments_of(fields_of_command_line([*command[1:], "--resume_from_checkpoint", word]))
    assert checkpoint_to_resume(args) == checkpoint


def test_a_run_in_the_folder_is_not_overwritten(command, capsys):
    Path("run/checkpoint-1").mkdir(parents=True)
    Path("run/checkpoint-1/trainer_state.json").write_text("{}")
    assert main(command) == 2
    assert "resume_from_checkpoint" in capsys.readouterr().err.splitlines()[-1]
