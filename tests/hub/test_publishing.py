"""What a trainer publishes: recipe and card in every checkpoint, commits that others go on from, and no token."""

import contextlib
import io
import json
import logging
import multiprocessing
import os
import signal
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

import killable_run
import numpy as np
import pytest
import torch
import yaml
from loopback_hub import LoopbackHub
from peft import LoraConfig
from transformers import TrainerCallback

from leash_trl import LeashGRPOTrainer
from leash_trl.cli.main import main
from leash_trl.hub import publishing, repository


COMMIT = r"/api/models/me/x/commit/"
PUSHING = {"push_to_hub": True, "hub_model_id": "me/x", "save_strategy": "steps", "save_steps": 1}


class WaitForPush(TrainerCallback):
    """Lets each push end before the next begins."""

    def __init__(self, trainer):
        self.trainer = trainer

    def on_save(self, args, state, control, **kwargs):
        self.trainer.publishing.pushes.wait()


@pytest.fixture
def hub(loopback_hub, monkeypatch):
    monkeypatch.setattr(repository, "sleep", lambda seconds: None)
    with loopback_hub.online():
        yield loopback_hub


@dataclass
class Pushed:
    hub: LoopbackHub
    trainer: LeashGRPOTrainer
    folder: Path
    said: str


@pytest.fixture(scope="module")
def pushed(tmp_path_factory, tiny_model_path):
    """A run of two steps and its push at the end; the Hub refused the push of the first step."""
    folder, said = tmp_path_factory.mktemp("pushed") / "run", io.StringIO()
    handler = logging.StreamHandler(said)
    with LoopbackHub(tmp_path_factory.mktemp("hub")) as hub, hub.online():
        hub.fail("POST", COMMIT, status=403)
        tracked = {"report_to": "tensorboard", "log_completions": True, "hub_token": hub.token}
        trainer = killable_run.make_trainer(
            tiny_model_path, str(folder), hub_model_id="me/x", max_steps=2, save_steps=1, **tracked
        )
        trainer.add_callback(WaitForPush(trainer))
        logging.getLogger("leash_trl").addHandler(handler)
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            trainer.train()
            trainer.push_to_hub()
        logging.getLogger("leash_trl").removeHandler(handler)
        yield Pushed(hub, trainer, folder, said.getvalue())


def messages(hub, revision="main"):
    return [commit.message for commit in hub.commits("me/x", revision)[1:]]


def step_of(files, folder=""):
    return json.loads(files[f"{folder}leash_state.json"])["global_step"]


def test_a_save_is_one_commit_with_checkpoint_model_recipe_card_and_curves(pushed):
    assert messages(pushed.hub) == ["Training in progress, step 2", "End of training"]
    files = pushed.hub.commits("me/x")[1].files
    assert step_of(files) == step_of(files, "last-checkpoint/") == 2
    for name in ("README.md", "training_curves.png", "leash_recipe.yaml", "tokenizer.json", "training_args.bin"):
        assert files[name] == files[f"last-checkpoint/{name}"]
    weights = (pushed.folder / "checkpoint-2" / "model.safetensors").read_bytes()
    assert files["model.safetensors"] == files["last-checkpoint/model.safetensors"] == weights
    assert "last-checkpoint/optimizer.pt" in files
    assert "optimizer.pt" not in files
    assert {name.split("/")[0] for name in files if "tfevents" in name} == {"runs"}
    card = files["README.md"].decode()
    lam = f"lambda {pushed.trainer.length_control.lam:.4g}"
    assert all(part in card for part in ("target_length: 12", "lambda_lr: 0.1", "2512.21540", lam))
    assert str(pushed.trainer.publishing.pushes.report) == "1 pushed"  # in the place of the first


def test_the_token_is_nowhere(pushed):
    written = [path for path in pushed.folder.rglob("*") if path.is_file()]
    assert len(written) > 20
    assert not [path for path in written if pushed.hub.token.encode() in path.read_bytes()]
    assert not pushed.hub.requests_with(pushed.hub.token)
    assert "pushing step 1 to me/x failed" in pushed.said
    assert pushed.hub.token not in pushed.said


