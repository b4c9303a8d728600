"""Pushing while training: whole commits, nothing lost where the Hub fails, no token anywhere; with the real client."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path

import pytest
import torch
from peft import LoraConfig

from leash_trl.hub import pushes, repository


COMMIT = r"/api/models/me/x/commit/"
PUSHING = {"push_to_hub": True, "hub_model_id": "me/x", "save_strategy": "steps", "save_steps": 1}


@pytest.fixture
def waits(monkeypatch):
    """The waits before further attempts, in seconds, none of which are waited for."""
    seconds = []
    monkeypatch.setattr(repository, "sleep", seconds.append)
    return seconds


@pytest.fixture
def hub(loopback_hub, waits):
    with loopback_hub.online():
        yield loopback_hub


def messages(hub, revision="main"):
    return [commit.message for commit in hub.commits("me/x", revision)[1:]]


def step_of(files, folder=""):
    return json.loads(files[f"{folder}leash_state.json"])["global_step"]


def wait_for_pushes(trainer):
    trainer.publishing.pushes.wait()


class InStep:
    """Waits after every save, so that each push has ended before the next begins."""

    @staticmethod
    def callback(trainer_of):
        from transformers import TrainerCallback

        class Wait(TrainerCallback):
            def on_save(self, args, state, control, **kwargs):
                wait_for_pushes(trainer_of())

        return Wait()


@pytest.fixture
def make_waiting_trainer(make_trainer):
    def make(**settings):
        made = []
        made.append(make_trainer(callbacks=[InStep.callback(lambda: made[0])], **{**PUSHING, **settings}))
        return made[0]

    return make


def test_every_save_is_one_commit_with_all_that_belongs_to_it(hub, make_waiting_trainer):
    trainer = make_waiting_trainer(max_steps=2, hub_strategy="checkpoint")
    trainer.train()
    trainer.push_to_hub()
    # the model at the end is that of the last step, so there is nothing to commit
    assert messages(hub) == ["Training in progress, step 1", "Training in progress, step 2"]
    for commit, step in zip(hub.commits("me/x")[1:], (1, 2), strict=True):
        files = commit.files
        assert step_of(files) == step_of(files, "last-checkpoint/") == step
        assert files["model.safetensors"] == files["last-checkpoint/model.safetensors"]
        for name in ("README.md", "training_curves.png", "leash_recipe.yaml", "tokenizer.json", "training_args.bin"):
            assert name in files
            assert files[name] == files[f"last-checkpoint/{name}"]
        assert "last-checkpoint/optimizer.pt" in files
        assert "optimizer.pt" not in files
    card = hub.files("me/x")["README.md"].decode()
    assert "target_length: 12" in card
    assert "lambda_lr: 0.1" in card
    assert f"lambda {trainer.length_control.lam:.4g}" in card
    assert "2512.21540" in card
    assert trainer.publishing.pushes.report.pushed == ["step 1", "step 2"]


def test_weights_that_go_to_two_places_are_sent_once(hub, make_waiting_trainer):
    make_waiting_trainer(max_steps=1, hub_strategy="checkpoint").train()
    uploads = [request.path.split("?")[0] for request in hub.requests if request.method == "PUT"]
    assert len(uploads) == len(set(uploads)) > 3


def test_the_pushed_weights_are_those_of_their_step(hub, make_waiting_trainer, tmp_path):
    make_waiting_trainer(max_steps=2).train()
    for commit, step in zip(hub.commits("me/x")[1:], (1, 2), strict=True):
        local = tmp_path / "run" / f"checkpoint-{step}" / "model.safetensors"
        assert commit.files["model.safetensors"] == local.read_bytes()


def test_every_checkpoint_keeps_its_folder_where_all_are_wanted(hub, make_waiting_trainer):
    make_waiting_trainer(max_steps=2, hub_strategy="all_checkpoints").train()
    files = hub.files("me/x")
    assert [step_of(files, f"checkpoint-{step}/") for step in (1, 2)] == [1, 2]


def test_what_a_checkpoint_no_longer_has_goes_from_the_hub_too(hub, make_waiting_trainer):
    # in the middle of a window of two steps there are unfinished rollouts, at its end none
    trainer = make_waiting_trainer(max_steps=2, steps_per_generation=2, hub_strategy="checkpoint")
    trainer.train()
    first, second = (commit.files for commit in hub.commits("me/x")[1:])
    assert "last-checkpoint/leash_rollouts_0.pt" in first
    assert "leash_rollouts_0.pt" not in first
    assert "last-checkpoint/leash_rollouts_0.pt" not in second


def test_a_busy_hub_is_asked_again(hub, make_waiting_trainer, waits):
    hub.fail("POST", COMMIT, status=503, times=2)
    trainer = make_waiting_trainer(max_steps=1)
    trainer.train()
    assert messages(hub) == ["Training in progress, step 1"]
    assert trainer.publishing.pushes.report.failed == {}
    assert waits == [*repository.SOON]


def test_what_is_made_up_for_leaves_the_newest_model_at_the_root(hub, make_waiting_trainer):
    hub.fail("POST", COMMIT, status=403, times=2)
    trainer = make_waiting_trainer(max_steps=2, hub_strategy="all_checkpoints")
    trainer.train()
    assert sorted(messages(hub)) == ["Training in progress, step 1", "Training in progress, step 2"]
    assert step_of(hub.files("me/x")) == 2
    assert {step_of(hub.files("me/x"), f"checkpoint-{step}/") for step in (1, 2)} == {1, 2}


def test_what_is_made_up_for_after_the_end_leaves_the_last_model_at_the_root(hub, make_waiting_trainer, tmp_path):
    hub.fail("POST", COMMIT, status=403, times=2)
    trainer = make_waiting_trainer(max_steps=1, hub_strategy="checkpoint")
    trainer.train()
    trainer.state.global_step = 7  # as if it had been trained on
    trainer.push_to_hub()
    assert messages(hub) == ["End of training", "Training in progress, step 1"]
    assert (step_of(hub.files("me/x")), step_of(hub.files("me/x"), "last-checkpoint/")) == (7, 1)
    assert not trainer.publishing.pushes.report.lost


def test_a_checkpoint_that_was_deleted_is_reported_and_never_pushed_in_part(hub, make_waiting_trainer):
    hub.fail("POST", COMMIT, status=403, times=1)
    trainer = make_waiting_trainer(max_steps=3, save_total_limit=1, hub_strategy="all_checkpoints")
    push_all, deleted = pushes.HubPushes.submit, []

    def submit(self, name, *args):
        if name == "step 2":
            deleted.append(shutil.rmtree(Path(trainer.args.output_dir) / "checkpoint-1"))
        push_all(self, name, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pushes.HubPushes, "submit", submit)
        trainer.train()
    assert deleted
    assert "save_total_limit deleted it" in trainer.publishing.pushes.report.lost["step 1"]
    assert not [name for name in hub.files("me/x") if name.startswith("checkpoint-1/")]
    assert "checkpoint-3/optimizer.pt" in hub.files("me/x")


def test_where_the_hub_is_away_the_end_of_training_does_not_wait_for_every_push(hub, make_waiting_trainer, waits):
    trainer = make_waiting_trainer(max_steps=4, hub_strategy="all_checkpoints")
    hub.drop("POST", COMMIT, times=999)
    trainer.train()
    assert set(trainer.publishing.pushes.report.lost) == {f"step {step}" for step in range(1, 5)}
    assert waits == [*(4 * repository.SOON), *repository.PATIENT]


def test_always_makes_a_commit_of_every_save(hub, make_trainer):
    trainer = make_trainer(**{**PUSHING, "max_steps": 4, "hub_always_push": True})
    trainer.train()
    assert messages(hub) == [f"Training in progress, step {step}" for step in range(1, 5)]
    assert [step_of(commit.files) for commit in hub.commits("me/x")[1:]] == [1, 2, 3, 4]


def test_files_of_another_model_leave_the_root(hub, make_waiting_trainer):
    import huggingface_hub

    huggingface_hub.create_repo("me/x")
    files = dict.fromkeys(("adapter_model.safetensors", "notes.txt", ".eval_results/leash_trl.yaml"), b"old")
    repository.HubRepository("me/x").commit({**files, "old/model.safetensors": b"kept"}, "before")
    make_waiting_trainer(max_steps=1).train()
    assert {"notes.txt", "old/model.safetensors", "model.safetensors"} <= set(hub.files("me/x"))
    assert not {"adapter_model.safetensors", ".eval_results/leash_trl.yaml"} & set(hub.files("me/x"))


def test_a_card_that_cannot_be_written_does_not_stop_training(make_trainer, monkeypatch, caplog):
    from leash_trl.hub import publishing

    def broken(*args, **kwargs):
        raise RuntimeError("no fonts")

    monkeypatch.setattr(publishing, "write_model_card", broken)
    trainer = make_trainer(max_steps=2, save_strategy="steps", save_steps=1)
    trainer.train()
    assert trainer.state.global_step == 2
    assert "model card could not be written" in caplog.text
    with pytest.raises(RuntimeError, match="no fonts"):
        trainer.create_model_card()


def test_numbers_of_numpy_among_the_arguments_do_not_stop_training(make_trainer, tmp_path):
    import numpy as np

    make_trainer(max_steps=1, save_strategy="steps", save_steps=1, learning_rate=np.float64(1e-3)).train()
    assert "learning_rate: 0.001" in (tmp_path / "run" / "checkpoint-1" / "leash_recipe.yaml").read_text()


def test_a_failed_push_does_not_stop_training_and_is_made_up_for(hub, make_waiting_trainer, caplog):
    hub.fail("POST", COMMIT, status=403, times=1)
    trainer = make_waiting_trainer(max_steps=2, hub_strategy="all_checkpoints")
    trainer.train()
    report = trainer.publishing.pushes.report
    assert "step 1 failed at first" in str(report)
    assert report.pushed == ["step 1", "step 2"]
    assert not report.lost
    assert {step_of(hub.files("me/x"), f"checkpoint-{step}/") for step in (1, 2)} == {1, 2}
    assert "pushing step 1 to me/x failed" in caplog.text


def test_what_the_hub_never_takes_is_reported_with_the_remedy(hub, make_waiting_trainer, tmp_path, caplog):
    hub.fail("POST", COMMIT, status=403, times=99)
    trainer = make_waiting_trainer(max_steps=2)
    trainer.train()
    assert trainer.state.global_step == 2
    assert set(trainer.publishing.pushes.report.lost) == {"step 2"}  # it stands for step 1, whose place it would take
    assert f"leash push {tmp_path / 'run'} --repo me/x" in caplog.text


def test_a_push_that_comes_too_early_is_skipped_and_made_up_for(hub, make_trainer):
    trainer = make_trainer(**{**PUSHING, "max_steps": 3, "hub_strategy": "all_checkpoints"})
    with hub.hold("POST", COMMIT) as hold:
        thread = threading.Thread(target=lambda: (hold.wait(), released_after(trainer, hold)), daemon=True)
        thread.start()
        trainer.train()
        thread.join()
    report = trainer.publishing.pushes.report
    assert report.skipped == ["step 2", "step 3"]
    assert report.pushed == ["step 1", "step 2", "step 3"]
    assert {step_of(hub.files("me/x"), f"checkpoint-{step}/") for step in (1, 2, 3)} == {1, 2, 3}


def released_after(trainer, hold):
    """Holds the first push until the last step has been saved."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and "step 3" not in trainer.publishing.pushes.report.skipped:
        time.sleep(0.05)
    hold.release()


