"""The loopback Hub, proved against the real client: what it keeps, what it refuses, what breaks on demand."""

from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, constants
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError


@pytest.fixture
def hub(loopback_hub):
    """The loopback Hub, online, with one empty repository."""
    with loopback_hub.online():
        huggingface_hub.create_repo("me/x")
        yield loopback_hub


def add(text: str = "{}") -> list[CommitOperationAdd]:
    return [CommitOperationAdd("config.json", text.encode())]


def test_a_folder_becomes_one_commit_and_comes_back(hub, tmp_path):
    (tmp_path / "logs").mkdir()
    for name in ("config.json", "model.safetensors", "logs/events"):
        (tmp_path / name).write_bytes(name.encode() * 9)
    for _ in range(2):  # the second time nothing has changed
        made = huggingface_hub.upload_folder(repo_id="me/x", folder_path=tmp_path)
    (_, commit) = hub.commits("me/x")
    assert (commit.oid, commit.changed) == (made.oid, ("config.json", "logs/events", "model.safetensors"))
    folder = Path(huggingface_hub.snapshot_download("me/x"))
    assert all((folder / name).read_bytes() == commit.files[name] for name in commit.changed)


def test_one_commit_rewrites_and_deletes_or_does_nothing(hub):
    huggingface_hub.create_commit("me/x", add(), commit_message="first")
    with pytest.raises(EntryNotFoundError):
        huggingface_hub.create_commit("me/x", [*add("[]"), CommitOperationDelete("none")], commit_message="half")
    assert hub.files("me/x")["config.json"] == b"{}"
    huggingface_hub.create_commit("me/x", [CommitOperationDelete("config.json")], commit_message="second")
    assert "config.json" not in hub.files("me/x")
    assert [commit.message for commit in hub.commits("me/x")] == ["initial commit", "first", "second"]


def test_what_is_not_there_or_not_allowed_has_its_error(hub):
    huggingface_hub.create_repo("me/secret", private=True)
    for repo_id, revision, error in (
        ("me/y", "main", RepositoryNotFoundError),
        ("me/x", "other", RevisionNotFoundError),
        ("me/x", "main", EntryNotFoundError),
    ):
        with pytest.raises(error):
            huggingface_hub.hf_hub_download(repo_id, "config.json", revision=revision)
    for token in (False, "hf_wrong"):
        with pytest.raises(HfHubHTTPError, match="401"):
            HfApi(token=token).create_commit("me/x", add(), commit_message="no")
    with pytest.raises(RepositoryNotFoundError):
        HfApi(token=False).list_repo_files("me/secret")
    assert len(hub.commits("me/x")) == 1


def test_faults_meet_what_they_name_and_have_no_effect(hub):
    hub.fail("POST", "/commit/", status=500)
    hub.fail("POST", "/commit/", "drop")
    for _ in range(2):
        with pytest.raises((HfHubHTTPError, OSError, Exception), match="500|disconnected"):
            huggingface_hub.create_commit("me/x", add(), commit_message="lost")
    with hub.hold("POST", "/commit/") as hold:
        job = huggingface_hub.create_commit("me/x", add(), commit_message="held", run_as_future=True)
        hold.wait()
        assert len(hub.commits("me/x")) == 1
    assert job.result().oid == hub.commits("me/x")[-1].oid


@pytest.mark.parametrize("num_before", [0, 1, 2])
def test_a_token_is_found_in_whatever_was_sent(hub, num_before):
    assert not hub.requests_with(hub.token)
    huggingface_hub.create_commit("me/x", add("o" * num_before + hub.token + "ooo"), commit_message="leaks")
    assert hub.requests_with(hub.token)


def test_this_process_is_offline_again_afterwards(loopback_hub):
    before = {name: value for name, value in vars(constants).items() if name.isupper()}
    with loopback_hub.online():
        assert (loopback_hub.endpoint, False) == (constants.ENDPOINT, constants.HF_HUB_OFFLINE)
    assert {name: value for name, value in vars(constants).items() if name.isupper()} == before
