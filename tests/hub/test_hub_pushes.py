"""Pushes of checkpoints: complete commits, nothing lost where the Hub fails; real client, no training."""

import json
import shutil

import pytest

from leash_trl.hub import repository
from leash_trl.hub.pushes import SNAPSHOTS, HubPushes


COMMIT = r"/api/models/me/x/commit/"


@pytest.fixture
def waits(monkeypatch):
    """The waits before further attempts, in seconds, none of which are waited for."""
    seconds = []
    monkeypatch.setattr(repository, "sleep", seconds.append)
    return seconds


@pytest.fixture
def hub(loopback_hub, waits):
    with loopback_hub.online():
        repository.HubRepository("me/x").create()
        yield loopback_hub


@pytest.fixture
def run(tmp_path):
    return tmp_path / "run"


@pytest.fixture
def pushes(hub, run):
    return HubPushes(repository.HubRepository("me/x"), run)


def save(run, step, **more):
    """A checkpoint as a trainer leaves it, in a few bytes."""
    folder = run / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    (folder / "leash_state.json").write_text(json.dumps({"global_step": step}))
    (folder / "model.safetensors").write_bytes(f"weights {step}".encode())
    (folder / "optimizer.pt").write_bytes(f"moments {step}".encode())
    for name, content in more.items():
        (folder / name).write_bytes(content)
    return folder


def push(pushes, run, step, place="all", is_awaited=True):
    """Saves a checkpoint and pushes it under its own name (`all`), as `last`, or as the `model` alone."""
    paths = {"all": f"checkpoint-{step}", "last": "last-checkpoint", "model": None}
    pushes.submit(f"step {step}", save(run, step), paths[place])
    if is_awaited:
        pushes.wait()


def messages(hub):
    return [commit.message.removeprefix("Training in progress, ") for commit in hub.commits("me/x")[1:]]


def step_of(files, folder=""):
    return json.loads(files[f"{folder}leash_state.json"])["global_step"]


@pytest.mark.parametrize(
    ("place", "folders"),
    [("model", set()), ("last", {"last-checkpoint"}), ("all", {"checkpoint-1", "checkpoint-2"})],
)
def test_every_save_is_one_commit_with_all_that_belongs_to_it(hub, pushes, run, place, folders):
    for step in (1, 2):
        push(pushes, run, step, place)
        files = hub.files("me/x")
        assert len(hub.commits("me/x")) == 1 + step
        assert (step_of(files), files["model.safetensors"]) == (step, f"weights {step}".encode())
        assert "optimizer.pt" not in files
    assert {name.split("/")[0] for name in files if "/" in name} == folders
    for folder in folders:
        step = 2 if folder == "last-checkpoint" else int(folder[-1])
        assert files[f"{folder}/optimizer.pt"] == f"moments {step}".encode()
    assert pushes.report.pushed == ["step 1", "step 2"]


def test_what_the_new_checkpoint_and_model_do_not_have_goes_from_the_hub(hub, pushes, run):
    old = dict.fromkeys(("adapter_model.safetensors", "notes.txt", ".eval_results/leash_trl.yaml"), b"old")
    repository.HubRepository("me/x").commit({**old, "old/model.safetensors": b"kept"}, "before")
    pushes.submit("step 1", save(run, 1, **{"leash_rollouts_0.pt": b"1"}), "last-checkpoint")
    pushes.wait()
    files = set(hub.files("me/x"))
    assert {"notes.txt", "old/model.safetensors", "model.safetensors", "last-checkpoint/leash_rollouts_0.pt"} <= files
    assert not {"adapter_model.safetensors", ".eval_results/leash_trl.yaml", "leash_rollouts_0.pt"} & files
    push(pushes, run, 2, "last")
    assert "last-checkpoint/leash_rollouts_0.pt" not in hub.files("me/x")


def test_event_files_go_to_the_root_alone(hub, pushes, run):
    (run / "runs" / "today").mkdir(parents=True)
    (run / "runs" / "today" / "events.out.tfevents.1").write_bytes(b"events")
    push(pushes, run, 1, "last")
    assert [name for name in hub.files("me/x") if "tfevents" in name] == ["runs/today/events.out.tfevents.1"]


def test_a_busy_hub_is_asked_again(hub, pushes, run, waits):
    hub.fail("POST", COMMIT, status=503, times=2)
    push(pushes, run, 1)
    assert (messages(hub), str(pushes.report)) == (["step 1"], "1 pushed")
    assert waits == [*repository.SOON]


