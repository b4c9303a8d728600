"""The Hub's HTTP endpoints that `huggingface_hub` calls for models, answered from a `LoopbackHub`'s memory."""

import json
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, unquote, urlsplit

import yaml
from loopback_repository import HubError, Repository, decoded, is_large


@dataclass(frozen=True)
class Request:
    """What a client sent: `path` with its query, `headers` without `Authorization`, `body` in bytes."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    def query(self) -> dict[str, list[str]]:
        return parse_qs(urlsplit(self.path).query)

    def json(self) -> dict:
        return parsed(self.body)

    def json_lines(self) -> list[dict]:
        return [parsed(line) for line in self.body.splitlines()]


@dataclass(frozen=True)
class Answer:
    """An HTTP answer; `body` in bytes."""

    body: bytes
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


def parsed(text: bytes) -> dict:
    try:
        return json.loads(text)
    except ValueError as error:
        raise HubError(400, f"Not JSON: {error}") from error


def json_answer(content: object, status: int = 200, headers: dict[str, str] | None = None) -> Answer:
    return Answer(json.dumps(content).encode(), status, {"Content-Type": "application/json", **(headers or {})})


def refusal(error: HubError) -> Answer:
    code = {"X-Error-Code": error.code} if error.code else {}
    headers = {"X-Error-Message": error.message.encode("ascii", "replace").decode(), **code, **error.headers}
    return json_answer({"error": error.message}, error.status, headers)


def create_repo(hub, request) -> Answer:
    wanted = request.json()
    namespace = wanted.get("organization") or hub.user
    if namespace != hub.user:
        raise HubError(403, f'You don\'t have the rights to create a model under the namespace "{namespace}"')
    repo_id = f"{namespace}/{wanted['name']}"
    where = {"url": f"{hub.endpoint}/{repo_id}", "name": repo_id}
    created = Repository(repo_id, wanted.get("visibility") == "private")
    if hub.repositories.setdefault(repo_id, created) is not created:
        return json_answer({"error": "You already created this model repo", **where}, 409)
    return json_answer(where)


def card_metadata(text: str) -> dict:
    """The YAML at the top of a model card, empty if there is none."""
    block = re.match(r"\s*---[ \t]*\n(.*?)\n---", text, re.DOTALL)
    return (yaml.safe_load(block[1]) or {}) if block else {}


def validate_yaml(hub, request) -> Answer:
    try:
        is_empty = not card_metadata(request.json()["content"])
    except yaml.YAMLError as error:
        return json_answer({"errors": [{"message": f"Invalid YAML: {error}"}], "warnings": []}, 400)
    warnings = [{"message": "empty or missing yaml metadata in repo card"}] if is_empty else []
    return json_answer({"errors": [], "warnings": warnings})


def repo_info(hub, request, repo: Repository, revision: str = "main") -> Answer:
    commit = repo.at(revision)
    info = {
        "id": repo.repo_id,
        "modelId": repo.repo_id,
        "author": hub.user,
        "sha": commit.oid,
        "lastModified": commit.date,
        "private": repo.is_private,
        "tags": [],
        "cardData": card_metadata(commit.files.get("README.md", b"").decode()),
        "siblings": [{"rfilename": path} for path in sorted(commit.files)],
    }
    return json_answer(info)


def tree(hub, request, repo: Repository, revision: str) -> Answer:
    commit = repo.at(revision)
    return json_answer([commit.entry(path) for path in sorted(commit.files)])


def create_branch(hub, request, repo: Repository, branch: str) -> Answer:
    repo.create_branch(branch, request.json().get("startingPoint", "main"))
    return json_answer({})


def preupload(hub, request, repo: Repository, revision: str) -> Answer:
    commit = repo.at(revision)

    def told(file: dict) -> dict:
        path = file["path"]
        mode = "lfs" if is_large(path, file["size"], decoded(file["sample"])) else "regular"
        known = {"oid": commit.etag(path)} if path in commit.files else {}
        return {"path": path, "uploadMode": mode, "shouldIgnore": False, **known}

    return json_answer({"files": [told(file) for file in request.json()["files"]]})


def commit(hub, request, repo: Repository, revision: str) -> Answer:
    made = repo.commit(revision, request.json_lines())
    url = f"{hub.endpoint}/{repo.repo_id}/commit/{made.oid}"
    return json_answer({"success": True, "commitOid": made.oid, "commitUrl": url})


def lfs_batch(hub, request, repo: Repository) -> Answer:
    def told(wanted: dict) -> dict:
        if wanted["oid"] in repo.objects:
            return wanted
        ticket = secrets.token_hex(16)
        hub.tickets[ticket] = repo
        upload = {"href": f"{hub.endpoint}/lfs/{wanted['oid']}?ticket={ticket}"}
        verify = {"href": f"{hub.endpoint}/{repo.repo_id}.git/info/lfs/verify"}
        return {**wanted, "actions": {"upload": upload, "verify": verify}}

    objects = [told(wanted) for wanted in request.json()["objects"]]
    return json_answer({"transfer": "basic", "objects": objects})


def lfs_upload(hub, request, oid: str) -> Answer:
    """The storage behind the Hub: no token, but an address that the Hub gave out."""
    repo = hub.tickets.get(request.query().get("ticket", [""])[0])
    if repo is None:
        raise HubError(403, "The Hub did not give out this address")
    repo.store(oid, request.body)
    return Answer(b"")


def lfs_verify(hub, request, repo: Repository) -> Answer:
    wanted = request.json()
    if len(repo.objects.get(wanted["oid"], b"")) != wanted["size"]:
        raise HubError(404, f"The object {wanted['oid']} of {wanted['size']} bytes was not uploaded")
    return Answer(b"")


def resolve(hub, request, repo: Repository, revision: str, path: str) -> Answer:
    commit = repo.at(revision)
    content = commit.content(path)
    headers = {"ETag": f'"{commit.etag(path)}"', "X-Repo-Commit": commit.oid}
    if path in commit.large:
        headers |= {"X-Linked-ETag": headers["ETag"], "X-Linked-Size": str(len(content))}
    return Answer(content, 200, headers)


REPO = r"(?P<repo>[^/]+(/[^/]+)?)"
API = rf"/api/models/{REPO}"
REVISION = r"(?P<revision>[^/]+)"

# method, path without its query, whether the Hub wants a token even for a public model, endpoint
ROUTES: list[tuple[str, str, bool, Callable[..., Answer]]] = [
    ("POST", r"/api/repos/create", True, create_repo),
    ("POST", r"/api/validate-yaml", False, validate_yaml),
    ("GET", API, False, repo_info),
    ("GET", rf"{API}/revision/{REVISION}", False, repo_info),
    ("GET", rf"{API}/tree/{REVISION}", False, tree),
    ("POST", rf"{API}/branch/(?P<branch>[^/]+)", True, create_branch),
    ("POST", rf"{API}/preupload/{REVISION}", True, preupload),
    ("POST", rf"{API}/commit/{REVISION}", True, commit),
    ("POST", rf"/{REPO}\.git/info/lfs/objects/batch", True, lfs_batch),
    ("POST", rf"/{REPO}\.git/info/lfs/verify", True, lfs_verify),
    ("PUT", r"/lfs/(?P<oid>[0-9a-f]{64})", False, lfs_upload),
    ("GET", rf"/{REPO}/resolve/{REVISION}/(?P<path>.+)", False, resolve),
]


def answered(hub, request: Request, authorization: str | None) -> Answer:
    """The answer of the endpoint that the request names, or the Hub's refusal."""
    is_known = authorization == f"Bearer {hub.token}"
    try:
        if authorization is not None and not is_known:
            raise HubError(401, "Invalid credentials in Authorization header")
        for method, pattern, needs_token, endpoint in ROUTES:
            match = re.fullmatch(pattern, urlsplit(request.path).path)
            if match and method == request.method.replace("HEAD", "GET"):
                if needs_token and not is_known:
                    raise HubError(401, "Invalid username or password.")
                names = {name: unquote(text) for name, text in match.groupdict().items() if text is not None}
                if "repo" in names:
                    names["repo"] = readable_repository(hub, names["repo"], is_known)
                return endpoint(hub, request, **names)
        raise HubError(404, f"The loopback Hub does not answer {request.method} {request.path}")
    except HubError as error:
        return refusal(error)


