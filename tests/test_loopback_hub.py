"""The loopback Hub, proved against the real client: what it keeps, what it refuses, what breaks on demand."""

import base64
import hashlib
import json
import os
import socket
import subprocess
import sys
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
from loopback_repository import HubError


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


def test_commits_in_the_background_keep_their_order(hub):
    jobs = [
        huggingface_hub.create_commit("me/x", add(a=str(i)), commit_message=str(i), run_as_future=True)
        for i in range(3)
    ]
    assert [job.result().oid for job in jobs] == [commit.oid for commit in hub.commits("me/x")[1:]]
    assert [commit.files["a.json"] for commit in hub.commits("me/x")[1:]] == [b"0", b"1", b"2"]


def test_one_commit_adds_rewrites_and_deletes(hub):
    huggingface_hub.create_commit("me/x", add(a="1", b="1", **{"old/c": "1"}), commit_message="first")
    operations = [*add(a="2", older="1"), CommitOperationDelete("b.json"), CommitOperationDelete("old/")]
    huggingface_hub.create_commit("me/x", operations, commit_message="second", commit_description="why")
    first, second = hub.commits("me/x")[1:]
    assert second.changed == ("a.json", "b.json", "old/c.json", "older.json")
    assert (second.message, second.description) == ("second", "why")
    assert set(second.files) == {".gitattributes", "a.json", "older.json"}
    assert first.files["a.json"] == b"1"


def test_a_file_stays_large_until_it_is_rewritten_or_deleted(hub):
    huggingface_hub.create_commit("me/x", add(a="x" * 1_000_001, b=WEIGHTS, c=WEIGHTS), commit_message="large")
    huggingface_hub.create_commit("me/x", [*add(a="small"), CommitOperationDelete("b.json")], commit_message="less")
    assert [commit.large for commit in hub.commits("me/x")] == [set(), {"a.json", "b.json", "c.json"}, {"c.json"}]


def test_a_commit_cannot_be_changed_and_is_known_by_seven_digits(hub):
    commit = hub.commits("me/x")[0]
    with pytest.raises(TypeError, match="does not support item assignment"):
        commit.files["a"] = b""
    assert hub.commits("me/x", revision=commit.oid[:7]) == [commit]
    with pytest.raises(HubError, match="Invalid rev id"):
        hub.commits("me/x", revision=commit.oid[:6])


def test_a_branch_leaves_main_alone(hub):
    huggingface_hub.create_branch("me/x", branch="runs/1")
    huggingface_hub.create_branch("me/x", branch="runs/1", exist_ok=True)
    with pytest.raises(HfHubHTTPError, match="409"):
        huggingface_hub.create_branch("me/x", branch="runs/1")
    huggingface_hub.create_commit("me/x", add(a="1"), commit_message="there", revision="runs/1")
    assert list(hub.files("me/x")) == [".gitattributes"]
    assert hub.files("me/x", revision="runs/1")["a.json"] == b"1"
    heads = {branch.name: branch.target_commit for branch in huggingface_hub.list_repo_refs("me/x").branches}
    assert heads == {name: hub.commits("me/x", name)[-1].oid for name in ("main", "runs/1")}
    assert [told.title for told in huggingface_hub.list_repo_commits("me/x", revision="runs/1")] == [
        "there",
        "initial commit",
    ]


def test_listings_say_what_is_there(hub, folder):
    huggingface_hub.upload_folder(repo_id="me/x", folder_path=folder)
    files = ["config.json", "logs/events.out.tfevents.1", "model.safetensors"]
    assert huggingface_hub.list_repo_files("me/x") == [".gitattributes", *files]
    assert hub.commits("me/x")[-1].folders() == {"logs"}
    assert [entry.path for entry in huggingface_hub.list_repo_tree("me/x", "logs")] == [files[1]]
    assert "logs" in [entry.path for entry in huggingface_hub.list_repo_tree("me/x")]
    assert files[1] not in [entry.path for entry in huggingface_hub.list_repo_tree("me/x")]
    (weights,) = huggingface_hub.get_paths_info("me/x", ["model.safetensors", "none"])
    assert (weights.size, weights.lfs.sha256) == (len(WEIGHTS), hashlib.sha256(WEIGHTS).hexdigest())
    assert huggingface_hub.model_info("me/x").sha == hub.commits("me/x")[-1].oid


def test_downloads_bring_what_was_pushed(hub, folder):
    first = huggingface_hub.upload_folder(repo_id="me/x", folder_path=folder)
    huggingface_hub.create_commit("me/x", add(config='{"new": 1}'), commit_message="second")
    with open(huggingface_hub.hf_hub_download("me/x", "config.json")) as file:
        assert file.read() == '{"new": 1}'
    old = huggingface_hub.snapshot_download("me/x", revision=first.oid, local_dir=folder.parent / "copy")
    for path in ("config.json", "logs/events.out.tfevents.1", "model.safetensors"):
        with open(os.path.join(old, path), "rb") as file:
            assert file.read() == (folder / path).read_bytes()


def test_a_file_in_the_cache_is_not_sent_again(hub, folder):
    huggingface_hub.upload_folder(repo_id="me/x", folder_path=folder)
    paths = [huggingface_hub.hf_hub_download("me/x", "model.safetensors") for _ in range(2)]
    assert paths[0] == paths[1]
    assert num_sent(hub, "GET", "/resolve/main/model.safetensors") == 1


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
    with pytest.raises(EntryNotFoundError):
        list(huggingface_hub.list_repo_tree("me/x", "none"))


