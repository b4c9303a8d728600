"""`leash train`: from files to a trained model, and what stops it."""

import errno
import json

import pytest

from leash_trl.cli.main import main
from leash_trl.cli.train import _checkpoint_to_resume
from leash_trl.cli.training_arguments import arguments_of, given_fields
from leash_trl.engines.checkpoint_path import length_control_state
from leash_trl.trainer.leash_grpo_trainer import LeashGRPOTrainer


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Two steps on eight questions with a reward of one's own, of which `my_rewards.py` holds the code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", "tensorboard")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "my_rewards", raising=False)
    rows = [json.dumps({"prompt": f"{i} + 1 = ?", "solution": str(i + 1)}) for i in range(1, 9)]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    (tmp_path / "my_rewards.py").write_text("def even(prompts, **kwargs):\n    return [1.0 for _ in prompts]\n")
    words = "train --model_name_or_path gym --dataset_name rows.jsonl --output_dir run --use_cpu true --bf16 false "
    words += "--target_length 10 "
    words += "--max_completion_length 16 --max_steps 2 --logging_steps 1 --gradient_checkpointing false "
    return [*words.split(), "--reward_funcs", "my_rewards.even"]


def test_training_from_a_file_with_a_reward_of_ones_own(command, tmp_path, capsys):
    assert main(command) == 0
    lam = length_control_state("run")["state"]["lambdas"].values()
    assert f"lambda={next(iter(lam)):.4g}" in capsys.readouterr().out
    history = json.loads((tmp_path / "run" / "trainer_state.json").read_text())["log_history"]
    assert "rewards/even/mean" in history[0]


@pytest.mark.parametrize(
    "code",
    [
        "def even(completions, **kwargs):\n    return {}['answer']\n",
        "from functools import partial\n\ndef own(key, **kwargs):\n    return {}[key]\n\neven = partial(own, 'answer')\n",  # noqa: E501
        "class Even:\n    __name__ = 'even'\n\n    def __call__(self, **kwargs):\n        return {}['answer']\n\n"
        "even = Even()\n",
    ],
    ids=["function", "partial", "object"],
)
def test_a_reward_that_raises_shows_its_own_frames_only(code, command, tmp_path, capsys):
    (tmp_path / "my_rewards.py").write_text(code)
    assert main(command) == 2
    error = capsys.readouterr().err
    trace = error[error.index("Traceback") :]
    assert "my_rewards.py" in trace
    assert "KeyError: 'answer'" in trace
    assert "leash_trl/" not in trace
    assert "grpo_trainer" not in trace
    assert trace.splitlines()[-1].startswith("leash train: ")


@pytest.mark.parametrize(
    ("stop", "exit_code", "named"),
    [
        (KeyboardInterrupt(), 130, "--resume_from_checkpoint true"),
        (OSError(errno.ENOSPC, "No space left on device"), 2, "--resume_from_checkpoint true"),
    ],
    ids=["Ctrl-C", "full disk"],
)
def test_what_stops_the_work_from_outside_says_how_to_go_on(stop, exit_code, named, command, capsys, monkeypatch):
    def fails(self, *args, **kwargs):
        raise stop

    monkeypatch.setattr(LeashGRPOTrainer, "train", fails)
    assert main(command) == exit_code
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert named in line
    assert "run" in line


def test_errors_of_the_work_itself_keep_their_traceback(command, monkeypatch):
    def fails(self, *args, **kwargs):
        raise ValueError("a bug")

    monkeypatch.setattr(LeashGRPOTrainer, "train", fails)
    with pytest.raises(ValueError, match="a bug"):
        main(command)


def test_the_card_of_prompts_that_came_as_messages_asks_without_a_suffix(command, tmp_path):
    rows = [{"prompt": [{"role": "user", "content": f"{i} + 1 = ?"}], "solution": "2"} for i in range(8)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert main(command) == 0
    card = (tmp_path / "run" / "README.md").read_text()
    assert 'question = "What is the sum of the first 20 odd numbers?"\n' in card


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--config", "nowhere.yaml"], "nowhere.yaml"),
        (["--target_length", "null"], "target_length"),
        (["--target_length", "30"], "target_length is 30"),
        (["--reward_funcs", "maths_reward"], "maths_reward"),
        (["--resume_from_checkpoint", "true"], "checkpoint"),
    ],
)
def test_mistakes_are_one_line(options, named, command, capsys):
    assert main([*command, *options]) == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert line.startswith("leash train: ")
    assert named in line


@pytest.mark.parametrize(("word", "found"), [("true", True), ("True", True), ("false", False), ("x", "x")])
def test_true_and_false_on_a_command_line_are_no_folders(word, found, command):
    _, args, *_ = arguments_of(given_fields([*command[1:], "--resume_from_checkpoint", word]))
    assert _checkpoint_to_resume(args) == found
