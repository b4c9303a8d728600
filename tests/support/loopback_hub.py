"""A Hugging Face Hub for models, in memory and on 127.0.0.1, for the real `huggingface_hub` client.

It takes every file within the commit: no LFS, no Xet. It has no other users, tags or pull requests.
"""

import base64
import hashlib
import importlib
import json
import re
import secrets
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import pytest


# repository, what is asked of it, revision or branch, file
PATH = re.compile(r"(?:/api/models)?/([^/]+/[^/]+)(?:/(\w+)/([^/]+)(?:/(.+))?)?")


@dataclass(eq=False)
class HubError(Exception):
    """A refusal: HTTP status, message and, where the Hub sends one, its `X-Error-Code`."""

    status: int
    message: str
    code: str | None = None


@dataclass(frozen=True)
class Commit:
    """The whole tree after one commit, content by path."""

    message: str
    files: dict[str, bytes]
    oid: str = field(default_factory=lambda: secrets.token_hex(20))


class LoopbackHub:
    """A running Hub with one user, `me`, and one token, new for each Hub, so that it can be searched for.

    Attributes:
        branches (`dict[str, dict[str, list[Commit]]]`): By repository and name, the oldest commit first.
        private (`set[str]`): Ids of the private repositories.
        requests (`list[bytes]`): Paths, headers and bodies that clients sent, `Authorization` headers left out.
    """

    def __init__(self):
        self.token = f"hf_{secrets.token_hex(17)}"
        self.private = set()
        self.requests = []
        self.branches = {}
        self.faults = []  # by pattern of a path, what happens to a request

    def act_out_fault(self, path):
        """Does once what is to happen to a request for this path, if anything."""
        for fault in self.faults:
            pattern, act = fault
            if re.search(pattern, path):
                self.faults.remove(fault)
                act()
                return

    def commits(self, repo_id, revision="main"):
        """The commits up to a branch's head or a commit, the oldest first; the first one is the Hub's own."""
        if repo_id not in self.branches:
            raise HubError(404, "Repository not found", "RepoNotFound")
        for name, commits in self.branches[repo_id].items():
            for end in range(len(commits), 0, -1):
                if revision in (name, commits[end - 1].oid):
                    return commits[:end]
        raise HubError(404, f"Invalid rev id: {revision}", "RevisionNotFound")

    def files(self, repo_id, revision="main"):
        """Path -> content of every file at a branch or a commit."""
        return self.commits(repo_id, revision)[-1].files

    def fail(self, path, status, times=1):
        """Answers the next requests whose path matches with an error status, 0 for no answer; they have no effect."""

        def refuse():
            raise HubError(status, "a fault of the loopback Hub")

        self.faults += [(path, refuse)] * times

    @contextmanager
    def hold(self, path):
        """Lets the next request of a path that matches wait until the `with` block ends; the event says it is here."""
        is_here = threading.Event()
        may_go = threading.Event()

        def wait():
            is_here.set()
            may_go.wait(60)

        self.faults.append((path, wait))
        try:
            yield is_here
        finally:
            may_go.set()

    def requests_with(self, secret):
        """The requests that carry a text, plain or in base64."""
        plain = secret.encode()
        # base64 spells three bytes as four characters, so a text differs by its place; its ends depend on neighbors
        encoded = [base64.b64encode(b"o" * offset + plain)[4:-4] for offset in range(3)]
        return [sent for sent in self.requests if any(spelling in sent for spelling in [plain, *encoded])]

    @contextmanager
    def online(self, home):
        """Runs the Hub and lets this process talk to it, token included, for the length of a `with` block."""
        from huggingface_hub import hf_api

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.hub = self
        self.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        environment = {
            "HF_ENDPOINT": self.endpoint,
            "HF_TOKEN": self.token,
            "HF_HOME": str(home),
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1",
            "NO_PROXY": "127.0.0.1",
        }
        try:
            with pytest.MonkeyPatch.context() as patch:
                for name, text in environment.items():
                    patch.setenv(name, text)
                patch.setattr(hf_api.api, "endpoint", self.endpoint)
                read_environment_again()
                yield self
        finally:
            read_environment_again()
            server.shutdown()
            server.server_close()


