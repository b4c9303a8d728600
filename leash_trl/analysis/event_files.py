"""What TensorBoard's event files of a run hold: scalars by step, and the arguments it was started with."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.util import tensor_util


ARGUMENTS_TAG = "args/text_summary"  # transformers' TensorBoardCallback writes the training arguments there


@dataclass
class EventLog:
    """What was logged to event files.

    Args:
        scalars (`dict[int, dict[str, float]]`):
            Values by optimizer step and tag, in the order of the steps.
        arguments (`dict[str, Any]`):
            Training arguments of the last start; empty if none were logged.
        start (`float`):
            Time of the first value in seconds since 1970; infinite if there is none.
    """

    scalars: dict[int, dict[str, float]] = field(default_factory=dict)
    arguments: dict[str, Any] = field(default_factory=dict)
    start: float = math.inf


def event_files(path: Path) -> list[Path]:
    """The event file itself, or those of one run: in the folder, or where transformers puts them in its `runs`.

    Example:
        >>> event_files(Path("nowhere"))
        []
    """
    if path.is_file() and "tfevents" in path.name:
        return [path]
    # not those of any folder below: it may hold several runs
    return sorted([*path.glob("*tfevents*"), *path.glob("runs/**/*tfevents*")])


def read_event_files(files: list[Path]) -> EventLog:
    """One log of all files of one run.

    A resumed run begins a new file and repeats the steps after its checkpoint. From the first step of a later file on,
    what earlier files hold is of a past that was abandoned, and is dropped.

    Args:
        files (`list[Path]`):
            Files in any order; they are put into that of their first events. A last event that a kill cut short is
            left out.
    """
    log = EventLog()
    for part in sorted(map(_read_file, files), key=lambda part: part.start):
        first_step = min(part.scalars, default=math.inf)
        kept = {step: row for step, row in log.scalars.items() if step < first_step}
        log = EventLog(
            {**kept, **dict(sorted(part.scalars.items()))}, part.arguments or log.arguments, min(log.start, part.start)
        )
    return log


def _read_file(file: Path) -> EventLog:
    log = EventLog()
    for time, step, tag, value in _values(file):
        log.start = min(log.start, time)
        if isinstance(value, float):
            log.scalars.setdefault(step, {})[tag] = value
        elif tag == ARGUMENTS_TAG:
            log.arguments = json.loads(value)
    return log


def _values(file: Path) -> Iterator[tuple[float, int, str, float | str]]:
    for event in EventFileLoader(str(file)).Load():
        for value in event.summary.value:
            plugin = value.metadata.plugin_data.plugin_name
            content = tensor_util.make_ndarray(value.tensor).reshape(-1)
            if plugin == "scalars":
                yield event.wall_time, event.step, value.tag, float(content[0])
            elif plugin == "text":
                yield event.wall_time, event.step, value.tag, content[0].decode("utf-8")
