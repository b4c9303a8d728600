"""`leash push`: a run on disk becomes a repository, against the real Hub client."""

import json
import shutil

import killable_run
import pytest
import yaml
from sampled_run import completion, problem, write_run

from leash_trl.cli.main import main
from leash_trl.hub.checkpoint_files import run_files


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory, tiny_model_path):
    """Two steps of training with a checkpoint each, saved as `leash train` does."""
    folder = tmp_path_factory.mktemp("push") / "short-model"
    trainer = killable_run.make_trainer(tiny_model_path, str(folder), max_steps=2, save_steps=1)
    trainer.train()
    trainer.save_state()
    trainer.save_model()
    return folder


@pytest.fixture
def hub(loopback_hub):
    with loopback_hub.online():
        yield loopback_hub


def evaluation(folder, model, label, tokens):
    rows = [problem(index, completion("1", tokens, index % 2 == 0)) for index in range(30)]
    write_run(folder, {"aime24": rows}, label=label)
    run = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**run, "model": str(model)}))
    return str(folder)


def push(*argv):
    return main(["push", *map(str, argv)])


def test_a_run_becomes_a_repository_with_card_and_results(hub, run_folder, tmp_path, capsys):
    ours = evaluation(tmp_path / "ours", run_folder, "ours", 8)
    base = evaluation(tmp_path / "base", "somewhere/base", "base", 16)
    given = ["--repo", "me/short", "--checkpoints", "last", "--evaluation", ours, "--baseline", base]
    assert push(run_folder, *given) == 0
    assert "/me/short/commit/" in capsys.readouterr().out
    assert push(run_folder, *given) == 0
    assert [commit.message for commit in hub.commits("me/short")[1:]] == ["Upload model"]  # once, with everything
    files = hub.files("me/short")
    for name in ("model.safetensors", "leash_state.json", "leash_recipe.yaml", "training_curves.png"):
        assert name in files
    assert json.loads(files["last-checkpoint/trainer_state.json"])["global_step"] == 2
    assert not [name for name in files if name.startswith("checkpoint-")]
    entries = yaml.safe_load(files[".eval_results/leash_trl.yaml"])
    assert (entries[0]["dataset"]["id"], entries[0]["value"]) == ("HuggingFaceH4/aime_2024", 50.0)
    card = files["README.md"].decode()
    assert "| ours" in card
    assert "-50.0" in card  # 8 tokens against 16
    metadata = yaml.safe_load(card.split("---")[1])
    metrics = {metric["type"]: metric["value"] for metric in metadata["model-index"][0]["results"][0]["metrics"]}
    assert metrics == {"accuracy": 50.0, "mean_tokens": 8.0}
    # an evaluation that is no longer given leaves the Hub
    assert push(run_folder, "--repo", "me/short") == 0
    assert hub.commits("me/short")[-1].changed == (".eval_results/leash_trl.yaml", "README.md")


def test_all_checkpoints_that_are_complete_are_pushed(run_folder, tmp_path):
    run = shutil.copytree(run_folder, tmp_path / "run")
    (
        shutil.copytree(run / "checkpoint-1", run / "checkpoint-4") / "trainer_state.json"
    ).unlink()  # killed while saving
    files = run_files(run, "all")
    assert {name.split("/")[0] for name in files if "/" in name} == {"checkpoint-1", "checkpoint-2"}
    assert {"model.safetensors", "checkpoint-1/optimizer.pt", "checkpoint-2/model.safetensors"} <= files.keys()


def test_a_stopped_push_goes_on_without_sending_again_to_a_private_branch(hub, run_folder, capsys):
    hub.fail("POST", r"/commit/", status=400)
    given = ["--repo", "me/short", "--private", "--revision", "v1"]
    assert push(run_folder, *given) == 2
    assert "the same command goes on" in capsys.readouterr().err
    sent = sum(request.method == "PUT" for request in hub.requests)
    assert push(run_folder, *given) == 0
    assert sum(request.method == "PUT" for request in hub.requests) == sent > 0
    assert "model.safetensors" in hub.files("me/short", "v1")
    assert "model.safetensors" not in hub.files("me/short")
    created = next(request for request in hub.requests if request.path == "/api/repos/create")
    assert b"private" in created.body


def test_a_checkpoint_can_be_pushed_as_a_model(hub, run_folder):
    assert push(run_folder / "checkpoint-1", "--repo", "me/early") == 0
    files = hub.files("me/early")
    assert json.loads(files["leash_state.json"])["global_step"] == 1
    assert "optimizer.pt" not in files


def test_a_dry_run_touches_no_hub(run_folder, capsys):
    assert push(run_folder, "--dry_run", "--checkpoints", "last") == 0
    out = capsys.readouterr().out
    assert "last-checkpoint/optimizer.pt" in out
    assert "Nothing was pushed" in out


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "--repo owner/name is needed"),
        (["--repo", "x", "--dry_run"], "--repo is 'x', but must be owner/name"),
        (["--repo", "a/b/c", "--dry_run"], "--repo is 'a/b/c', but must be owner/name"),
        (["--repo", "me/x", "--baseline", "b"], "give both"),
        (["--repo", "me/x", "--evaluation", "nowhere"], "nowhere"),
    ],
)
def test_what_is_missing_is_named(run_folder, arguments, problem, capsys):
    assert push(run_folder, *arguments) == 2
    assert problem in capsys.readouterr().err


def test_an_evaluation_of_another_model_is_refused(run_folder, tmp_path, capsys):
    other = evaluation(tmp_path / "e", "deepseek-ai/another", "other", 8)
    assert push(run_folder, "--repo", "me/x", "--evaluation", other) == 2
    assert f"leash eval --model_name_or_path {run_folder}" in capsys.readouterr().err


def test_folders_without_a_model_say_what_to_push(run_folder, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert push(tmp_path / "empty", "--repo", "me/x") == 2
    assert "must be the output folder of leash train" in capsys.readouterr().err
    shutil.copytree(run_folder / "checkpoint-1", tmp_path / "killed" / "checkpoint-1")
    assert push(tmp_path / "killed", "--repo", "me/x") == 2
    assert "has not ended; push its last checkpoint" in capsys.readouterr().err
    assert push(tmp_path / "nowhere", "--repo", "me/x") == 2


def test_without_a_token_the_message_says_how_to_log_in(hub, run_folder, capsys, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "")
    assert push(run_folder, "--repo", "me/x") == 2
    assert "hf auth login" in capsys.readouterr().err
