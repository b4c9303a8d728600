"""A training run that pushes: one commit a save, all of it usable by others, and no token anywhere."""

from pathlib import Path

import killable_run
import pytest
import yaml

from leash_trl.cli.main import main
from leash_trl.figures.training import write_curves_figure


def test_every_save_and_the_end_are_commits_and_the_token_is_nowhere(hub, tmp_path, tiny_model_path, capsys, caplog):
    folder = tmp_path / "run"
    settings = {"max_steps": 2, "save_steps": 1, "report_to": "tensorboard", "log_completions": True}
    trainer = killable_run.make_trainer(
        tiny_model_path, str(folder), hub_model_id="me/x", hub_token=hub.token, **settings
    )
    trainer.publisher.draw = write_curves_figure
    trainer.train()
    trainer.push_to_hub()
    printed = capsys.readouterr()
    files = hub.files("me/x")
    assert hub.commits("me/x")[-1].message == "End of training"
    assert {"last-checkpoint/optimizer.pt", "README.md", "training_curves.png", "leash_recipe.yaml"} <= files.keys()
    assert {"README.md", "training_curves.png"} <= hub.commits("me/x")[1].files.keys()  # of the first checkpoint
    assert {name.split("/")[0] for name in files if "tfevents" in name} == {"runs"}
    resumed = killable_run.make_trainer(tiny_model_path, str(tmp_path / "resumed"), max_steps=3)
    resumed.train(resume_from_checkpoint="hf://me/x/last-checkpoint")
    assert resumed.state.global_step == 3
    assert resumed.state.log_history[:2] == trainer.state.log_history[:2]
    assert not hub.requests_with(hub.token)
    assert hub.token not in printed.out + printed.err + caplog.text
    assert not [path for path in folder.rglob("*") if path.is_file() and hub.token.encode() in path.read_bytes()]


def test_leash_train_pushes_no_secret_and_no_address_of_its_own(hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    smoke = Path(__file__).parents[2] / "recipes" / "gym" / "smoke.yaml"
    short = {**yaml.safe_load(smoke.read_text()), "max_completion_length": 64, "env": {"MY_API_KEY": "key-of-mine"}}
    Path("mine.yaml").write_text(yaml.safe_dump(short))
    options = "--config mine.yaml --max_steps 1 --output_dir run --push_to_hub true --hub_model_id me/x --hub_token"
    assert main(["train", *options.split(), hub.token]) == 0
    assert not hub.requests_with("key-of-mine")
    assert not hub.requests_with(hub.token)
    assert not {"push_to_hub", "hub_model_id"} & yaml.safe_load(hub.files("me/x")["leash_recipe.yaml"]).keys()


def test_without_write_access_nothing_is_trained(hub, tmp_path, tiny_model_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "")
    with pytest.raises(ValueError, match="me/x"):
        killable_run.make_trainer(tiny_model_path, str(tmp_path / "run"), hub_model_id="me/x")
