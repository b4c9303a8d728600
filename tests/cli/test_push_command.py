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
    folder = save(tmp_path / "short-model", 2, **{"notes.txt": b"hf_" + b"t" * 30})
    for step in (1, 2, 3):
        save_checkpoint(folder, step)
    (folder / "checkpoint-3" / "trainer_state.json").unlink()
    return folder


def evaluation(folder, model, label, tokens):
    rows = [[said(tokens, index % 2 == 0)] for index in range(30)]
    return str(write_evaluation(folder, label, {"aime24": rows}, model=model))


def push(*argv):
    return main(["push", *map(str, argv)])


def test_a_run_becomes_a_repository_with_card_and_results(hub, run, tmp_path, capsys):
    ours = evaluation(tmp_path / "ours", run, "ours", 8)
    base = evaluation(tmp_path / "base", "somewhere/base", "base", 16)
    given = ["--repo", "me/short", "--checkpoints", "last", "--evaluation", ours, "--baseline", base]
    assert push(run, *given) == 0
    assert "/me/short/commit/" in capsys.readouterr().out
    assert push(run, *given) == 0
    assert len(hub.commits("me/short")[1:]) == 1  # once, with everything
    files = hub.files("me/short")
    model = {"model.safetensors", "config.json", "leash_recipe.yaml", "trainer_state.json", "training_curves.png"}
    assert model | {"README.md", "tokenizer.json"} <= files.keys()
    assert json.loads(files["last-checkpoint/trainer_state.json"])["global_step"] == 2
    assert "last-checkpoint/optimizer.pt" in files
    assert not [name for name in files if name.startswith("checkpoint-") or "notes" in name or name == "optimizer.pt"]
    card = files["README.md"].decode()
    assert "| ours" in card
    assert "-50.0" in card  # 8 tokens against 16
    # an evaluation that is no longer given leaves the card, which alone changes
    assert push(run, "--repo", "me/short") == 0
    assert "| ours" not in hub.files("me/short")["README.md"].decode()
    assert {**hub.files("me/short"), "README.md": b""} == {**files, "README.md": b""}


def test_without_a_repository_the_files_are_listed_of_checkpoints_those_that_are_complete(run, capsys):
    assert push(run, "--checkpoints", "all") == 0
    names = capsys.readouterr().out.split()
    assert {"model.safetensors", "checkpoint-1/optimizer.pt", "checkpoint-2/model.safetensors"} <= set(names)
    assert not [name for name in names if name.startswith("checkpoint-3") or "notes" in name]


def test_a_stopped_push_goes_on_to_a_private_branch(hub, run, capsys):
    hub.fail("/commit/", 0)
    given = ["--repo", "me/short", "--private", "--revision", "v1"]
    assert push(run, *given) == 2
    assert "me/short" in capsys.readouterr().err
    assert push(run, *given) == 0
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
    adapter = {"adapter_config.json": json.dumps({"base_model_name_or_path": str(base)}).encode()}
    save(run, 2, **adapter, **{"adapter_model.safetensors": b"a"})
    assert push(run, "--repo", "me/x") == 0
    assert str(base) in capsys.readouterr().err
    card = hub.files("me/x")["README.md"].decode()
    assert "library_name: peft" in card
    assert "leash merge" in card


def test_what_cannot_be_pushed_is_refused_in_one_line(run, tmp_path, capsys):
    other = evaluation(tmp_path / "e", "deepseek-ai/another", "other", 8)
    shutil.copytree(run / "checkpoint-1", tmp_path / "killed" / "checkpoint-1")
    save(tmp_path / "plain", 2, **{"trainer_state.json": b"{}"})
    shutil.copytree(run, tmp_path / "done", ignore=shutil.ignore_patterns("checkpoint-*"))
    for folder, options, named in [
        (run, ["--repo", "a/b/c"], "a/b/c"),
        (run, ["--evaluation", "nowhere"], "nowhere"),
        (run, ["--evaluation", other], "deepseek-ai/another"),
        (tmp_path / "done", ["--checkpoints", "last"], "last"),
        *((tmp_path / name, [], str(tmp_path / name)) for name in ("killed", "plain", "nowhere")),
    ]:
        assert push(folder, *options) == 2
        (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("leash push: ")]
        assert named in line
