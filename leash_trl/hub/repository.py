"""A model repository on the Hub: one commit for what belongs together, and patience where the Hub has none."""

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from time import sleep
from typing import TypeVar

from huggingface_hub import (
    CommitInfo,
    CommitOperation,
    CommitOperationAdd,
    CommitOperationDelete,
    HfApi,
    get_token,
    snapshot_download,
)
from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError

from leash_trl.hub.checkpoint_files import is_replaced
from leash_trl.hub.hub_token import check_no_token, without_token


logger = logging.getLogger(__name__)
# of the HTTP library that this release of huggingface_hub uses, which is not always the same: no answer at all
HTTPError: type[Exception] = HfHubHTTPError.__mro__[1]
T = TypeVar("T")

# seconds before another attempt: a few during training, which goes on meanwhile, more at its end
SOON = (1.0, 4.0)
PATIENT = (1.0, 4.0, 15.0, 40.0)
# too many requests, conflicts with another commit, and what servers and the proxies before them say when overloaded
PASSING = frozenset({408, 409, 412, 425, 429, 500, 502, 503, 504})
LOGIN = "; log in with `hf auth login`, or set HF_TOKEN, to a user who may do this"
REMEDIES = {401: LOGIN, 403: LOGIN, 404: "; check its name, and" + LOGIN.removeprefix(";") + " if it is private"}
HUB_URI = re.compile(r"hf://(?P<repo>[\w.-]+/[\w.-]+?)(?:@(?P<revision>refs/\w+/[^/]+|[^/]+))?(?:/(?P<path>.+?))?/?")


def will_pass(error: Exception) -> bool:
    """Whether the same request may succeed later.

    Example:
        >>> will_pass(TimeoutError()), will_pass(ValueError())
        (True, False)
    """
    for cause in _causes(error):
        if isinstance(cause, HfHubHTTPError):
            return cause.response.status_code in PASSING
        if isinstance(cause, (HTTPError, ConnectionError, TimeoutError)):
            return True
    return False


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and what it was raised from: of a failed upload, the Hub's client raises a RuntimeError."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__


def with_attempts(call: Callable[[], T], waits: Sequence[float], what: str) -> T:
    """What the call returns, after as many further attempts as there are waits.

    Args:
        call (`Callable`):
            What talks to the Hub.
        waits (`Sequence[float]`):
            Seconds before each further attempt.
        what (`str`):
            What is being done, for the log.

    Raises:
        `Exception`: That of the last attempt, or the first that will not pass by itself.
    """
    for wait in waits:
        try:
            return call()
        except Exception as error:
            if not will_pass(error):
                raise
            logger.info("%s failed (%s); next attempt in %g s", what, what_went_wrong(error), wait)
            sleep(wait)
    return call()


def what_went_wrong(error: BaseException, token: str | None = None) -> str:
    """First lines of an error and of what it was raised from, and how to log in where that is the matter; no tokens.

    Args:
        error (`BaseException`):
            What talking to the Hub has raised.
        token (`str`, *optional*):
            The token in use; that of `HF_TOKEN` or `hf auth login` without it.
    """
    lines, remedy = [], ""
    for cause in _causes(error):
        text = next((line for line in str(cause).splitlines() if line.strip()), "")
        lines.append(f"{type(cause).__name__}: {text}" if text else type(cause).__name__)
        if isinstance(cause, LocalTokenNotFoundError):
            remedy = LOGIN
        if isinstance(cause, HfHubHTTPError):  # what it was raised from says the same
            remedy = REMEDIES.get(cause.response.status_code, "")
            break
    return without_token(" <- ".join(lines), token or get_token()) + remedy


