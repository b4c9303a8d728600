"""The loopback Hub, proved against the real client: what it keeps, what it refuses, what breaks on demand."""

import hashlib
import json
import os
import socket
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import huggingface_hub
import pytest
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, ModelCard, constants
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from loopback_hub import LoopbackHub


WEIGHTS = bytes(range(256)) * 40


@pytest.fixture
def hub(loopback_hub):
    """The loopback Hub, online, with one empty repository."""
    with loopback_hub.online():
        huggingface_hub.create_repo("me/x")
        yield loopback_hub


@pytest.fixture
def folder(tmp_path):
    """A folder as a checkpoint is: text, weights, a folder in it."""
    (tmp_path / "model" / "logs").mkdir(parents=True)
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "model" / "model.safetensors").write_bytes(WEIGHTS)
    (tmp_path / "model" / "logs" / "events.out.tfevents.1").write_bytes(b"events")
    return tmp_path / "model"


def add(**files: bytes | str) -> list[CommitOperationAdd]:
    """`add(config="{}")`: operations that add `config.json` and the like."""
    return [
        CommitOperationAdd(f"{name}.json", content.encode() if isinstance(content, str) else content)
        for name, content in files.items()
    ]


def post(hub, path: str, body: bytes, token: str | None = None) -> None:
    """A request that the client would not send."""
    request = urllib.request.Request(hub.endpoint + path, body, {"Authorization": f"Bearer {token or hub.token}"})
    urllib.request.urlopen(request).close()


def num_sent(hub, method: str, part: str) -> int:
    return sum(request.method == method and part in request.path for request in hub.requests)


# what it keeps


def test_a_new_repository_has_the_first_commit_of_the_hub(hub):
    assert huggingface_hub.create_repo("y").repo_id == "me/y"
    (first,) = hub.commits("me/y")
    assert (first.message, first.changed) == ("initial commit", (".gitattributes",))


def test_a_repository_is_created_once(hub):
    with pytest.raises(HfHubHTTPError, match="409"):
        huggingface_hub.create_repo("me/x")
    assert huggingface_hub.create_repo("me/x", exist_ok=True).repo_id == "me/x"
    with pytest.raises(HfHubHTTPError, match="403"):
        huggingface_hub.create_repo("you/x")


def test_a_folder_becomes_one_commit(hub, folder):
    made = huggingface_hub.upload_folder(repo_id="me/x", folder_path=folder, commit_message="all of it")
    commit = hub.commits("me/x")[-1]
    assert len(hub.commits("me/x")) == 2
    assert (commit.oid, commit.message) == (made.oid, "all of it")
    assert commit.changed == ("config.json", "logs/events.out.tfevents.1", "model.safetensors")
    assert hub.files("me/x")["model.safetensors"] == WEIGHTS
    assert commit.large == {"logs/events.out.tfevents.1", "model.safetensors"}


def test_the_same_folder_again_makes_no_commit_and_sends_no_file(hub, folder):
    huggingface_hub.upload_folder(repo_id="me/x", folder_path=folder)
    again = huggingface_hub.upload_folder(repo_id="me/x", folder_path=folder)
    assert len(hub.commits("me/x")) == 2
    assert again.oid == hub.commits("me/x")[-1].oid
    assert num_sent(hub, "PUT", "/lfs/") == 2


@pytest.mark.parametrize(
    ("path", "content", "is_large"),
    [
        ("note.txt", b"text", False),
        ("big.txt", b"x" * 1_000_001, True),
        ("model.safetensors", b"text", True),
        ("state.npy", b"\x93NUMPY\0", True),
        ("empty.bin", b"", False),
    ],
)
def test_large_and_binary_files_go_through_lfs(hub, path, content, is_large):
    huggingface_hub.upload_file(path_or_fileobj=content, path_in_repo=path, repo_id="me/x")
    assert (path in hub.commits("me/x")[-1].large) == is_large
    assert hub.files("me/x")[path] == content