def test_a_checkpoint_may_be_deleted_while_it_is_pushed(hub, make_trainer):
    trainer = make_trainer(**{**PUSHING, "max_steps": 3, "save_total_limit": 1, "hub_strategy": "checkpoint"})
    with hub.hold("POST", r"/preupload/") as hold:
        thread = threading.Thread(target=lambda: (hold.wait(), released_after(trainer, hold)), daemon=True)
        thread.start()
        trainer.train()
        thread.join()
    assert messages(hub) == ["Training in progress, step 1", "Training in progress, step 3"]
    assert step_of(hub.commits("me/x")[1].files, "last-checkpoint/") == 1
    assert not Path(trainer.args.output_dir, pushes.SNAPSHOTS, "checkpoint-1").exists()


def test_the_last_push_is_one_commit_too_and_patient(hub, make_trainer, tmp_path):
    hub.fail("POST", COMMIT, status=503, times=2)
    trainer = make_trainer(push_to_hub=True, hub_model_id="me/x", max_steps=1, report_to="tensorboard")
    trainer.train()
    (tmp_path / "run" / "_scratch").mkdir()
    trainer.model.add_model_tags(["theirs"])
    (tmp_path / "run" / "_scratch" / "x.txt").write_text("mine")
    info = trainer.push_to_hub(commit_message="Done", dataset_name="me/data", tags=["mine"])
    assert messages(hub) == ["Done"]
    assert info.oid == hub.commits("me/x")[-1].oid
    files = hub.files("me/x")
    assert not [name for name in files if "_scratch" in name or name.startswith("checkpoint-")]
    assert [name for name in files if "tfevents" in name]
    assert b"- mine" in files["README.md"]
    assert b"- theirs" in files["README.md"]
    trainer.save_model(str(tmp_path / "elsewhere"))  # transformers pushes here too, and there is nothing new
    assert messages(hub)[:1] == ["Done"]
    assert trainer.push_to_hub(blocking=False).result().oid == hub.commits("me/x")[-1].oid


