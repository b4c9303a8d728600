"""A Hugging Face Hub for models, in memory and on 127.0.0.1, for the real `huggingface_hub` client.

    with LoopbackHub(tmp_path) as hub, hub.online():
        huggingface_hub.create_repo("me/x")
        huggingface_hub.upload_folder(repo_id="me/x", folder_path=folder)
        assert hub.commits("me/x")[-1].changed == ("config.json", "model.safetensors")

Not here: datasets and Spaces, pull requests, tags, Xet, uploads in several parts, parts of files, pages of long lists.
"""

import base64
import importlib
import re
import secrets
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from loopback_api import Handler, Request
from loopback_repository import Commit, Repository


@dataclass
class Fault:
    """What happens to the next `times` requests of a method whose path, with its query, matches a pattern."""

    effect: int | str
    method: str
    path_regex: str
    times: int = 1

    def meets(self, request: Request) -> bool:
        is_named = self.method == request.method and re.search(self.path_regex, request.path) is not None
        return self.times > 0 and is_named


@dataclass
class Hold(Fault):
    """A request that waits before it is served. Leaving the `with` block, or closing the Hub, releases it."""

    reached: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)

    def wait(self, timeout: float = 60.0) -> None:
        """Returns once the request is here, all its bytes received; after `timeout` seconds raises `TimeoutError`."""
        if not self.reached.wait(timeout):
            raise TimeoutError(f"No {self.method} {self.path_regex} arrived within {timeout} s")

    def release(self) -> None:
        self.released.set()

    def __enter__(self) -> "Hold":
        return self

    def __exit__(self, *error) -> None:
        self.release()


class Server(ThreadingHTTPServer):
    """Knows its Hub, and takes it quietly when a client is killed."""

    hub: "LoopbackHub"

    def handle_error(self, request, client_address) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class LoopbackHub:
    """A running Hub with one user, `me`, and one token.

    Attributes:
        endpoint (`str`): `http://127.0.0.1:<port>`.
        token (`str`): The only token that is accepted; new for each Hub, so that it can be searched for.
        requests (`list[Request]`): Everything clients sent, in order of arrival, `Authorization` headers left out.
        repositories (`dict[str, Repository]`): By their id.
    """

    def __init__(self, home: Path):
        self.user = "me"
        self.token = f"hf_{secrets.token_hex(17)}"
        self.requests: list[Request] = []
        self.repositories: dict[str, Repository] = {}
        self.tickets: dict[str, Repository] = {}
        self._home = home
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.hub = self
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> "LoopbackHub":
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *error) -> None:
        for fault in self._faults:
            if isinstance(fault, Hold):
                fault.release()
        self._server.shutdown()
        self._server.server_close()

    def commits(self, repo_id: str, revision: str = "main") -> list[Commit]:
        """The commits up to a branch or a commit, oldest first; the first one is the Hub's own."""
        return self.repositories[repo_id].history(revision)

    def files(self, repo_id: str, revision: str = "main") -> Mapping[str, bytes]:
        """Path -> content of every file at a branch or a commit."""
        return self.repositories[repo_id].at(revision).files

    def fail(self, method: str, path_regex: str, status: int = 503, times: int = 1) -> None:
        """Answers the next `times` matching requests with an error status; they have no effect."""
        self._faults.append(Fault(status, method, path_regex, times))

    def drop(self, method: str, path_regex: str, times: int = 1) -> None:
        """Closes the connection of the next `times` matching requests without an answer; they have no effect."""
        self._faults.append(Fault("drop", method, path_regex, times))

    def hold(self, method: str, path_regex: str) -> Hold:
        """Lets the next matching request wait, fully received and without effect, until `release` is called."""
        hold = Hold("hold", method, path_regex)
        self._faults.append(hold)
        return hold

    def met_fault(self, request: Request) -> int | str | None:
        """The effect of the fault that a request meets, after any hold; called by the server."""
        if hold := self._taken_fault(request, is_hold=True):
            hold.reached.set()
            hold.released.wait()
        fault = self._taken_fault(request, is_hold=False)
        return fault and fault.effect

    def _taken_fault(self, request: Request, is_hold: bool) -> Fault | None:
        with self._lock:
            for fault in self._faults:
                if isinstance(fault, Hold) == is_hold and fault.meets(request):
                    fault.times -= 1
                    return fault
        return None

    def requests_with(self, secret: str) -> list[Request]:
        """The requests that carry a text outside `Authorization`: in path, headers or body, plain or in base64."""
        spellings = [secret.encode(), *base64_spellings(secret.encode())]
        return [
            request
            for request in self.requests
            for sent in [b"\n".join([request.path.encode(), repr(request.headers).encode(), request.body])]
            if any(spelling in sent for spelling in spellings)
        ]

    def environment(self) -> dict[str, str]:
        """The variables with which another process talks to this Hub: `env={**os.environ, **hub.environment()}`."""
        return {
            "HF_ENDPOINT": self.endpoint,
            "HF_TOKEN": self.token,
            "HF_HOME": str(self._home / "hf-home"),
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "NO_PROXY": "127.0.0.1",
        }

    @contextmanager
    def online(self) -> Iterator["LoopbackHub"]:
        """Lets this process talk to this Hub, token included, for the length of a `with` block."""
        from huggingface_hub import hf_api

        try:
            with pytest.MonkeyPatch.context() as patch:
                for name, text in self.environment().items():
                    patch.setenv(name, text)
                patch.setattr(hf_api.api, "endpoint", self.endpoint)
                read_environment_again()
                yield self
        finally:
            read_environment_again()


def read_environment_again() -> None:
    """Undoes what the Hub's clients keep of the environment: their constants, connections and shared objects."""
    from huggingface_hub import close_session, constants

    importlib.reload(constants)
    close_session()
    if transformers_hub := sys.modules.get("transformers.utils.hub"):
        transformers_hub._hf_api = None


def base64_spellings(secret: bytes) -> list[bytes]:
    """What stays of `secret` in the base64 of any text around it, for each of the three places it can start at."""
    spellings = []
    for num_before, num_mixed in ((0, 0), (1, 2), (2, 3)):
        whole = 8 * (num_before + len(secret)) // 6
        spellings.append(base64.b64encode(bytes(num_before) + secret)[num_mixed:whole])
    return spellings