class HubRepository:
    """A model repository that is written to.

    Args:
        repo_id (`str`):
            `owner/name`.
        token (`str`, *optional*):
            Write token; that of `HF_TOKEN` or `hf auth login` without it.
        revision (`str`, *optional*):
            Branch to commit to; the default branch without it.
    """

    def __init__(self, repo_id: str, token: str | None = None, revision: str | None = None):
        self.repo_id = repo_id
        self.revision = revision
        self._token = token
        self._api = HfApi()

    def create(self, private: bool | None = None) -> None:
        """Makes the repository and the branch where they are missing.

        Args:
            private (`bool`, *optional*):
                Whether a new repository is private; the account's default without it.
        """
        url = self._api.create_repo(self.repo_id, token=self._token, private=private, exist_ok=True)
        self.repo_id = url.repo_id
        self.create_branch()

    def create_branch(self) -> None:
        """Makes the branch to commit to where it is missing."""
        if self.revision is not None:
            self._api.create_branch(self.repo_id, branch=self.revision, token=self._token, exist_ok=True)

    def commit(self, files: dict[str, Path | bytes], message: str, replaced: tuple[str, ...] = ()) -> CommitInfo:
        """Pushes files in one commit: all of them appear on the Hub at once, or none.

        Args:
            files (`dict[str, Path | bytes]`):
                Content, or where it lies, by path in the repository. What the Hub has already is not sent again.
            message (`str`):
                Of the commit.
            replaced (`tuple[str, ...]`, *optional*):
                Patterns of [`~leash_trl.hub.checkpoint_files.is_replaced`]; files of the repository that match one
                and are not among `files` are deleted by the same commit.

        Returns:
            `CommitInfo`: Of the commit, or of the newest one where nothing has changed.

        Raises:
            `ValueError`: If a file holds the token.
        """
        check_no_token(files, self._token or get_token())
        names = self._api.list_repo_files(self.repo_id, revision=self.revision, token=self._token) if replaced else []
        stale = [name for name in names if name not in files and is_replaced(name, replaced)]
        additions = {name: CommitOperationAdd(name, content) for name, content in sorted(files.items())}
        self._upload_once(files, additions)
        operations: list[CommitOperation] = [*additions.values(), *map(CommitOperationDelete, stale)]
        return self._api.create_commit(
            self.repo_id, operations, commit_message=message, token=self._token, revision=self.revision
        )

    def _upload_once(self, files: dict[str, Path | bytes], additions: dict[str, CommitOperationAdd]) -> None:
        """Uploads files that go to several places, for the client would send them once for each."""
        first_names = {content: name for name, content in reversed(files.items())}
        if len(first_names) < len(files):
            firsts = [additions[name] for name in first_names.values()]
            self._api.preupload_lfs_files(self.repo_id, firsts, token=self._token, revision=self.revision)

    def what_went_wrong(self, error: BaseException) -> str:
        """As the function of that name, with this repository's token."""
        return what_went_wrong(error, self._token)


def pinned(checkpoint: str) -> str:
    """Where a checkpoint on the Hub is, `hf://owner/name[@revision][/last-checkpoint]`, with its newest commit as
    revision, so that all who download it get the same; a folder stays as it is.

    Raises:
        `ValueError`: If it starts with `hf://` and is no such place, or the Hub does not tell its commit.
    """
    if not checkpoint.startswith("hf://"):
        return checkpoint
    place = _place(checkpoint)
    call = partial(HfApi().model_info, place["repo"], revision=place["revision"])
    try:
        info = with_attempts(call, SOON, f"looking up {checkpoint}")
    except Exception as error:  # the Hub and the network have many ways to say no
        raise ValueError(f"{checkpoint}: {what_went_wrong(error)}") from None
    return f"hf://{place['repo']}@{info.sha}" + (f"/{place['path']}" if place["path"] else "")


def _place(checkpoint: str) -> re.Match[str]:
    place = HUB_URI.fullmatch(checkpoint)
    if place is None:
        raise ValueError(f"{checkpoint!r} must be hf://owner/name, hf://owner/name/last-checkpoint, or the like")
    return place


def local_checkpoint(checkpoint: str) -> str:
    """The folder of a checkpoint; one on the Hub, `hf://owner/name[@revision][/last-checkpoint]`, is downloaded.

    Args:
        checkpoint (`str`):
            Folder, or where it is on the Hub. The root of a repository holds weights, the state of length control and
            the step, its folder `last-checkpoint` (`hub_strategy="checkpoint"`) all that resuming needs.

    Raises:
        `ValueError`: If it starts with `hf://`, and is no such place, or nothing is there.
    """
    if not checkpoint.startswith("hf://"):
        return checkpoint
    # a branch's name would fall back to an older download where the Hub does not answer
    place = _place(pinned(checkpoint))
    path = place["path"]
    folder = snapshot_download(
        place["repo"],
        revision=place["revision"],
        allow_patterns=f"{path}/*" if path else None,
        # optimizers of checkpoints are several times as large as the model
        ignore_patterns=None if path else ["last-checkpoint/*", "checkpoint-*/*", "runs/*"],
    )
    found = Path(folder, path or "")
    if not found.is_dir():
        raise ValueError(f"{checkpoint}: the repository has no folder {path!r}")
    return str(found)