def test_one_commit_adds_rewrites_and_deletes(hub):
    huggingface_hub.create_commit("me/x", add(a="1", b="1", **{"old/c": "1"}), commit_message="first")
    operations = [*add(a="2", older="1"), CommitOperationDelete("b.json"), CommitOperationDelete("old/")]
    huggingface_hub.create_commit("me/x", operations, commit_message="second", commit_description="why")
    first, second = hub.commits("me/x")[1:]
    assert second.changed == ("a.json", "b.json", "old/c.json", "older.json")
    assert (second.message, second.description) == ("second", "why")
    assert set(second.files) == {".gitattributes", "a.json", "older.json"}
    assert first.files["a.json"] == b"1"


def test_a_branch_leaves_main_alone(hub):
    huggingface_hub.create_branch("me/x", branch="runs/1")
    huggingface_hub.create_branch("me/x", branch="runs/1", exist_ok=True)
    huggingface_hub.create_commit("me/x", add(a="1"), commit_message="there", revision="runs/1")
    assert list(hub.files("me/x")) == [".gitattributes"]
    assert hub.files("me/x", revision="runs/1")["a.json"] == b"1"
    assert [commit.message for commit in hub.commits("me/x", "runs/1")] == ["initial commit", "there"]


def test_downloads_bring_what_was_pushed(hub, folder):
    first = huggingface_hub.upload_folder(repo_id="me/x", folder_path=folder)
    huggingface_hub.create_commit("me/x", add(config='{"new": 1}'), commit_message="second")
    with open(huggingface_hub.hf_hub_download("me/x", "config.json")) as file:
        assert file.read() == '{"new": 1}'
    old = huggingface_hub.snapshot_download("me/x", revision=first.oid, local_dir=folder.parent / "copy")
    for path in ("config.json", "logs/events.out.tfevents.1", "model.safetensors"):
        with open(os.path.join(old, path), "rb") as file:
            assert file.read() == (folder / path).read_bytes()


def test_a_model_card_is_checked_and_pushed(hub):
    ModelCard("---\nlicense: mit\n---\n# Me").push_to_hub("me/x")
    assert huggingface_hub.model_info("me/x").card_data.license == "mit"
    assert hub.files("me/x")["README.md"].endswith(b"# Me")
    with pytest.raises(ValueError, match="Invalid YAML"):
        huggingface_hub.create_commit(
            "me/x", [CommitOperationAdd("README.md", b"---\nlicense: [\n---\n")], commit_message="broken"
        )
    with pytest.warns(UserWarning, match="empty or missing yaml metadata"):
        huggingface_hub.create_commit("me/x", [CommitOperationAdd("README.md", b"# Me")], commit_message="bare")


# what it refuses


@pytest.mark.parametrize(
    ("repo_id", "path", "revision", "error"),
    [
        ("me/y", "config.json", "main", RepositoryNotFoundError),
        ("y", "config.json", "main", RepositoryNotFoundError),
        ("me/x", "config.json", "main", EntryNotFoundError),
        ("me/x", ".gitattributes", "other", RevisionNotFoundError),
        ("me/x", ".gitattributes", "0" * 40, RevisionNotFoundError),
    ],
)
def test_what_is_not_there_has_its_error(hub, repo_id, path, revision, error):
    with pytest.raises(error):
        huggingface_hub.hf_hub_download(repo_id, path, revision=revision)


@pytest.mark.parametrize(("token", "status"), [(None, 404), (False, 401)])
def test_what_is_not_there_is_hidden_from_strangers(hub, token, status):
    with pytest.raises(RepositoryNotFoundError) as caught:
        HfApi(token=token).list_repo_files("me/y")
    assert caught.value.response.status_code == status


def test_writing_to_what_is_not_there_has_its_error(hub):
    with pytest.raises(RepositoryNotFoundError):
        huggingface_hub.create_commit("me/y", add(a="1"), commit_message="nowhere")
    with pytest.raises(RevisionNotFoundError):
        huggingface_hub.create_commit("me/x", add(a="1"), commit_message="nowhere", revision="other")


