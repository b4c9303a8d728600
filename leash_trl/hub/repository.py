"""A model repository on the Hub: commits to it, checkpoints from it, and further attempts where the Hub is busy."""

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
# files, but neither the commit nor the look-up of a revision.
SOON = (1.0, 4.0)
PATIENT = (1.0, 4.0, 15.0, 40.0)
BUSY = frozenset({408, 409, 412, 425, 429})  # and all from 500 on; other statuses are refusals
LOGIN = "log in with `hf auth login`, or set HF_TOKEN, to a user who may do this"
REMEDIES = {401: LOGIN, 403: LOGIN, 404: f"check its name, and {LOGIN} if it is private"}
HUB_URI = re.compile(r"hf://(?P<repo>[\w.-]+/[\w.-]+?)(?:@(?P<revision>refs/\w+/[^/]+|[^/]+))?(?:/(?P<path>.+?))?/?")


def will_pass(error: Exception) -> bool:
    """Whether the same request may succeed later: the Hub has not refused it, and nothing local is missing.

    Example:
        >>> will_pass(TimeoutError()), will_pass(RuntimeError("of hf_xet")), will_pass(ValueError())
        (True, True, False)
    """
    for cause in _causes(error):
        if isinstance(cause, HfHubHTTPError):
            return cause.response.status_code in BUSY or cause.response.status_code >= 500
    return not isinstance(error, ValueError | FileNotFoundError | LocalTokenNotFoundError)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and what it was raised from: of a failed upload, the Hub's client raises a RuntimeError."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__


def with_attempts(call: Callable[[], T], waits: Sequence[float]) -> T:
    """What the call returns, after as many further attempts as there are waits, in seconds.

    Raises:
        `Exception`: That of the last attempt, or the first one that will not pass.
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
    """An error and what it was raised from, the first line of each, and how to log in where that helps; no tokens.

    Args:
        error (`BaseException`):
            What talking to the Hub has raised.
        token (`str`, *optional*):
            The token in use; that of `HF_TOKEN` or `hf auth login` without it.
    """
    lines, remedy = [], None
    for cause in _causes(error):
        text = next((line for line in str(cause).splitlines() if line.strip()), "")
        lines.append(f"{type(cause).__name__}: {text}" if text else type(cause).__name__)
        if isinstance(cause, LocalTokenNotFoundError):
            remedy = LOGIN
        if isinstance(cause, HfHubHTTPError):  # what it was raised from says the same
            remedy = REMEDIES.get(cause.response.status_code)
            break
    return without_token(" <- ".join(lines), token or get_token()) + (f"; {remedy}" if remedy else "")


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
        self.token = token
        self._api = HfApi(token=token)

    def create(self, private: bool | None = None) -> None:
        """Makes the repository and its branch where they are missing; `private` is for a new repository."""
        self.repo_id = self._api.create_repo(self.repo_id, private=private, exist_ok=True).repo_id
        self.create_branch()

    def create_branch(self) -> None:
        """Makes the branch to commit to where it is missing."""
        if self.revision is not None:
            self._api.create_branch(self.repo_id, branch=self.revision, exist_ok=True)

    def commit(self, files: dict[str, Path | bytes], message: str) -> CommitInfo:
        """Pushes files in one commit: all of them appear on the Hub at once, or none.

        The commit also deletes what they take the place of, see [`~leash_trl.hub.checkpoint_files.stale_files`].
        `upload_folder` is not used, for it may split a folder into several commits.

        Args:
            files (`dict[str, Path | bytes]`):
                Content, or the local file, by path in the repository. What the Hub has already is not sent again.
            message (`str`):
                Of the commit.

        Returns:
            `CommitInfo`: Of the commit, or of the newest one where nothing has changed.

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
    revision, so that all who download it get the same; a folder stays as it is.

    Raises:
        `ValueError`: If it starts with `hf://` and is no such place, or the Hub does not tell its commit.
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
        `ValueError`: If it starts with `hf://`, and is no such place, or nothing is there.
    """
    # a branch's name would fall back to an older download where the Hub does not answer
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
