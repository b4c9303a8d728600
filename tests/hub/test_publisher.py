"""Pushes of checkpoints: one commit a push, nothing lost where the Hub fails; the real client, no training."""

import json
import shlex
import shutil

import pytest
from saved_run import save, save_checkpoint, trainer_state
from transformers import AutoModelForCausalLM, LlamaConfig, TrainingArguments

from leash_trl.hub import publisher
from leash_trl.hub.publisher import SNAPSHOT_FOLDER, Publisher
from leash_trl.hub.repository import HubRepository


COMMIT = "/me/x/commit/"


@pytest.fixture
def hub(hub):
    HubRepository("me/x").create()
    return hub


@pytest.fixture
def run(tmp_path):
    return tmp_path / "run"


@pytest.fixture
def make_publisher(run):
    config = LlamaConfig(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
    model = AutoModelForCausalLM.from_config(config)

    def make(hub_strategy="all_checkpoints", **changes):
        settings = {"push_to_hub": True, "hub_model_id": "me/x", "use_cpu": True, "report_to": "none"}
        return Publisher(TrainingArguments(str(run), hub_strategy=hub_strategy, **settings, **changes), model)

    return make


@pytest.fixture
def push(run):
    def save_and_push(publisher, step, is_awaited=True, **files):
        publisher.push_checkpoint(save_checkpoint(run, step, **files), "me/x")
        if is_awaited:
            publisher.wait_for_pushes()

    return save_and_push


def messages(hub):
    return [commit.message.removeprefix("Training in progress, ") for commit in hub.commits("me/x")[1:]]


def logged(caplog):
    return [record.getMessage() for record in caplog.records if record.name.startswith("leash_trl")]


def steps_of(hub, *folders):
    return [json.loads(hub.files("me/x")[f"{folder}trainer_state.json"])["global_step"] for folder in folders]


@pytest.mark.parametrize(
    ("strategy", "folders"),
    [
        ("every_save", set()),
        ("checkpoint", {"last-checkpoint"}),
        ("all_checkpoints", {"checkpoint-1", "checkpoint-2"}),
    ],
)
def test_every_save_is_one_commit_with_all_that_belongs_to_it(hub, make_publisher, push, strategy, folders):
    publisher = make_publisher(strategy)
    for step in (1, 2):
        push(publisher, step)
        files = hub.files("me/x")
        assert len(hub.commits("me/x")) == 1 + step
        assert (steps_of(hub, ""), files["model.safetensors"]) == ([step], f"weights {step}".encode())
        assert "optimizer.pt" not in files
    assert {name.split("/")[0] for name in files if "/" in name} == folders
    for folder in folders:
        assert files[f"{folder}/optimizer.pt"] == (b"moments 1" if folder == "checkpoint-1" else b"moments 2")


def test_only_what_a_checkpoint_and_a_model_are_made_of_goes_up(hub, make_publisher, push):
    private = {"notes.txt": hub.token.encode(), "training_args.bin": b"", "x/model.safetensors": b""}
    sharded = {"global_step1/shard.pt": b"s", "pytorch_model_fsdp_0/part": b"p", "optimizer_0/part": b"o"}
    push(make_publisher("checkpoint"), 1, **private, **sharded)
    model = {"config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors"}
    model |= {"leash_recipe.yaml", "trainer_state.json"}
    checkpoint = {*model, *sharded, "optimizer.pt", "scheduler.pt", "rng_state.pth"}
    names = {".gitattributes", *model} | {f"last-checkpoint/{name}" for name in checkpoint}
    assert hub.files("me/x").keys() == names
    assert not hub.requests_with(hub.token)


def test_what_the_new_checkpoint_and_model_do_not_have_goes_from_the_hub(hub, make_publisher, push):
    publisher = make_publisher("checkpoint")
    old = dict.fromkeys(("adapter_model.safetensors", "notes.txt", "old/model.safetensors"), b"old")
    HubRepository("me/x").commit(old, "before")
    only_in_the_first = {"scaler.pt": b"1"}
    push(publisher, 1, **only_in_the_first)
    assert {"notes.txt", "old/model.safetensors", "last-checkpoint/scaler.pt"} <= hub.files("me/x").keys()
    assert "adapter_model.safetensors" not in hub.files("me/x")
    push(publisher, 2)
    assert "last-checkpoint/scaler.pt" not in hub.files("me/x")


def test_a_push_that_failed_is_said_with_the_remedy_and_the_next_save_is_pushed(
    hub, make_publisher, push, run, caplog
):
    publisher = make_publisher(hub_token=hub.token)
    hub.fail(COMMIT, 403)
    push(publisher, 1)
    (message,) = logged(caplog)
    remedy = f"leash push {shlex.quote(str(run))} --repo me/x"
    assert [part for part in ("checkpoint-1", "403", remedy) if part not in message] == []
    assert "\n" not in message
    push(publisher, 2)
    assert messages(hub) == ["checkpoint-2"]
    assert steps_of(hub, "") == [2]


@pytest.mark.parametrize(
    ("strategy", "deleted", "pushed"),
    [
        ("every_save", None, [1, 3]),
        ("checkpoint", None, [1, 3]),
        ("all_checkpoints", None, [1, 2, 3]),
        ("all_checkpoints", 2, [1, 3]),
    ],
)
def test_while_a_push_is_running_the_newest_checkpoint_waits(
    hub, make_publisher, push, run, caplog, strategy, deleted, pushed
):
    publisher = make_publisher(strategy)
    with hub.hold(COMMIT) as is_here:
        push(publisher, 1, is_awaited=False)
        assert is_here.wait(60)
        for step in (2, 3):
            push(publisher, step, is_awaited=False)
        if deleted:
            shutil.rmtree(run / f"checkpoint-{deleted}")
    publisher.wait_for_pushes()
    assert messages(hub) == [f"checkpoint-{step}" for step in pushed]
    assert steps_of(hub, "") == [3]
    assert logged(caplog) == []


def test_a_checkpoint_may_be_deleted_while_it_is_pushed_and_an_event_file_may_grow(hub, make_publisher, push, run):
    publisher = make_publisher()
    events = run / "runs" / "a" / "tfevents"
    events.parent.mkdir(parents=True)
    events.write_text("1")
    with hub.hold("/preupload/") as is_here:
        push(publisher, 1, is_awaited=False)
        assert is_here.wait(60)
        shutil.rmtree(run / "checkpoint-1")
        events.write_text("12")
    publisher.wait_for_pushes()
    assert hub.files("me/x")["checkpoint-1/optimizer.pt"] == b"moments 1"
    assert hub.files("me/x")["runs/a/tfevents"] == b"1"
    assert not (run / SNAPSHOT_FOLDER).exists()


def test_where_files_cannot_be_linked_they_are_pushed_from_the_checkpoint(hub, make_publisher, push, monkeypatch):
    def refused(source, destination):
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", refused)
    push(make_publisher(), 1)
    assert hub.files("me/x")["checkpoint-1/optimizer.pt"] == b"moments 1"


def test_the_model_at_the_end_is_pushed_after_the_checkpoints(hub, make_publisher, push, run):
    publisher = make_publisher("checkpoint", hub_revision="short")
    HubRepository("me/x", revision="short").create()
    save(run, 7)
    with hub.hold(COMMIT) as is_here:
        push(publisher, 6, is_awaited=False)
        assert is_here.wait(60)
        job = publisher.push_model("me/x", "Done", None, None)
    assert job.result().oid == hub.commits("me/x", "short")[-1].oid
    assert hub.files("me/x", "short")["model.safetensors"] == b"weights 7"
    assert (messages(hub), hub.commits("me/x", "short")[-1].message) == ([], "Done")


def test_a_card_that_cannot_be_written_does_not_stop_training(make_publisher, monkeypatch, caplog):
    def broken(*args, **kwargs):
        raise RuntimeError("no fonts")

    monkeypatch.setattr(publisher, "write_model_card", broken)
    make_publisher().write_card(trainer_state(2), None, is_in_train=True)
    assert "no fonts" in caplog.text
