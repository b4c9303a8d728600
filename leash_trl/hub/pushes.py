"""Pushes checkpoints while training continues: one at a time, with another attempt if one was skipped or failed."""

import logging
import os
import shutil
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from leash_trl.hub.checkpoint_files import EVENTS_FOLDER, checkpoint_files, model_files
from leash_trl.hub.repository import PATIENT, SOON, HubRepository, what_went_wrong, will_pass, with_attempts


logger = logging.getLogger(__name__)

SNAPSHOTS = "_hub_push"  # folder in the run's; names with an underscore in front are not pushed


@dataclass(frozen=True)
class Push:
    """One checkpoint to push: its folder, and where the complete checkpoint goes beside the model at the root."""

    number: int  # 1 for the first save
    name: str  # such as "step 50"
    checkpoint: Path
    path_in_repo: str | None  # only the model is pushed without it


@dataclass
class PushReport:
    """The pushes of a run by name: those that succeeded, and why others are not on the Hub."""

    pushed: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        missing = [f"{name} is not on the Hub ({why})" for name, why in self.missing.items()]
        return "; ".join([f"{len(self.pushed)} pushed", *missing])


class HubPushes:
    """Pushes checkpoints of a run, each in one commit, while training continues.

    One push runs at a time. A checkpoint saved during a push is skipped, unless `always`. The next push and `finish`
    try skipped and failed checkpoints again, unless a newer one has taken their place in the repository. The model at
    the root of the repository never goes back to an older one.

    Only the training thread may call the methods; it also deletes checkpoints (`save_total_limit`).

    Args:
        repository (`HubRepository`):
            Destination.
        output_dir (`Path`):
            The run's folder.
        always (`bool`, *optional*, defaults to `False`):
            Whether every save becomes its own commit, in a queue, so that none is skipped or replaced.
    """

    def __init__(self, repository: HubRepository, output_dir: Path, always: bool = False):
        self.report = PushReport()
        self._repository = repository
        self._output_dir = output_dir
        self._always = always
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="hub-push")
        self._running: Future | None = None  # the newest
        self._waiting: list[Push] = []
        self._lock = threading.Lock()  # both threads change the waiting pushes
        self._num_saves = 0
        self._number_at_root = 0
        shutil.rmtree(output_dir / SNAPSHOTS, ignore_errors=True)  # of a run that was killed

    def submit(self, name: str, checkpoint: Path, path_in_repo: str | None = None) -> None:
        """Pushes a checkpoint now, or later if another push is running."""
        self._num_saves += 1
        with self._lock:
            replaced = [push for push in self._waiting if push.path_in_repo == path_in_repo and not self._always]
            for push in replaced:
                self._waiting.remove(push)
                del self.report.missing[push.name]
            self._waiting.append(Push(self._num_saves, name, checkpoint, path_in_repo))
        if self._always or self._running is None or self._running.done():
            self._running = self._worker.submit(self._push_all, self._taken(), SOON)
        else:
            self.report.missing[name] = "skipped, for the push before it was still running"

    def wait(self) -> None:
        """Waits until no push is running."""
        if self._running is not None:
            self._running.result()

    def finish(self, has_newer_model: bool = False) -> None:
        """Waits for the running pushes, tries the waiting ones once more, and reports those that still fail.

        Args:
            has_newer_model (`bool`, *optional*, defaults to `False`):
                Whether the model at the root of the repository is newer than all checkpoints.
        """
        self.wait()
        if has_newer_model:
            self._number_at_root = self._num_saves
        self._push_all(self._taken(), PATIENT)
        if self.report.missing:
            names, folder = ", ".join(self.report.missing), self._output_dir
            remedy = f"leash push {folder} --repo {self._repository.repo_id}"
            logger.error("not on the Hub: %s. What is left of it is in %s; try again with %s", names, folder, remedy)

    def _taken(self) -> list[tuple[Push, Path]]:
        """All waiting pushes, each with a snapshot of its checkpoint."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        taken = []
        for push in waiting:
            snapshot = self._output_dir / SNAPSHOTS / push.checkpoint.name
            try:
                _take_snapshot(push.checkpoint, self._output_dir, snapshot)
                taken.append((push, snapshot))
            except OSError as error:
                if push.checkpoint.is_dir():
                    self._fail(push, error)
                else:
                    self.report.missing[push.name] = "save_total_limit deleted it before it could be pushed"
        return taken

    def _push_all(self, taken: Sequence[tuple[Push, Path]], waits: Sequence[float]) -> None:
        """Pushes one after the other. If the Hub does not answer, those after the first are not tried."""
        away: Exception | None = None
        for push, snapshot in taken:
            try:
                if away is not None:
                    raise away
                with_attempts(partial(self._push, push, snapshot), waits)
            except Exception as error:  # whatever the Hub or the network does, training goes on
                away = error if will_pass(error) else None
                self._fail(push, error)
            else:
                self.report.pushed.append(push.name)
                self.report.missing.pop(push.name, None)
            shutil.rmtree(snapshot, ignore_errors=True)

    def _push(self, push: Push, snapshot: Path) -> None:
        files: dict[str, Path | bytes] = {}
        if push.number > self._number_at_root:
            files |= model_files(snapshot)
        if push.path_in_repo is not None:
            files |= checkpoint_files(snapshot, push.path_in_repo)
        if files:
            self._repository.commit(files, f"Training in progress, {push.name}")
            self._number_at_root = max(self._number_at_root, push.number)

    def _fail(self, push: Push, error: Exception) -> None:
        reason = what_went_wrong(error, self._repository.token)
        logger.warning("pushing %s to %s failed (%s); it is tried again", push.name, self._repository.repo_id, reason)
        with self._lock:
            if self._always or all(waiting.path_in_repo != push.path_in_repo for waiting in self._waiting):
                self._waiting = sorted([push, *self._waiting], key=lambda waiting: waiting.number)
                self.report.missing[push.name] = reason


def _take_snapshot(checkpoint: Path, run: Path, snapshot: Path) -> None:
    """Makes a snapshot of a checkpoint and the run's event files, which nothing deletes or changes during the push.

    The checkpoint's files become hard links, which take no space, or copies if the file system has no links. Event
    files are copied, because they grow.
    """
    shutil.rmtree(snapshot, ignore_errors=True)
    shutil.copytree(checkpoint, snapshot, copy_function=_link)
    for path in (run / EVENTS_FOLDER).rglob("*tfevents*"):
        copy = snapshot / path.relative_to(run)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)


def _link(source: str, destination: str) -> None:
    try:
        os.link(source, destination)
    except OSError:
        shutil.copy2(source, destination)
