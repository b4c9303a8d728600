"""The pushes of a run, one after another beside the training; what was skipped or failed is made up for."""

import logging
import shutil
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from leash_trl.hub.checkpoint_files import (
    EVENTS_FOLDER,
    MODEL_PATTERNS,
    checkpoint_files,
    model_files,
    take_snapshot,
)
from leash_trl.hub.repository import PATIENT, SOON, HubRepository, will_pass, with_attempts


logger = logging.getLogger(__name__)

SNAPSHOTS = "_hub_push"  # transformers leaves out of its pushes what begins with an underscore


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
    """How the pushes of a run went, by their names; lists in order of time, reasons in dictionaries."""

    pushed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        parts = [
            f"{len(self.pushed)} pushed",
            *([f"skipped at first: {', '.join(self.skipped)}"] if self.skipped else []),
            *(f"{name} failed at first ({why})" for name, why in self.failed.items() if name not in self.lost),
            *(f"{name} is not on the Hub ({why})" for name, why in self.lost.items()),
        ]
        return "; ".join(parts)


class HubPushes:
    """Pushes checkpoints of a run in the background.

    One push runs at a time. A checkpoint that is saved meanwhile is skipped, unless `always`. What was skipped or has
    failed waits until a newer one takes its place in the repository, and is tried with the next push and in `finish`.
    The model at the root of the repository is always that of the newest checkpoint.

    All methods are for the thread that trains.

    Args:
        repository (`HubRepository`):
            Where to.
        output_dir (`Path`):
            The run's folder.
        always (`bool`, *optional*, defaults to `False`):
            Whether every save is to be a commit of its own, in a queue, and none is skipped or replaced.
    """

    def __init__(self, repository: HubRepository, output_dir: Path, always: bool = False):
        self.report = PushReport()
        self._repository = repository
        self._output_dir = output_dir
        self._always = always
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="hub-push")
        self._running: list[Future] = []
        self._waiting: list[Push] = []
        self._newest: Push | None = None
        self._lock = threading.Lock()  # both threads write to what waits
        shutil.rmtree(output_dir / SNAPSHOTS, ignore_errors=True)  # of a run that was killed

    def submit(self, push: Push) -> None:
        """Pushes a checkpoint now, or later if another push is running."""
        self._running = [future for future in self._running if not future.done()]
        self._newest = push
        with self._lock:
            kept = self._waiting if self._always else [w for w in self._waiting if not push.replaces(w)]
            self._waiting = [*kept, push]
        if self._running and not self._always:
            self.report.skipped.append(push.name)
            logger.info("%s is not pushed yet: the push before it is still running", push.name)
            return
        self._running.append(self._worker.submit(self._push_all, self._taken(), SOON))

    def _taken(self) -> list[tuple[Push, Path]]:
        """All that waits, each with a snapshot of its checkpoint."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        taken = []
        for push in waiting:
            snapshot = self._output_dir / SNAPSHOTS / push.checkpoint.name
            try:
                take_snapshot(push.checkpoint, self._output_dir, snapshot)
            except OSError as error:
                if push.checkpoint.is_dir():
                    self._fail(push, error)
                else:
                    self._lose(push, "save_total_limit deleted it before it could be pushed")
            else:
                taken.append((push, snapshot))
        return taken

    def _lose(self, push: Push, reason: str) -> None:
        self.report.lost[push.name] = reason
        logger.warning("%s is lost to the Hub: %s", push.name, reason)

    def _push_all(self, taken: Sequence[tuple[Push, Path]], waits: Sequence[float]) -> None:
        """Pushes one after the other. Where the Hub is away, those after the first are not tried."""
        for index, (push, snapshot) in enumerate(taken):
            try:
                with_attempts(partial(self._push, push, snapshot), waits, f"pushing {push.name}")
            except Exception as error:  # whatever the Hub or the network does, training goes on
                self._fail(push, error)
                if will_pass(error):
                    for later, _ in taken[index + 1 :]:
                        self._fail(later, error)
                    break
            else:
                self.report.pushed.append(push.name)
                self.report.lost.pop(push.name, None)
        for _, snapshot in taken:
            shutil.rmtree(snapshot, ignore_errors=True)

    def _push(self, push: Push, snapshot: Path) -> None:
        files: dict[str, Path | bytes] = {}
        replaced: tuple[str, ...] = ()
        if push is self._newest or self._always:
            files |= model_files(snapshot)
            replaced += MODEL_PATTERNS
        if push.path_in_repo is not None:
            inside = checkpoint_files(snapshot, push.path_in_repo)
            events = f"{push.path_in_repo}/{EVENTS_FOLDER}/"
            files |= {name: path for name, path in inside.items() if not name.startswith(events)}
            replaced += (f"{push.path_in_repo}/*",)
        if files:
            self._repository.commit(files, f"Training in progress, {push.name}", replaced)

    def _fail(self, push: Push, error: Exception) -> None:
        reason = self._repository.what_went_wrong(error)
        self.report.failed[push.name] = reason
        with self._lock:
            if self._always or not any(waiting.replaces(push) for waiting in self._waiting):
                self._waiting = [push, *self._waiting]
        logger.warning(
            "pushing %s to %s failed (%s); the next save and the end of training try again",
            push.name,
            self._repository.repo_id,
            reason,
        )

    def wait(self) -> None:
        """Returns when no push is running any more."""
        for future in self._running:
            future.result()
        self._running = []

    def finish(self, has_newer_model: bool = False) -> None:
        """Waits for the running pushes, and tries once more what waits; what the Hub still does not take is reported.

        Args:
            has_newer_model (`bool`, *optional*, defaults to `False`):
                Whether the repository has a model that is newer than all checkpoints, which stays.
        """
        self.wait()
        if has_newer_model:
            self._newest = None
        self._push_all(self._taken(), PATIENT)
        for push in self._waiting:
            self.report.lost[push.name] = self.report.failed[push.name]
        if self.report.lost:
            logger.error(
                "not on the Hub: %s. What is left of it is in %s; try again with leash push %s --repo %s",
                ", ".join(self.report.lost),
                self._output_dir,
                self._output_dir,
                self._repository.repo_id,
            )