def test_the_root_of_a_repository_gives_weights_and_lambda(pushed, make_trainer):
    trainer = make_trainer(max_steps=3)
    with pushed.hub.online(), pytest.warns(UserWarning, match="no optimizer state"):
        trainer.train(resume_from_checkpoint="hf://me/x")
    lams = [row["leash/lambda"] for row in trainer.state.log_history if "leash/lambda" in row]
    assert lams[-1] == pushed.trainer.length_control.lam


def test_the_push_of_a_model_is_one_commit_too_and_patient(hub, make_trainer, tmp_path):
    folder = tmp_path / "checkpoint-mine"  # no checkpoint, for all its name
    trainer = make_trainer(push_to_hub=True, hub_model_id="me/x", hub_revision="short", output_dir=str(folder))
    hub.fail("POST", COMMIT, status=503, times=2)
    trainer.model.add_model_tags(["theirs"])
    (folder / "_scratch").mkdir(parents=True)
    (folder / "_scratch" / "x.txt").write_text("mine")
    info = trainer.push_to_hub(commit_message="Done", dataset_name="me/data", tags=["mine"])
    assert messages(hub) == []
    assert messages(hub, "short") == ["Done"]
    assert info.oid == hub.commits("me/x", "short")[-1].oid
    files = hub.files("me/x", "short")
    assert "model.safetensors" in files
    assert not [name for name in files if "_scratch" in name]
    assert b"- mine" in files["README.md"]
    assert b"- theirs" in files["README.md"]
    assert trainer.push_to_hub(blocking=False).result().oid == hub.commits("me/x", "short")[-1].oid


def test_a_card_that_cannot_be_written_does_not_stop_training_nor_do_numbers_of_numpy(
    make_trainer, monkeypatch, caplog, tmp_path
):
    def broken(*args, **kwargs):
        raise RuntimeError("no fonts")

    monkeypatch.setattr(publishing, "write_model_card", broken)
    trainer = make_trainer(max_steps=1, save_strategy="steps", save_steps=1, learning_rate=np.float64(1e-3))
    trainer.train()
    assert trainer.state.global_step == 1
    assert "model card could not be written" in caplog.text
    assert "learning_rate: 0.001" in (tmp_path / "run" / "checkpoint-1" / "leash_recipe.yaml").read_text()
    with pytest.raises(RuntimeError, match="no fonts"):
        trainer.create_model_card()


