"""A Hugging Face Hub for models, in memory and on 127.0.0.1, for the real `huggingface_hub` client.

It takes every file within the commit. Not here: LFS and Xet, datasets and Spaces, pull requests, tags, rights of more
than one user.
"""

import base64
import hashlib
import importlib
import json
import re
import secrets
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType
from urllib.parse import unquote, urlsplit

import pytest


REPO, REVISION = r"(?P<repo>[^/]+/[^/]+)", r"(?P<revision>[^/]+)"
ROUTES = {
    "create": r"POST /api/repos/create",
    "validate": r"POST /api/validate-yaml",
    "branch": rf"POST /api/models/{REPO}/branch/(?P<branch>[^/]+)",
    "preupload": rf"POST /api/models/{REPO}/preupload/{REVISION}",
    "commit": rf"POST /api/models/{REPO}/commit/{REVISION}",
    "info": rf"GET /api/models/{REPO}(/revision/{REVISION})?",
    "tree": rf"GET /api/models/{REPO}/tree/{REVISION}",
    "resolve": rf"GET /{REPO}/resolve/{REVISION}/(?P<path>.+)",
}


class HubError(Exception):
    """A refusal: HTTP status, message and, where the Hub sends one, its `X-Error-Code`."""

    def __init__(self, status: int, message: str, code: str = ""):
        super().__init__(message)
        self.status, self.code = status, code


@dataclass(frozen=True)
class Request:
    """What a client sent: `path` with its query, `headers` without `Authorization`, `body` in bytes."""

    method: str
    path: str
    headers: str
    body: bytes


@dataclass(frozen=True)
class Commit:
    """The whole tree after one commit, content by path, and the sorted paths that it changed; it cannot be changed."""

    message: str
    files: Mapping[str, bytes]
    changed: tuple[str, ...]
    oid: str = field(default_factory=lambda: secrets.token_hex(20))


def git_oid(content: bytes) -> str:
    """Git's name of a blob: SHA-1 in hex."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Repository:
    """Branches as lists of commits, oldest first; a commit is there whole or not at all."""

    def __init__(self, is_private: bool):
        self.is_private = is_private
        self.branches = {"main": [Commit("initial commit", MappingProxyType({".gitattributes": b""}), ())]}

    def history(self, revision: str) -> list[Commit]:
        """The commits up to a branch's head or a commit, oldest first."""
        for name, commits in self.branches.items():
            for end in range(len(commits), 0, -1):
                if revision in (name, commits[end - 1].oid):
                    return commits[:end]
        raise HubError(404, f"Invalid rev id: {revision}", "RevisionNotFound")

    def commit(self, branch: str, lines: list[dict]) -> Commit:
        """Applies the lines of a commit request, header first, or raises and leaves the branch as it was."""
        before = self.history(branch)[-1].files
        files = dict(before)
        for line in lines[1:]:
            path = line["value"]["path"]
            if line["key"] == "file":
                files[path] = base64.b64decode(line["value"]["content"], validate=True)
            elif files.pop(path, None) is None:
                raise HubError(404, f"A file with this name doesn't exist: {path}", "EntryNotFound")
        changed = tuple(sorted(path for path in {*before, *files} if before.get(path) != files.get(path)))
        self.branches[branch].append(Commit(lines[0]["value"]["summary"], MappingProxyType(files), changed))
        return self.branches[branch][-1]


@dataclass
class Fault:
    """What happens to the next `times` requests of a method whose path matches; a hold waits for its release."""

    effect: int | str
    method: str
    path_regex: str
    times: int = 1
    reached: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)

    def wait(self, timeout: float = 60.0) -> None:
        """Returns once the held request is here; after `timeout` seconds raises `TimeoutError`."""
        if not self.reached.wait(timeout):
            raise TimeoutError(f"no {self.method} {self.path_regex} arrived within {timeout} s")

    def __enter__(self) -> "Fault":
        return self

    def __exit__(self, *error) -> None:
        self.released.set()


