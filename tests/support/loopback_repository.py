"""A model repository of the loopback Hub: branches of immutable commits, and the large objects that commits may name.

It knows nothing of HTTP; what the Hub would refuse is raised as `HubError`.
"""

import base64
import binascii
import hashlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType


LARGE_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".png")
LARGE_NAME = "tfevents"
LARGE_SIZE = 1_000_000  # bytes; the Hub's is 10 MB, ours keeps tests small


class HubError(Exception):
    """A refusal: HTTP status, message and, where the Hub sends one, its `X-Error-Code`."""

    def __init__(self, status: int, message: str, code: str | None = None, headers: dict[str, str] | None = None):
        super().__init__(message)
        self.status, self.message, self.code, self.headers = status, message, code, headers or {}


def is_large(path: str, size: int, sample: bytes) -> bool:
    """Whether the Hub wants the file through LFS: by its name, its size in bytes, or a binary start."""
    return path.endswith(LARGE_SUFFIXES) or LARGE_NAME in path or size > LARGE_SIZE or b"\0" in sample


def git_oid(content: bytes) -> str:
    """Git's name of a blob: SHA-1 in hex."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass(frozen=True)
class Commit:
    """The whole tree after one commit, and what that commit changed.

    Attributes:
        oid (`str`): 40 hex digits.
        message (`str`): First line.
        description (`str`): The rest, empty if there is none.
        files (`Mapping[str, bytes]`): Path -> content of every file; cannot be changed.
        large (`frozenset[str]`): The paths that are LFS files.
        changed (`tuple[str, ...]`): Paths added, rewritten or deleted, sorted.
    """

    oid: str
    message: str
    description: str
    files: Mapping[str, bytes]
    large: frozenset[str]
    changed: tuple[str, ...]
    date: str = field(default_factory=lambda: datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z"))

    def content(self, path: str) -> bytes:
        if path not in self.files:
            raise HubError(404, "Entry not found", "EntryNotFound", {"X-Repo-Commit": self.oid})
        return self.files[path]

    def etag(self, path: str) -> str:
        """What tells the client that its copy is the same: SHA-256 of an LFS file, git's SHA-1 of any other."""
        content = self.content(path)
        return hashlib.sha256(content).hexdigest() if path in self.large else git_oid(content)

    def entry(self, path: str) -> dict:
        """The file as the tree endpoint tells it."""
        content = self.content(path)
        if path not in self.large:
            return {"type": "file", "path": path, "size": len(content), "oid": git_oid(content)}
        digest = self.etag(path)
        pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize {len(content)}\n".encode()
        lfs = {"oid": digest, "size": len(content), "pointerSize": len(pointer)}
        return {"type": "file", "path": path, "size": len(content), "oid": git_oid(pointer), "lfs": lfs}


class Repository:
    """Branches as lists of commits, oldest first; a commit is there whole or not at all."""

    def __init__(self, repo_id: str, is_private: bool = False):
        self.repo_id = repo_id
        self.is_private = is_private
        self.objects: dict[str, bytes] = {}
        self.branches: dict[str, list[Commit]] = {"main": []}
        self._lock = threading.Lock()
        rules = "".join(f"*{name} filter=lfs diff=lfs merge=lfs -text\n" for name in (*LARGE_SUFFIXES, "tfevents*"))
        self._append("main", "initial commit", "", {".gitattributes": rules.encode()}, frozenset())

    def history(self, revision: str) -> list[Commit]:
        """The commits up to a branch's head or a commit (seven digits of its name are enough), oldest first."""
        if revision in self.branches:
            return list(self.branches[revision])
        for commits in self.branches.values():
            for position, commit in enumerate(commits):
                if len(revision) >= 7 and commit.oid.startswith(revision):
                    return commits[: position + 1]
        raise HubError(404, f"Invalid rev id: {revision}", "RevisionNotFound")

    def at(self, revision: str) -> Commit:
        return self.history(revision)[-1]

    def create_branch(self, branch: str, start: str) -> None:
        with self._lock:
            if branch in self.branches:
                raise HubError(409, f"Reference already exists: {branch}")
            self.branches[branch] = self.history(start)

    def store(self, oid: str, content: bytes) -> None:
        """Keeps an LFS object whose bytes are what its name says."""
        digest = hashlib.sha256(content).hexdigest()
        if digest != oid:
            raise HubError(400, f"The uploaded bytes have SHA-256 {digest}, not {oid}")
        self.objects[oid] = content

    def commit(self, branch: str, lines: list[dict]) -> Commit:
        """Applies the lines of a commit request, header first, or raises and leaves the branch as it was."""
        if not lines or lines[0]["key"] != "header":
            raise HubError(400, "The first line must be the header")
        header = lines[0]["value"]
        with self._lock:
            if branch not in self.branches:
                raise HubError(404, f"Invalid rev id: {branch}", "RevisionNotFound")
            head = self.branches[branch][-1]
            files, large = dict(head.files), set(head.large)
            for line in lines[1:]:
                self._apply(line["key"], line["value"], files, large)
            return self._append(
                branch, header["summary"], header.get("description", ""), files, frozenset(large & files.keys())
            )

    def _apply(self, key: str, value: dict, files: dict[str, bytes], large: set[str]) -> None:
        path = value["path"]
        match key:
            case "file":
                files[path] = decoded(value["content"])
                large.discard(path)
            case "lfsFile":
                if value["oid"] not in self.objects:
                    raise HubError(400, f"LFS pointer of {path} pointed to a file that does not exist: {value['oid']}")
                files[path] = self.objects[value["oid"]]
                large.add(path)
            case "deletedFile":
                if path not in files:
                    raise HubError(404, f"A file with this name doesn't exist: {path}", "EntryNotFound")
                del files[path]
            case "deletedFolder":
                inside = [name for name in files if name.startswith(path.rstrip("/") + "/")]
                if not inside:
                    raise HubError(404, f"A folder with this name doesn't exist: {path}", "EntryNotFound")
                for name in inside:
                    del files[name]
            case _:
                raise HubError(400, f"Unknown operation: {key}")

    def _append(
        self, branch: str, message: str, description: str, files: dict[str, bytes], large: frozenset[str]
    ) -> Commit:
        commits = self.branches[branch]
        before = commits[-1].files if commits else {}
        changed = tuple(sorted(path for path in {*before, *files} if before.get(path) != files.get(path)))
        parent = commits[-1].oid if commits else ""
        name = repr((self.repo_id, parent, message, [(path, git_oid(files[path])) for path in sorted(files)]))
        oid = hashlib.sha1(name.encode()).hexdigest()
        commits.append(Commit(oid, message, description, MappingProxyType(files), large, changed))
        return commits[-1]


def decoded(content: str) -> bytes:
    """The bytes of a base64 text."""
    try:
        return base64.b64decode(content, validate=True)
    except binascii.Error as error:
        raise HubError(400, f"Not base64: {error}") from error
