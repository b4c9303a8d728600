"""The pushes of a run, one after another beside the training; what was skipped or failed is made up for."""

import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from leash_trl.hub.checkpoint_files import checkpoint_files, event_file_contents, model_files, snapshot
from leash_trl.hub.repository import PATIENT, SOON, HubRepository, with_attempts


logger = logging.getLogger(__name__)

SNAPSHOT = "_hub_push"  # transformers leaves out of its pushes what begins with an underscore


@dataclass(frozen=True)
class Push:
    """One checkpoint to push.

    Args:
        name (`str`):
            Such as `"step 50"`.
        checkpoint (`Path`):
            Its folder.
        path_in_repo (`str`, *optional*):
            Where the whole checkpoint goes beside the model at the root, `"last-checkpoint"` or `"checkpoint-50"`;
            nowhere without it.
    """

    name: str
    checkpoint: Path
    path_in_repo: str | None = None

    def replaces(self, other: "Push") -> bool:
        """Whether nothing of the other push would be left on the Hub after this one."""
        return self.path_in_repo == other.path_in_repo


@dataclass
class PushReport:
    """How the pushes of a run went, by their names; each list in order of time."""

    pushed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        parts = [
            f"{len(self.pushed)} pushed",
            *([f"skipped at first: {', '.join(self.skipped)}"] if self.skipped else []),
            *(f"{name} failed at first ({why})" for name, why in self.failed.items() if name not in self.lost),
            *(f"{name} is not on the Hub ({reason})" for name, reason in self.lost.items()),
        ]
        return "; ".join(parts)


class HubPushes:
    """Pushes checkpoints of a run in the background.

    One push runs at a time. A checkpoint that is saved meanwhile is skipped, unless `always`; what was skipped or has
    failed is owed until a newer one takes its place in the repository, and tried again before the next push and in
    `finish`.

    Args:
        repository (`HubRepository`):
            Where to.
        output_dir (`Path`):
            The run's folder.
        always (`bool`, *optional*, defaults to `False`):
            Whether to queue what would be skipped.
    """

    def __init__(self, repository: HubRepository, output_dir: Path, always: bool = False):
        self.report = PushReport()
        self._repository = repository
        self._output_dir = output_dir
        self._always = always
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="hub-push")
        self._running: list[Future] = []
        self._owed: list[Push] = []
        self._lock = threading.Lock()  # both threads write to what is owed

    def submit(self, push: Push) -> None:
        """Pushes a checkpoint now, or later if another push is running."""
        self._running = [future for future in self._running if not future.done()]
        self._owe(push)
        if self._running and not self._always:
            self.report.skipped.append(push.name)
            logger.info("%s is not pushed yet: the push before it is still running", push.name)
            return
        self._running.append(self._worker.submit(self._push_all, SOON))

    def _owe(self, push: Push) -> None:
        with self._lock:
            self._owed = [*(owed for owed in self._owed if not push.replaces(owed)), push]

    def _push_all(self, waits: Sequence[float]) -> None:
        for push in list(self._owed):
            try:
                with_attempts(partial(self._push, push), waits, f"pushing {push.name}")
            except Exception as error:  # whatever the Hub or the network does, training goes on
                if push.checkpoint.is_dir():
                    self._fail(push, self._repository.what_went_wrong(error))
                else:
                    self._give_up(push, "save_total_limit deleted it before it could be pushed")
            else:
                self._settle(push)
                self.report.pushed.append(push.name)

    def _settle(self, push: Push) -> None:
        with self._lock:
            self._owed = [owed for owed in self._owed if owed is not push]

    def _give_up(self, push: Push, reason: str) -> None:
        self._settle(push)
        self.report.lost[push.name] = reason
        logger.warning("%s is lost to the Hub: %s", push.name, reason)

    def _fail(self, push: Push, reason: str) -> None:
        self.report.failed[push.name] = reason
        logger.warning(
            "pushing %s to %s failed (%s); the next save and the end of training try again",
            push.name,
            self._repository.repo_id,
            reason,
        )

    def _push(self, push: Push) -> None:
        with snapshot(push.checkpoint, self._output_dir / SNAPSHOT) as folder:
            files: dict[str, Path | bytes] = {**model_files(folder), **event_file_contents(self._output_dir)}
            if push.path_in_repo is not None:
                files |= checkpoint_files(folder, push.path_in_repo)
            message = f"Training in progress, {push.name}"
            self._repository.commit(files, message, whole_folder=push.path_in_repo)

    def finish(self) -> None:
        """Waits for the running push, and tries again what is owed; what the Hub still does not take is reported."""
        for future in self._running:
            future.result()
        self._running = []
        self._push_all(PATIENT)
        for push in self._owed:
            self.report.lost[push.name] = self.report.failed[push.name]
        if self.report.lost:
            logger.error(
                "not on the Hub: %s. Everything is in %s; try again with leash push %s --repo %s",
                ", ".join(self.report.lost),
                self._output_dir,
                self._output_dir,
                self._repository.repo_id,
            )