class LoopbackHub:
    """A running Hub with one user, `me`, and one token, new for each Hub, so that it can be searched for.

    Attributes:
        requests (`list[Request]`): Everything clients sent, in order of arrival, `Authorization` headers left out.
        repositories (`dict[str, Repository]`): By their id.
    """

    def __init__(self, home: Path):
        self.token = f"hf_{secrets.token_hex(17)}"
        self.requests: list[Request] = []
        self.repositories: dict[str, Repository] = {}
        self._home = home
        self._faults: list[Fault] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.hub = self
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> "LoopbackHub":
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *error) -> None:
        for fault in self._faults:
            fault.released.set()
        self._server.shutdown()
        self._server.server_close()

    def commits(self, repo_id: str, revision: str = "main") -> list[Commit]:
        """The commits up to a branch or a commit, oldest first; the first one is the Hub's own."""
        return self.repositories[repo_id].history(revision)

    def files(self, repo_id: str, revision: str = "main") -> Mapping[str, bytes]:
        """Path -> content of every file at a branch or a commit."""
        return self.commits(repo_id, revision)[-1].files

    def fail(self, method: str, path_regex: str, status: int | str = 503, times: int = 1) -> Fault:
        """Answers the next matching requests with an error status, `"drop"` for no answer; they have no effect."""
        self._faults.append(Fault(status, method, path_regex, times))
        return self._faults[-1]

    def hold(self, method: str, path_regex: str) -> Fault:
        """Lets the next matching request wait, fully received and without effect, until the `with` block ends."""
        return self.fail(method, path_regex, "hold")

    def met_fault(self, request: Request) -> int | str | None:
        """The effect of the fault that a request meets, after any hold; called by the server."""
        matching = (
            fault
            for fault in self._faults
            if fault.times and fault.method == request.method and re.search(fault.path_regex, request.path)
        )
        fault = next(matching, None)
        if fault is None:
            return None
        fault.times -= 1
        if fault.effect != "hold":
            return fault.effect
        fault.reached.set()
        fault.released.wait()
        return None

    def requests_with(self, secret: str) -> list[Request]:
        """The requests that carry a text outside `Authorization`: in path, headers or body, plain or in base64."""
        parts = [base64.b64encode(b"o" * offset + secret.encode())[4:-4] for offset in range(3)]
        spellings = [secret.encode(), *parts]
        sent = [(request, f"{request.path}\n{request.headers}\n".encode() + request.body) for request in self.requests]
        return [request for request, text in sent if any(spelling in text for spelling in spellings)]

    @contextmanager
    def online(self) -> Iterator["LoopbackHub"]:
        """Lets this process talk to this Hub, token included, for the length of a `with` block."""
        from huggingface_hub import hf_api

        environment = {"HF_ENDPOINT": self.endpoint, "HF_TOKEN": self.token, "HF_HOME": str(self._home / "hf-home")}
        environment |= {"HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1"}
        try:
            with pytest.MonkeyPatch.context() as patch:
                for name, text in environment.items():
                    patch.setenv(name, text)
                patch.setattr(hf_api.api, "endpoint", self.endpoint)
                read_environment_again()
                yield self
        finally:
            read_environment_again()

    def answer(self, request: Request, is_known: bool) -> dict | bytes:
        """The content of an answer, JSON or a file's; strangers write nothing."""
        target = f"{request.method.replace('HEAD', 'GET')} {urlsplit(request.path).path}"
        found = [(route, match) for route, regex in ROUTES.items() if (match := re.fullmatch(regex, target))]
        if not found:
            raise HubError(404, f"the loopback Hub does not answer {target}")
        route, match = found[0]
        names = {name: unquote(text or "main") for name, text in match.groupdict().items()}
        if not is_known and request.method == "POST" and route != "validate":
            raise HubError(401, "Invalid username or password.")
        if route == "create":
            wanted = json.loads(request.body)
            repo_id = f"me/{wanted['name']}"
            self.repositories.setdefault(repo_id, Repository(wanted.get("visibility") == "private"))
            return {"url": f"{self.endpoint}/{repo_id}", "name": repo_id}
        if route == "validate":
            return {"errors": [], "warnings": []}
        repo = self.repositories.get(names["repo"])
        if repo is None:
            raise HubError(404, "Repository not found", "RepoNotFound")
        if route == "branch":
            repo.branches.setdefault(names["branch"], repo.history("main"))
            return {}
        if route == "commit":
            made = repo.commit(names["revision"], [json.loads(line) for line in request.body.splitlines()])
            url = f"{self.endpoint}/{names['repo']}/commit/{made.oid}"
            return {"success": True, "commitOid": made.oid, "commitUrl": url}
        head = repo.history(names["revision"])[-1]
        if route == "preupload":
            known = {path: {"oid": git_oid(content)} for path, content in head.files.items()}
            asked = [file["path"] for file in json.loads(request.body)["files"]]
            told = [
                {"path": path, "uploadMode": "regular", "shouldIgnore": False} | known.get(path, {}) for path in asked
            ]
            return {"files": told}
        if route == "info":
            siblings = [{"rfilename": path} for path in head.files]
            return {"id": names["repo"], "sha": head.oid, "private": repo.is_private, "tags": [], "siblings": siblings}
        if route == "tree":
            return [
                {"type": "file", "path": path, "size": len(content), "oid": git_oid(content)}
                for path, content in head.files.items()
            ]
        if names["path"] not in head.files:
            raise HubError(404, "Entry not found", "EntryNotFound")
        return head.files[names["path"]]


class Handler(BaseHTTPRequestHandler):
    """One connection of a client; `server.hub` is the `LoopbackHub`."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body are two writes; the second would wait 40 ms for the first

    def do_GET(self) -> None:
        hub, authorization = self.server.hub, self.headers["Authorization"]
        del self.headers["Authorization"]
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        request = Request(self.command, self.path, str(self.headers), body)
        hub.requests.append(request)
        headers: dict[str, str] = {}
        try:
            if (fault := hub.met_fault(request)) == "drop":
                self.close_connection = True
                return
            if fault is not None:
                raise HubError(fault, "a fault of the loopback Hub")
            if authorization not in (None, f"Bearer {hub.token}"):
                raise HubError(401, "Invalid credentials in Authorization header")
            status, content = 200, hub.answer(request, authorization is not None)
        except HubError as error:
            status, content = error.status, {"error": str(error)}
            headers = {"X-Error-Message": str(error), "X-Error-Code": error.code}
        if isinstance(content, bytes):
            commit = hub.commits("/".join(self.path.split("/")[1:3]), unquote(self.path.split("/")[4]))[-1]
            headers = {"ETag": f'"{git_oid(content)}"', "X-Repo-Commit": commit.oid}
        else:
            content, headers["Content-Type"] = json.dumps(content).encode(), "application/json"
        self.send_response(status)
        for name, text in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_HEAD = do_POST = do_GET

    def log_message(self, *args) -> None:
        pass


def read_environment_again() -> None:
    """Undoes what the Hub's clients keep of the environment: their constants, connections and shared objects."""
    from huggingface_hub import close_session, constants

    importlib.reload(constants)
    close_session()
    if transformers_hub := sys.modules.get("transformers.utils.hub"):
        transformers_hub._hf_api = None