def test_curves_are_pushed_while_training_once_and_not_in_the_checkpoint(hub, make_waiting_trainer):
    make_waiting_trainer(max_steps=1, report_to="tensorboard", hub_strategy="checkpoint").train()
    events = [name for name in hub.commits("me/x")[1].files if "tfevents" in name]
    assert [name.split("/")[0] for name in events] == ["runs"]


def test_an_adapter_is_pushed_as_one_and_gone_on_with(hub, make_waiting_trainer, make_trainer, tmp_path, capsys):
    from leash_trl.cli.main import main

    lora = {"peft_config": LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")}
    torch.manual_seed(0)  # older TRLs draw the adapter before they set the seed
    first = make_waiting_trainer(max_steps=2, hub_strategy="checkpoint", **lora)
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


def test_a_branch_is_made_before_training(hub, make_waiting_trainer):
    make_waiting_trainer(max_steps=1, hub_revision="short").train()
    assert messages(hub, "short") == ["Training in progress, step 1"]
    assert messages(hub) == []


def test_the_token_is_nowhere(hub, make_waiting_trainer, tmp_path, caplog, capfd):
    hub.fail("POST", COMMIT, status=403, times=1)
    trainer = make_waiting_trainer(
        max_steps=2, hub_strategy="checkpoint", hub_token=hub.token, report_to="tensorboard", log_completions=True
    )
    trainer.train()
    trainer.push_to_hub()
    secret = hub.token.encode()
    written = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert len(written) > 20
    assert not [path for path in written if secret in path.read_bytes()]
    assert not hub.requests_with(hub.token)
    out, err = capfd.readouterr()
    assert hub.token not in out + err + caplog.text
    assert messages(hub)[-1] == "End of training"


def test_a_file_with_the_token_is_not_pushed(hub, tmp_path):
    leak = tmp_path / "notes.txt"
    leak.write_text(f"login with {hub.token}")
    with pytest.raises(ValueError, match=r"notes\.txt holds your Hub token") as caught:
        repository.HubRepository("me/x").commit({"notes.txt": leak}, "oops")
    assert hub.token not in str(caught.value)


def test_a_run_killed_while_pushing_goes_on_from_the_hub(hub, tmp_path, tiny_model_path):
    """SIGKILL in the middle of the push of step 4: the Hub has step 2 whole, and another machine goes on from it."""
    import killable_run

    command = [sys.executable, str(Path(killable_run.__file__)), tiny_model_path, str(tmp_path / "killed")]
    with hub.hold("POST", COMMIT) as first:
        process = subprocess.Popen(
            [*command, "--hub_model_id", "me/x"],
            env={**os.environ, **hub.environment()},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        first.wait(120)
        with hub.hold("POST", COMMIT) as second:
            first.release()
            second.wait(120)
            process.kill()
            output = process.communicate()[0]
    assert process.returncode == -signal.SIGKILL, output
    assert messages(hub) == ["Training in progress, step 2"]
    assert hub.token.encode() not in output

    whole = killable_run.make_trainer(tiny_model_path, str(tmp_path / "whole"))
    whole.train()
    resumed = killable_run.make_trainer(tiny_model_path, str(tmp_path / "resumed"), hub_model_id="me/x")
    resumed.train(resume_from_checkpoint="hf://me/x/last-checkpoint")
    resumed.push_to_hub()
    assert resumed.length_control.lam == whole.length_control.lam != 0.1
    for name, weights in whole.model.state_dict().items():
        assert weights.equal(resumed.model.state_dict()[name])
    pushed = hub.files("me/x")
    assert step_of(pushed) == step_of(pushed, "last-checkpoint/") == 8
    assert pushed["model.safetensors"] == (tmp_path / "resumed" / "model.safetensors").read_bytes()


def test_the_root_of_a_repository_gives_weights_and_lambda(hub, make_waiting_trainer, make_trainer, tmp_path):
    first = make_waiting_trainer(max_steps=2)
    first.train()
    second = make_trainer(output_dir=str(tmp_path / "second"), max_steps=3)
    with pytest.warns(UserWarning, match="no optimizer state"):
        second.train(resume_from_checkpoint="hf://me/x")
    lams = [row["leash/lambda"] for row in second.state.log_history if "leash/lambda" in row]
    assert lams[-1] == first.length_control.lam


def test_without_write_access_nothing_is_trained(hub, make_trainer, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "")
    with pytest.raises(ValueError, match=r"push_to_hub: cannot write to me/x .*401.*hf auth login"):
        make_trainer(**PUSHING)


def test_an_error_that_quotes_the_token_does_not_show_it(hub, make_trainer):
    token = "hf_" + "b" * 30 + "\n"
    with pytest.raises(ValueError, match="cannot write to me/x") as caught:
        make_trainer(**PUSHING, hub_token=token)
    assert token.strip() not in "".join(traceback.format_exception(caught.value))


def test_an_older_download_is_not_taken_for_the_newest_commit(hub, make_waiting_trainer):
    make_waiting_trainer(max_steps=1, hub_strategy="checkpoint").train()
    assert repository.local_checkpoint("hf://me/x/last-checkpoint")
    hub.fail("GET", "/api/models/me/x", status=503, times=99)
    with pytest.raises(ValueError, match="503"):
        repository.local_checkpoint("hf://me/x/last-checkpoint")


def test_leash_train_pushes_no_secret_and_no_address_of_its_own(hub, tmp_path, monkeypatch, capsys):
    """The recipe on the Hub repeats the run for others: it pushes nowhere, and holds no key of the first user's."""
    import huggingface_hub

    from leash_trl.cli.main import main

    monkeypatch.chdir(tmp_path)
    smoke = Path(__file__).parent.parent / "recipes" / "gym" / "smoke.yaml"
    Path("mine.yaml").write_text(smoke.read_text() + "\nenv: {MY_API_KEY: key-of-mine}\n")
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


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ("hf://me", "must be hf://owner/name"),
        ("hf://me/nothing", "check its name, and log in"),
        ("hf://me/x@gone", "RevisionNotFound"),
        ("hf://me/x@refs/pr/1", "refs/pr/1|refs%2Fpr%2F1"),
        ("hf://me/x/checkpoint-7", "no folder 'checkpoint-7'"),
    ],
)
def test_places_on_the_hub_that_hold_no_checkpoint_are_named(hub, place, problem):
    import huggingface_hub

    huggingface_hub.create_repo("me/x")
    with pytest.raises(ValueError, match=problem):
        repository.local_checkpoint(place)