def readable_repository(hub, repo_id: str, is_known: bool) -> Repository:
    """The repository, refused as the Hub does it: to strangers a private one and none look the same."""
    repo = hub.repositories.get(repo_id)
    if repo and (is_known or not repo.is_private):
        return repo
    if not is_known:
        raise HubError(401, "Invalid username or password.", "RepoNotFound")
    raise HubError(404, "Repository not found", "RepoNotFound")


class Handler(BaseHTTPRequestHandler):
    """One connection of a client; `server.hub` is the `LoopbackHub`."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body are two writes; the second would wait 40 ms for the first

    def do_GET(self) -> None:
        hub = self.server.hub
        num_bytes = int(self.headers.get("Content-Length", 0))
        headers = {name.lower(): text for name, text in self.headers.items() if name.lower() != "authorization"}
        request = Request(self.command, self.path, headers, self.rfile.read(num_bytes))
        hub.requests.append(request)
        if len(request.body) < num_bytes:  # the client is gone; half a request does nothing
            self.close_connection = True
            return
        fault = hub.met_fault(request)
        if fault == "drop":
            self.close_connection = True
        elif isinstance(fault, int):
            self._send(refusal(HubError(fault, "A fault of the loopback Hub")))
        else:
            self._send(answered(hub, request, self.headers.get("Authorization")))

    do_HEAD = do_POST = do_PUT = do_GET

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        for name, text in {**answer.headers, "Content-Length": str(len(answer.body))}.items():
            self.send_header(name, text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def log_message(self, *args) -> None:
        pass