def test_an_adapter_is_pushed_as_one_and_gone_on_with(hub, make_trainer, tmp_path, capsys):
    lora = {"peft_config": LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")}
    torch.manual_seed(0)  # older TRLs draw the adapter before they set the seed
    first = make_trainer(**PUSHING, max_steps=2, hub_strategy="checkpoint", **lora)
    first.train()
    files = hub.files("me/x")
    assert "adapter_model.safetensors" in files
    assert "model.safetensors" not in files
    assert b"library_name: peft" in files["last-checkpoint/README.md"]
    torch.manual_seed(0)
    whole = make_trainer(output_dir=str(tmp_path / "whole"), max_steps=4, **lora)
    whole.train()
    second = make_trainer(output_dir=str(tmp_path / "second"), max_steps=4, **lora)
    second.train(resume_from_checkpoint="hf://me/x/last-checkpoint")
    assert second.length_control.lam == whole.length_control.lam != 0.1
    for name, weights in whole.model.state_dict().items():
        assert weights.equal(second.model.state_dict()[name])
    first.save_model()
    assert main(["push", str(tmp_path / "run"), "--repo", "me/y"]) == 0
    assert "Others cannot load this adapter" in capsys.readouterr().err
    assert main(["merge", str(tmp_path / "run"), "--output_dir", str(tmp_path / "merged")]) == 0
    assert main(["push", str(tmp_path / "merged"), "--repo", "me/z"]) == 0
    assert "model.safetensors" in hub.files("me/z")
    assert b"library_name: transformers" in hub.files("me/z")["README.md"]


def train_and_push(model_path, output_dir, said):
    with said.open("wb", buffering=0) as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    sys.stdout, sys.stderr = open(1, "w", buffering=1), open(2, "w", buffering=1)  # noqa: SIM115
    killable_run.make_trainer(model_path, output_dir, hub_model_id="me/x", max_steps=5).train()


def test_a_run_killed_while_pushing_goes_on_from_the_hub(hub, tmp_path, tiny_model_path):
    """SIGKILL in the middle of the push of step 4: the Hub has step 2 whole, and another machine goes on from it."""
    said = tmp_path / "said.txt"
    # a fork, which does not import everything again; test_resume.py kills another program
    process = multiprocessing.get_context("fork").Process(
        target=train_and_push, args=(tiny_model_path, str(tmp_path / "killed"), said)
    )
    with hub.hold("POST", COMMIT) as first:
        process.start()
        first.wait(120)
        with hub.hold("POST", COMMIT) as second:
            first.release()
            second.wait(120)
            process.kill()
            process.join()
    assert process.exitcode == -signal.SIGKILL, said.read_text()
    assert messages(hub) == ["Training in progress, step 2"]
    assert "'loss'" in said.read_text()
    assert hub.token not in said.read_text()

    whole = killable_run.make_trainer(tiny_model_path, str(tmp_path / "whole"), max_steps=5)
    whole.train()
    resumed = killable_run.make_trainer(tiny_model_path, str(tmp_path / "resumed"), hub_model_id="me/x", max_steps=5)
    resumed.train(resume_from_checkpoint="hf://me/x/last-checkpoint")
    resumed.push_to_hub()
    assert resumed.length_control.lam == whole.length_control.lam != 0.1
    for name, weights in whole.model.state_dict().items():
        assert weights.equal(resumed.model.state_dict()[name])
    pushed = hub.files("me/x")
    assert step_of(pushed) == step_of(pushed, "last-checkpoint/") == 5
    assert pushed["model.safetensors"] == (tmp_path / "resumed" / "model.safetensors").read_bytes()


def test_without_write_access_nothing_is_trained(hub, make_trainer, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "")
    with pytest.raises(ValueError, match=r"push_to_hub: cannot write to me/x .*401.*hf auth login"):
        make_trainer(**PUSHING)


def test_an_error_that_quotes_the_token_does_not_show_it(hub, make_trainer):
    token = "hf_" + "b" * 30 + "\n"
    with pytest.raises(ValueError, match="cannot write to me/x") as caught:
        make_trainer(**PUSHING, hub_token=token)
    assert token.strip() not in "".join(traceback.format_exception(caught.value))


def test_leash_train_pushes_no_secret_and_no_address_of_its_own(hub, tmp_path, monkeypatch, capsys):
    """The recipe on the Hub repeats the run for others: it pushes nowhere, and holds no key of the first user's."""
    import huggingface_hub

    monkeypatch.chdir(tmp_path)
    smoke = Path(__file__).parent.parent / "recipes" / "gym" / "smoke.yaml"
    short = {**yaml.safe_load(smoke.read_text()), "max_completion_length": 64, "env": {"MY_API_KEY": "key-of-mine"}}
    Path("mine.yaml").write_text(yaml.safe_dump(short))
    push = ["--push_to_hub", "true", "--hub_model_id", "me/x", "--hub_token", hub.token]
    assert main(["train", "--config", "mine.yaml", *push, "--max_steps", "1", "--output_dir", "run"]) == 0
    assert "Hub repository me/x: 1 pushed" in capsys.readouterr().out
    assert not hub.requests_with("key-of-mine")
    assert not hub.requests_with(hub.token)
    assert not [path for path in Path("run").rglob("*") if path.is_file() and hub.token.encode() in path.read_bytes()]
    card = hub.files("me/x")["README.md"].decode()
    command = card.split("```bash\n")[1].split("```")[0].splitlines()
    assert command[0] == "hf download me/x leash_recipe.yaml --local-dir ."
    huggingface_hub.hf_hub_download("me/x", "leash_recipe.yaml", local_dir=".")
    before = len(hub.commits("me/x"))
    leash, *argv = " ".join(command[1:]).replace("\\", " ").split()
    assert leash == "leash"
    assert main(argv) == 0
    assert len(hub.commits("me/x")) == before
    assert json.loads(Path("runs/continued/trainer_state.json").read_text())["global_step"] == 2