def test_nothing_of_a_refused_commit_is_visible(hub):
    before = hub.commits("me/x")
    with pytest.raises(EntryNotFoundError, match="A file with this name doesn't exist"):
        huggingface_hub.create_commit("me/x", [*add(a="1"), CommitOperationDelete("none")], commit_message="half")
    with pytest.raises(EntryNotFoundError, match="A folder with this name doesn't exist"):
        huggingface_hub.create_commit("me/x", [*add(a="1"), CommitOperationDelete("none/")], commit_message="half")
    assert hub.commits("me/x") == before


def test_an_object_whose_bytes_are_not_its_name_is_refused(hub):
    operation = CommitOperationAdd("model.safetensors", WEIGHTS)
    operation.upload_info.sha256 = bytes(32)
    with pytest.raises(RuntimeError, match="Error while uploading") as caught:
        huggingface_hub.create_commit("me/x", [operation], commit_message="broken")
    assert caught.value.__cause__.response.status_code == 400
    assert not hub.repositories["me/x"].objects


def test_a_commit_of_an_object_that_was_not_uploaded_is_refused(hub):
    oid = hashlib.sha256(WEIGHTS).hexdigest()
    lines = [
        {"key": "header", "value": {"summary": "broken"}},
        {"key": "lfsFile", "value": {"path": "model.safetensors", "algo": "sha256", "oid": oid}},
    ]
    with pytest.raises(urllib.error.HTTPError, match="400"):
        post(hub, "/api/models/me/x/commit/main", "\n".join(map(json.dumps, lines)).encode())
    assert len(hub.commits("me/x")) == 1


@pytest.mark.parametrize("token", [False, "hf_wrong"])
@pytest.mark.parametrize(
    "write",
    [
        lambda api: api.create_repo("me/y"),
        lambda api: api.create_branch("me/x", branch="b"),
        lambda api: api.create_commit("me/x", add(a="1"), commit_message="no"),
    ],
    ids=["repository", "branch", "commit"],
)
def test_nobody_writes_without_the_token(hub, token, write):
    with pytest.raises(HfHubHTTPError) as caught:
        write(HfApi(token=token))
    assert caught.value.response.status_code == 401
    assert (list(hub.repositories), len(hub.commits("me/x"))) == (["me/x"], 1)


def test_every_way_to_write_asks_for_the_token(hub):
    for path in ("preupload/main", "commit/main", "branch/b"):
        with pytest.raises(urllib.error.HTTPError, match="401"):
            post(hub, f"/api/models/me/x/{path}", b"{}", token="hf_wrong")
    with pytest.raises(urllib.error.HTTPError, match="401"):
        post(hub, "/me/x.git/info/lfs/objects/batch", b"{}", token="hf_wrong")
    upload = urllib.request.Request(f"{hub.endpoint}/lfs/{'0' * 64}?ticket=guessed", b"x", method="PUT")
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(upload)


def test_strangers_read_what_is_public_only(hub):
    huggingface_hub.create_repo("me/secret", private=True)
    huggingface_hub.upload_file(path_or_fileobj=WEIGHTS, path_in_repo="a.bin", repo_id="me/secret")
    stranger = HfApi(token=False)
    assert stranger.list_repo_files("me/x") == [".gitattributes"]
    with pytest.raises(RepositoryNotFoundError):
        stranger.list_repo_files("me/secret")
    with pytest.raises(HfHubHTTPError, match="401"):
        HfApi(token="hf_wrong").list_repo_files("me/x")
    assert "a.bin" in huggingface_hub.list_repo_files("me/secret")


# what breaks on demand


def test_a_failing_commit_has_no_effect(hub):
    hub.fail("POST", "/commit/", status=500, times=2)
    for _ in range(2):
        with pytest.raises(HfHubHTTPError, match="500"):
            huggingface_hub.create_commit("me/x", add(a="1"), commit_message="lost")
    assert len(hub.commits("me/x")) == 1
    huggingface_hub.create_commit("me/x", add(a="1"), commit_message="made")
    assert hub.commits("me/x")[-1].message == "made"


