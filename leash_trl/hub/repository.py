"""A model repository on the Hub: commits files, downloads checkpoints, and tries again if the Hub is busy."""

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

from leash_trl.hub.checkpoint_files import EVENTS_FOLDER, LAST_CHECKPOINT, stale_files
from leash_trl.hub.hub_token import check_no_token, without_token


logger = logging.getLogger(__name__)
T = TypeVar("T")

# Seconds before further attempts: few during training, more at its end. huggingface_hub itself repeats uploads of
# files, but not the commit or the look-up of a revision.
SOON = (1.0, 4.0)
PATIENT = (1.0, 4.0, 15.0, 40.0)
BUSY = frozenset({408, 409, 412, 425, 429})  # and all from 500 on; other statuses are refusals
LOGIN = "log in with `hf auth login`, or set HF_TOKEN, to a user who may do this"
REMEDIES = {401: LOGIN, 403: LOGIN, 404: f"check its name, and {LOGIN} if it is private"}
HUB_URI = re.compile(r"hf://(?P<repo>[\w.-]+/[\w.-]+?)(?:@(?P<revision>refs/\w+/[^/]+|[^/]+))?(?:/(?P<path>.+?))?/?")


def will_pass(error: Exception) -> bool:
    """Whether the same request may succeed later: the Hub did not refuse it, and nothing local is missing.

    Example:
        >>> will_pass(TimeoutError()), will_pass(RuntimeError("of hf_xet")), will_pass(ValueError())
        (True, True, False)
    """
    for cause in _causes(error):
        if isinstance(cause, HfHubHTTPError):
            return cause.response.status_code in BUSY or cause.response.status_code >= 500
    return not isinstance(error, ValueError | FileNotFoundError | LocalTokenNotFoundError)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and its causes: for a failed upload, the Hub's client raises a RuntimeError."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__


def with_attempts(call: Callable[[], T], waits: Sequence[float]) -> T:
    """The result of a call, with one further attempt after each of the waits, in seconds.

    Raises:
        `Exception`: That of the last attempt, or the first that no further attempt can pass.
    """
    for wait in waits:
        try:
            return call()
        except Exception as error:
            if not will_pass(error):
                raise
            logger.info("%s; next attempt in %g s", what_went_wrong(error), wait)
            sleep(wait)
    return call()


def what_went_wrong(error: BaseException, token: str | None = None) -> str:
    """The first lines of an error and its causes, and how to log in if that helps, without tokens.

    Args:
        error (`BaseException`):
            An exception of a request to the Hub.
        token (`str`, *optional*):
            The token in use; by default that of `HF_TOKEN` or `hf auth login`.
    """
    lines, remedy = [], None
    for cause in _causes(error):
        text = next((line for line in str(cause).splitlines() if line.strip()), "")
        lines.append(f"{type(cause).__name__}: {text}" if text else type(cause).__name__)
        if isinstance(cause, LocalTokenNotFoundError):
            remedy = LOGIN
        if isinstance(cause, HfHubHTTPError):  # its own cause says the same
            remedy = REMEDIES.get(cause.response.status_code)
            break
    return without_token(" <- ".join(lines), token or get_token()) + (f"; {remedy}" if remedy else "")


class HubRepository:
    """A model repository to write to.

    Args:
        repo_id (`str`):
            `owner/name`.
        token (`str`, *optional*):
            Write token; by default that of `HF_TOKEN` or `hf auth login`.
        revision (`str`, *optional*):
            Branch to commit to; by default the repository's default branch.
    """

    def __init__(self, repo_id: str, token: str | None = None, revision: str | None = None):
        self.repo_id = repo_id
        self.revision = revision
        self.token = token
        self._api = HfApi(token=token)

    def create(self, private: bool | None = None) -> None:
        """Makes the repository and its branch if they are missing; `private` applies to a new repository."""
        self.repo_id = self._api.create_repo(self.repo_id, private=private, exist_ok=True).repo_id
        self.create_branch()

    def create_branch(self) -> None:
        """Makes the branch to commit to if it is missing."""
        if self.revision is not None:
            self._api.create_branch(self.repo_id, branch=self.revision, exist_ok=True)

    def commit(self, files: dict[str, Path | bytes], message: str) -> CommitInfo:
        """Pushes files in one commit: all of them appear on the Hub at once, or none.

        The commit also deletes the files that they replace, see [`~leash_trl.hub.checkpoint_files.stale_files`].
        `upload_folder` is not used, because it may split a folder into several commits.

        Args:
            files (`dict[str, Path | bytes]`):
                Content, or the local file, by path in the repository. Files that the Hub already has are not sent.
            message (`str`):
                Message of the commit.

        Returns:
            `CommitInfo`: The commit, or the newest one if nothing has changed.

        Raises:
            `ValueError`: If a file holds the token.
        """
        check_no_token(files, self.token or get_token())
        in_repo = self._api.list_repo_files(self.repo_id, revision=self.revision)
        operations: list[CommitOperation] = [CommitOperationAdd(name, files[name]) for name in sorted(files)]
        operations += map(CommitOperationDelete, stale_files(in_repo, files))
        return self._api.create_commit(self.repo_id, operations, commit_message=message, revision=self.revision)


def pinned(checkpoint: str) -> str:
    """The place of a checkpoint on the Hub, `hf://owner/name[@revision][/last-checkpoint]`, with its newest commit as
    revision, so that all processes download the same; a folder stays as it is.

    Raises:
        `ValueError`: If it starts with `hf://` and is no such place, or the Hub does not return its commit.
    """
    if not checkpoint.startswith("hf://"):
        return checkpoint
    place = HUB_URI.fullmatch(checkpoint)
    if place is None:
        raise ValueError(f"{checkpoint!r} must be hf://owner/name, hf://owner/name/last-checkpoint, or the like")
    try:
        info = with_attempts(partial(HfApi().model_info, place["repo"], revision=place["revision"]), SOON)
    except Exception as error:  # the Hub and the network have many ways to say no
        raise ValueError(f"{checkpoint}: {what_went_wrong(error)}") from None
    return f"hf://{place['repo']}@{info.sha}" + (f"/{place['path']}" if place["path"] else "")


def local_checkpoint(checkpoint: str) -> str:
    """The folder of a checkpoint; one on the Hub, `hf://owner/name[@revision][/last-checkpoint]`, is downloaded.

    The root of a repository holds weights, the state of length control and the step; its folder `last-checkpoint`
    (`hub_strategy="checkpoint"`) holds all that resuming needs.

    Raises:
        `ValueError`: If it starts with `hf://` and is no such place, or nothing is there.
    """
    # a branch's name would fall back to an older download if the Hub does not answer
    place = HUB_URI.fullmatch(pinned(checkpoint))
    if place is None:
        return checkpoint
    path = place["path"]
    folder = snapshot_download(
        place["repo"],
        revision=place["revision"],
        allow_patterns=f"{path}/*" if path else None,
        # optimizers of checkpoints are several times as large as the model
        ignore_patterns=None if path else [f"{name}/*" for name in (LAST_CHECKPOINT, "checkpoint-*", EVENTS_FOLDER)],
    )
    found = Path(folder, path or "")
    if not found.is_dir():
        raise ValueError(f"{checkpoint}: the repository has no folder {path!r}")
    return str(found)