@pytest.mark.parametrize("always", [False, True])
def test_what_has_failed_is_made_up_for_and_leaves_the_newest_model_at_the_root(hub, run, always, caplog):
    pushes = HubPushes(repository.HubRepository("me/x"), run, always)
    hub.fail("POST", COMMIT, status=403, times=2)
    push(pushes, run, 1)
    assert "step 1 is not on the Hub (HfHubHTTPError: 403" in str(pushes.report)
    push(pushes, run, 2)  # step 1 fails again, step 2 goes through
    pushes.finish()
    assert pushes.report.pushed == ["step 2", "step 1"]
    assert not pushes.report.missing
    assert "pushing step 1 to me/x failed" in caplog.text
    files = hub.files("me/x")
    assert [step_of(files, folder) for folder in ("", "checkpoint-1/", "checkpoint-2/")] == [2, 1, 2]


def test_what_is_made_up_for_after_the_end_leaves_the_last_model_at_the_root(hub, pushes, run):
    hub.fail("POST", COMMIT, status=403, times=1)
    push(pushes, run, 1, "last")
    repository.HubRepository("me/x").commit({"leash_state.json": b'{"global_step": 7}'}, "End of training")
    pushes.finish(has_newer_model=True)
    assert messages(hub) == ["End of training", "step 1"]
    assert (step_of(hub.files("me/x")), step_of(hub.files("me/x"), "last-checkpoint/")) == (7, 1)


def test_what_the_hub_never_takes_is_reported_with_the_remedy(hub, pushes, run, caplog):
    hub.fail("POST", COMMIT, status=403, times=99)
    for step in (1, 2):
        push(pushes, run, step, "last")
    pushes.finish()
    assert set(pushes.report.missing) == {"step 2"}  # it stands for step 1, whose place it would take
    assert f"leash push {run} --repo me/x" in caplog.text


def test_where_the_hub_is_away_the_end_of_training_does_not_wait_for_every_push(hub, pushes, run, waits):
    hub.drop("POST", COMMIT, times=999)
    for step in range(1, 5):
        push(pushes, run, step)
    pushes.finish()
    assert set(pushes.report.missing) == {f"step {step}" for step in range(1, 5)}
    assert waits == [*(4 * repository.SOON), *repository.PATIENT]


def test_a_push_that_comes_too_early_is_skipped_and_made_up_for(hub, pushes, run):
    with hub.hold("POST", COMMIT) as hold:
        push(pushes, run, 1, is_awaited=False)
        hold.wait()
        for step in (2, 3):
            push(pushes, run, step, is_awaited=False)
        assert pushes.report.missing.keys() == {"step 2", "step 3"}
    pushes.finish()
    assert not pushes.report.missing
    assert messages(hub) == pushes.report.pushed == ["step 1", "step 2", "step 3"]


def test_always_makes_a_commit_of_every_save(hub, run):
    pushes = HubPushes(repository.HubRepository("me/x"), run, always=True)
    with hub.hold("POST", COMMIT) as hold:
        push(pushes, run, 1, "last", is_awaited=False)
        hold.wait()
        for step in (2, 3):
            push(pushes, run, step, "last", is_awaited=False)
    pushes.finish()
    assert messages(hub) == ["step 1", "step 2", "step 3"]
    assert [step_of(commit.files, "last-checkpoint/") for commit in hub.commits("me/x")[1:]] == [1, 2, 3]


def test_a_checkpoint_may_be_deleted_while_it_is_pushed(hub, pushes, run):
    with hub.hold("POST", r"/preupload/") as hold:
        push(pushes, run, 1, is_awaited=False)
        hold.wait()
        shutil.rmtree(run / "checkpoint-1")
    pushes.finish()
    assert hub.files("me/x")["checkpoint-1/optimizer.pt"] == b"moments 1"
    assert not [*(run / SNAPSHOTS).iterdir()]


def test_a_checkpoint_that_was_deleted_before_is_reported_and_never_pushed_in_part(hub, pushes, run):
    hub.fail("POST", COMMIT, status=403, times=1)
    push(pushes, run, 1)
    shutil.rmtree(run / "checkpoint-1")
    push(pushes, run, 2)
    pushes.finish()
    assert "save_total_limit deleted it" in pushes.report.missing["step 1"]
    assert not [name for name in hub.files("me/x") if name.startswith("checkpoint-1/")]
    assert "checkpoint-2/optimizer.pt" in hub.files("me/x")


def test_a_file_with_the_token_is_not_pushed(hub, tmp_path):
    leak = tmp_path / "notes.txt"
    leak.write_text(f"login with {hub.token}")
    with pytest.raises(ValueError, match=r"notes\.txt holds your Hub token") as caught:
        repository.HubRepository("me/x").commit({"notes.txt": leak}, "oops")
    assert hub.token not in str(caught.value)


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
    with pytest.raises(ValueError, match=problem):
        repository.local_checkpoint(place)


def test_an_older_download_is_not_taken_for_the_newest_commit(hub, pushes, run):
    push(pushes, run, 1, "last")
    assert repository.local_checkpoint("hf://me/x/last-checkpoint")
    hub.fail("GET", "/api/models/me/x", status=503, times=99)
    with pytest.raises(ValueError, match="503"):
        repository.local_checkpoint("hf://me/x/last-checkpoint")