def test_a_fault_meets_only_what_it_names(hub):
    hub.fail("GET", "/commit/main")
    hub.fail("POST", "/commit/other")
    huggingface_hub.create_commit("me/x", add(a="1"), commit_message="made")
    assert len(hub.commits("me/x")) == 2


def test_a_dropped_commit_has_no_effect(hub):
    hub.drop("POST", "/commit/")
    with pytest.raises(Exception, match="disconnected"):
        huggingface_hub.create_commit("me/x", add(a="1"), commit_message="lost")
    assert len(hub.commits("me/x")) == 1


def test_half_a_request_does_nothing(hub):
    body = b"".join(
        json.dumps(line).encode() + b"\n"
        for line in (
            {"key": "header", "value": {"summary": "half"}},
            {"key": "file", "value": {"path": "a.json", "content": "e30=", "encoding": "base64"}},
        )
    )
    host, port = hub.endpoint.removeprefix("http://").split(":")
    head = f"POST /api/models/me/x/commit/main HTTP/1.1\r\nAuthorization: Bearer {hub.token}\r\n"
    for num_sent_bytes in (len(body) - 1, len(body)):
        with socket.create_connection((host, int(port))) as client:
            client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:num_sent_bytes])
            client.shutdown(socket.SHUT_WR)
            client.recv(1)  # nothing, once the server has closed the connection, or the start of its answer
        assert len(hub.commits("me/x")) == (2 if num_sent_bytes == len(body) else 1)


def test_a_held_request_is_served_once_released(hub):
    with hub.hold("POST", "/commit/") as hold:
        job = huggingface_hub.create_commit("me/x", add(a="1"), commit_message="held", run_as_future=True)
        hold.wait()
        assert len(hub.commits("me/x")) == 1
        assert not job.done()
    assert job.result().oid == hub.commits("me/x")[-1].oid


def test_closing_the_hub_releases_what_it_holds(tmp_path):
    with ThreadPoolExecutor() as pool:
        with LoopbackHub(tmp_path) as hub:
            hold = hub.hold("POST", "/repos/create")
            job = pool.submit(post, hub, "/api/repos/create", b'{"name": "x"}')
            hold.wait()
        job.result(timeout=10)
    assert list(hub.repositories) == ["me/x"]


# the token, and this process


@pytest.mark.parametrize("num_before", [0, 1, 2, 3])
def test_a_token_is_found_in_whatever_was_sent(hub, num_before):
    text = b"o" * num_before + hub.token.encode() + b"o" * (3 - num_before)
    assert not hub.requests_with(hub.token)
    huggingface_hub.create_commit("me/x", add(a=text), commit_message="leaks")
    assert {request.path.split("/")[-2] for request in hub.requests_with(hub.token)} == {"preupload", "commit"}


def test_a_token_is_found_in_weights_messages_and_addresses(hub):
    operations = [CommitOperationAdd("model.safetensors", WEIGHTS + hub.token.encode())]
    huggingface_hub.create_commit("me/x", operations, commit_message="leaks")
    assert [request.method for request in hub.requests_with(hub.token)] == ["PUT"]
    huggingface_hub.create_commit("me/x", add(a="1"), commit_message=hub.token)
    huggingface_hub.create_branch("me/x", branch=hub.token)
    assert [request.path.split("/")[-2] for request in hub.requests_with(hub.token)[1:]] == ["commit", "branch"]


def test_this_process_is_offline_again_afterwards(loopback_hub):
    before = {name: value for name, value in vars(constants).items() if name.isupper()}
    with loopback_hub.online():
        assert not constants.HF_HUB_OFFLINE
        assert loopback_hub.endpoint == constants.ENDPOINT
        assert HfApi().endpoint == huggingface_hub.hf_api.api.endpoint == loopback_hub.endpoint
    assert {name: value for name, value in vars(constants).items() if name.isupper()} == before
    assert os.environ.get("HF_TOKEN") != loopback_hub.token
    with pytest.raises(OfflineModeIsEnabled):
        HfApi(endpoint=loopback_hub.endpoint, token=loopback_hub.token).whoami()