class Handler(BaseHTTPRequestHandler):
    """One connection of a client; `server.hub` is the `LoopbackHub`."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body are two writes; the second would wait 40 ms for the first

    def do_GET(self):
        authorization = self.headers["Authorization"]
        del self.headers["Authorization"]
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.hub.requests.append(f"{self.path}\n{self.headers}\n".encode() + body)
        status = 200
        headers = {"Content-Type": "application/json"}
        try:
            content = self.answer(body, authorization)
        except HubError as error:
            status = error.status
            if status == 0:
                self.close_connection = True
                return
            content = {"error": error.message}
            headers = {"X-Error-Message": error.message}
            if error.code:
                headers["X-Error-Code"] = error.code
        if isinstance(content, tuple):
            content, commit = content
            headers = {"ETag": f'"{git_oid(content)}"', "X-Repo-Commit": commit}
        else:
            content = json.dumps(content).encode()
        headers["Content-Length"] = str(len(content))
        self.send_response(status)
        for name, text in headers.items():
            self.send_header(name, text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_HEAD = do_POST = do_GET

    def answer(self, body, authorization):
        """The content of an answer, as JSON, or of a file, with its commit; strangers write nothing."""
        hub = self.server.hub
        path = urlsplit(self.path).path
        hub.act_out_fault(path)
        if path == "/api/validate-yaml":
            return {}
        if authorization != f"Bearer {hub.token}" and (authorization or self.command == "POST"):
            raise HubError(401, "Invalid credentials")
        if path == "/api/repos/create":
            return self.created(json.loads(body))
        repo_id, route, revision, file = PATH.fullmatch(path).groups()
        commits = hub.commits(repo_id, unquote(revision or "main") if route != "branch" else "main")
        if route == "branch":
            hub.branches[repo_id].setdefault(revision, commits)
            return {}
        if route == "commit":
            return self.committed(repo_id, revision, body)
        files = commits[-1].files
        if route == "preupload":
            return {"files": [uploadable(line["path"], files) for line in json.loads(body)["files"]]}
        if route == "tree":
            return [
                {"type": "file", "path": path, "size": len(content), "oid": git_oid(content)}
                for path, content in files.items()
            ]
        if route == "resolve":
            return content_of(unquote(file), files), commits[-1].oid
        return {"id": repo_id, "sha": commits[-1].oid, "tags": [], "siblings": [{"rfilename": path} for path in files]}

    def created(self, wanted):
        """A new repository."""
        hub = self.server.hub
        repo_id = f"me/{wanted['name']}"
        hub.branches.setdefault(repo_id, {"main": [Commit("initial commit", {".gitattributes": b""})]})
        if wanted.get("visibility") == "private":
            hub.private.add(repo_id)
        return {"url": f"{hub.endpoint}/{repo_id}", "name": repo_id}

    def committed(self, repo_id, revision, body):
        """A commit of files, and of deletions: a line without content deletes its file."""
        hub = self.server.hub
        commits = hub.commits(repo_id, unquote(revision))
        header, *lines = (json.loads(line)["value"] for line in body.splitlines())
        tree = dict(commits[-1].files)
        for line in lines:
            if "content" in line:
                tree[line["path"]] = base64.b64decode(line["content"])
            else:
                content_of(line["path"], commits[-1].files)
                del tree[line["path"]]
        commit = Commit(header["summary"], tree)
        hub.branches[repo_id][revision].append(commit)
        url = f"{hub.endpoint}/{repo_id}/commit/{commit.oid}"
        return {"success": True, "commitOid": commit.oid, "commitUrl": url}

    def log_message(self, *args):
        pass


def content_of(path, files):
    if path not in files:
        raise HubError(404, "Entry not found", "EntryNotFound")
    return files[path]


def uploadable(path, files):
    answer = {"path": path, "uploadMode": "regular", "shouldIgnore": False}
    if path in files:
        answer["oid"] = git_oid(files[path])
    return answer


def git_oid(content):
    """Git's name of a blob: SHA-1 in hex."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def read_environment_again():
    """Undoes what the Hub's clients keep of the environment: their constants, connections and shared objects."""
    from huggingface_hub import close_session, constants

    importlib.reload(constants)
    close_session()
    if transformers_hub := sys.modules.get("transformers.utils.hub"):
        transformers_hub._hf_api = None
