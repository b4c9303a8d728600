"""`leash push`: a run on disk becomes a repository, against the real Hub client."""

import json
import shutil

import pytest
from saved_run import save, save_checkpoint
from written_runs import said, write_evaluation

from leash_trl.cli.main import main


@pytest.fixture
def run(tmp_path):
    """A finished run of two steps with a checkpoint each, and a third that it was killed in."""
    folder = save(tmp_path / "short-model", 2)
    (folder / "notes.txt").write_text("hf_" + "t" * 30)
    for step in (1, 2, 3):
        save_checkpoint(folder, step)
    (folder / "checkpoint-3" / "trainer_state.json").unlink()
    return folder


def evaluation(folder, model, label="ours", tokens=8):
    rows = [[said(tokens, index % 2 == 0)] for index in range(30)]
    return str(write_evaluation(folder, label, {"aime24": rows}, model=model))


def push(*argv):
    return main(["push", *map(str, argv)])


def test_a_run_becomes_a_repository_with_its_last_checkpoint(hub, run, capsys):
    assert push(run, "--repo", "me/short", "--checkpoints", "last") == 0
    assert "/me/short/commit/" in capsys.readouterr().out
    files = hub.files("me/short")
    model = {"model.safetensors", "config.json", "leash_recipe.yaml", "trainer_state.json", "training_curves.png"}
    assert model | {"README.md", "tokenizer.json", "last-checkpoint/optimizer.pt"} <= files.keys()
    assert json.loads(files["last-checkpoint/trainer_state.json"])["global_step"] == 2
    assert not [name for name in files if name.startswith("checkpoint-") or "notes" in name or name == "optimizer.pt"]


def test_a_second_push_commits_nothing_and_an_evaluation_that_is_left_out_leaves_the_card(hub, run, tmp_path):
    evaluations = ["--evaluation", evaluation(tmp_path / "ours", run)]
    evaluations += ["--baseline", evaluation(tmp_path / "base", "somewhere/base", label="base", tokens=16)]
    for _ in range(2):
        assert push(run, "--repo", "me/short", *evaluations) == 0
    assert len(hub.commits("me/short")[1:]) == 1  # once, with everything
    files = hub.files("me/short")
    card = files["README.md"].decode()
    assert "| ours" in card
    assert "-50.0" in card  # 8 tokens against 16
    assert push(run, "--repo", "me/short") == 0
    assert "| ours" not in hub.files("me/short")["README.md"].decode()
    assert {**hub.files("me/short"), "README.md": b""} == {**files, "README.md": b""}


def test_all_checkpoints_that_are_complete_are_pushed(hub, run):
    assert push(run, "--repo", "me/short", "--checkpoints", "all") == 0
    names = hub.files("me/short")
    assert {"model.safetensors", "checkpoint-1/optimizer.pt", "checkpoint-2/model.safetensors"} <= set(names)
    assert not [name for name in names if name.startswith("checkpoint-3") or "notes" in name]


def test_a_stopped_push_goes_on_to_a_private_branch(hub, run, capsys):
    hub.fail("/commit/", 0)
    words = ["--repo", "me/short", "--private", "--revision", "v1"]
    assert push(run, *words) == 2
    assert "me/short" in capsys.readouterr().err
    assert push(run, *words) == 0
    assert "model.safetensors" in hub.files("me/short", "v1")
    assert "model.safetensors" not in hub.files("me/short")
    assert hub.private == {"me/short"}


def test_a_checkpoint_can_be_pushed_as_a_model(hub, run):
    assert push(run / "checkpoint-1", "--repo", "me/early") == 0
    files = hub.files("me/early")
    assert json.loads(files["trainer_state.json"])["global_step"] == 1
    assert "optimizer.pt" not in files


def test_an_adapter_of_a_local_base_is_pushed_with_a_warning(hub, run, tmp_path, capsys):
    base = save(tmp_path / "base", 0)
    config = json.dumps({"base_model_name_or_path": str(base)}).encode()
    files = {"adapter_config.json": config, "adapter_model.safetensors": b"a"}
    save(run, 2, **files)
    assert push(run, "--repo", "me/x") == 0
    assert str(base) in capsys.readouterr().err
    card = hub.files("me/x")["README.md"].decode()
    assert "library_name: peft" in card
    assert "leash merge" in card


@pytest.fixture
def folders(run, tmp_path):
    """Folders of which none can be pushed as the test asks."""
    shutil.copytree(run / "checkpoint-1", tmp_path / "killed" / "checkpoint-1")
    shutil.copytree(run, tmp_path / "done", ignore=shutil.ignore_patterns("checkpoint-*"))
    save(tmp_path / "plain", 2)
    (tmp_path / "plain" / "trainer_state.json").write_text("{}")
    evaluation(tmp_path / "other", "deepseek-ai/another")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("short-model --repo a/b/c", "a/b/c"),
        ("short-model --evaluation other", "deepseek-ai/another"),
        ("done --checkpoints last", "last"),
        ("killed", "killed"),
        ("plain", "plain"),
    ],
)
def test_what_cannot_be_pushed_is_refused_in_one_line(words, named, folders, capsys, monkeypatch):
    monkeypatch.chdir(folders)
    assert push("--repo", "me/x", *words.split()) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("leash push: ")]
    assert named in line