def test_nothing_of_a_refused_commit_is_visible(hub):
    before = hub.commits("me/x")
    with pytest.raises(EntryNotFoundError, match="A file with this name doesn't exist"):
        huggingface_hub.create_commit("me/x", [*add(a="1"), CommitOperationDelete("none")], commit_message="half")
    with pytest.raises(EntryNotFoundError, match="A folder with this name doesn't exist"):
        huggingface_hub.create_commit("me/x", [*add(a="1"), CommitOperationDelete("none/")], commit_message="half")
    assert hub.commits("me/x") == before


def test_a_commit_on_an_old_parent_is_refused(hub):
    old = hub.commits("me/x")[-1].oid
    huggingface_hub.create_commit("me/x", add(a="1"), commit_message="first", parent_commit=old)
    with pytest.raises(HfHubHTTPError, match="412"):
        huggingface_hub.create_commit("me/x", add(a="2"), commit_message="second", parent_commit=old)
    assert hub.files("me/x")["a.json"] == b"1"


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


def test_the_token_has_a_name_and_a_wrong_one_none(hub):
    assert huggingface_hub.whoami()["name"] == "me"
    with pytest.raises(HfHubHTTPError, match="Invalid user token"):
        huggingface_hub.whoami(token="hf_wrong")


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


def test_the_client_tries_again_after_a_failure(hub):
    hub.fail("POST", "/preupload/", status=503)
    huggingface_hub.create_commit("me/x", add(a="1"), commit_message="first")
    assert num_sent(hub, "POST", "/preupload/") == 2
    assert hub.files("me/x")["a.json"] == b"1"


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


def test_a_commit_whose_answer_is_cut_is_there_and_not_made_twice(hub):
    hub.cut("POST", "/commit/")
    with pytest.raises(Exception, match="peer closed connection"):
        huggingface_hub.create_commit("me/x", add(a="1"), commit_message="unheard")
    assert hub.commits("me/x")[-1].message == "unheard"
    huggingface_hub.create_commit("me/x", add(a="1"), commit_message="again")
    assert hub.commits("me/x")[-1].message == "unheard"


def test_a_download_that_is_cut_goes_on_where_it_stopped(hub, folder, monkeypatch):
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1024)  # the client loses the chunk in which it is cut
    huggingface_hub.upload_folder(repo_id="me/x", folder_path=folder)
    hub.cut("GET", "/resolve/main/model.safetensors")
    with open(huggingface_hub.hf_hub_download("me/x", "model.safetensors"), "rb") as file:
        assert file.read() == WEIGHTS
    assert hub.requests[-1].headers["range"] == f"bytes={len(WEIGHTS) // 2}-"


def test_a_range_beyond_the_file_is_refused(hub):
    address = f"{hub.endpoint}/me/x/resolve/main/.gitattributes"
    with pytest.raises(urllib.error.HTTPError, match="416"):
        urllib.request.urlopen(urllib.request.Request(address, headers={"Range": "bytes=9999-"}))
    with urllib.request.urlopen(urllib.request.Request(address, headers={"Range": "bytes=1-3"})) as answer:
        assert answer.read() == hub.files("me/x")[".gitattributes"][1:4]


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


PUSH = "import sys, huggingface_hub as h; h.upload_folder(repo_id='me/x', folder_path=sys.argv[1])"


def push(hub, folder) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", PUSH, str(folder)], env={**os.environ, **hub.environment()}, stderr=subprocess.DEVNULL
    )


def test_a_client_that_is_killed_while_it_waits_leaves_no_commit(loopback_hub, folder):
    with loopback_hub.online():
        huggingface_hub.create_repo("me/x")
    with loopback_hub.hold("POST", "/commit/") as hold, push(loopback_hub, folder) as killed:
        hold.wait()
        killed.kill()
        loopback_hub.drop("POST", "/commit/")
    assert len(loopback_hub.commits("me/x")) == 1
    with push(loopback_hub, folder) as again:
        assert again.wait() == 0
    assert loopback_hub.files("me/x")["model.safetensors"] == WEIGHTS
    assert num_sent(loopback_hub, "PUT", "/lfs/") == 2


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


def test_a_hold_that_nothing_reaches_says_so(hub):
    with pytest.raises(TimeoutError, match="POST /commit/"), hub.hold("POST", "/commit/") as hold:
        hold.wait(timeout=0.01)


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


def test_authorization_is_not_recorded(hub):
    huggingface_hub.whoami()
    assert not hub.requests_with(hub.token)
    assert not hub.requests_with(base64.b64encode(hub.token.encode()).decode())


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


def test_a_trainer_pushes_and_its_model_is_loaded_from_here(hub, tmp_path, tiny_model_path):
    from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

    data = [{"input_ids": [1, 2, 3], "labels": [1, 2, 3]}]
    args = TrainingArguments(
        output_dir=str(tmp_path / "run"),
        push_to_hub=True,
        hub_model_id="me/run",
        hub_strategy="checkpoint",
        hub_always_push=True,
        save_steps=1,
        max_steps=2,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(AutoModelForCausalLM.from_pretrained(tiny_model_path), args, train_dataset=data)
    trainer.train()
    trainer.push_to_hub()
    messages = [commit.message for commit in hub.commits("me/run")]
    assert messages[1] == "Training in progress, step 1"
    assert messages[-1] == "End of training"
    state = json.loads(hub.files("me/run")["last-checkpoint/trainer_state.json"])
    assert state["global_step"] == 2
    trained = trainer.model.state_dict()
    loaded = AutoModelForCausalLM.from_pretrained("me/run").state_dict()
    assert all(loaded[name].equal(trained[name]) for name in trained)
