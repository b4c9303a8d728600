"""Writes what test_gpu finds as one Markdown table, anew after every part, so that a check that is cut off leaves what
it has found."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Machine:
    """What the parts run on.

    Args:
        device (`str`):
            `"cuda"`, or `"cpu"` where stand-ins run.
        name (`str`), memory_gib (`float`), num_devices (`int`):
            Of the first card its name and memory, and how many of them there are.
        has_bfloat16 (`bool`):
            Whether the card computes in bfloat16.
        versions (`dict[str, str]`):
            Packages and what else has a version, CUDA for one; what is not installed is not there.
    """

    device: str
    name: str
    memory_gib: float
    num_devices: int
    has_bfloat16: bool
    versions: dict[str, str]

    @property
    def on_cpu(self) -> bool:
        """Whether this is a run on stand-ins."""
        return self.device == "cpu"

    @property
    def description(self) -> str:
        """The card, how many of them, and the versions."""
        card = self.name if self.on_cpu else f"{self.num_devices} x {self.name}, {self.memory_gib:.0f} GiB"
        return f"{card} · " + ", ".join(f"{package} {version}" for package, version in self.versions.items())


@dataclass(frozen=True)
class Row:
    """One part of the check: its name, what was measured, and `"passed"`, or how it was skipped or failed."""

    part: str
    measured: str
    result: str


def markdown(machine: Machine, rows: list[Row], date: str) -> str:
    """The table, under date, card and versions. That a run used stand-ins is said above it and in its heading."""
    stand_in = ["**Stand-ins on a CPU: this says nothing about a GPU.**", ""] if machine.on_cpu else []
    heading = ("part", "measured", "result on a CPU, no GPU" if machine.on_cpu else "result")
    lines = [heading, ("---",) * 3, *((row.part, row.measured, row.result) for row in rows)]
    table = [f"| {' | '.join(' '.join(cell.replace('|', '/').split()) for cell in line)} |" for line in lines]
    return "\n".join([*stand_in, f"`make test-gpu` · {date} · {machine.description}", "", *table]) + "\n"


@dataclass
class Report:
    """The table of a check that is going on.

    Args:
        machine (`Machine`):
            What it runs on.
        path (`Path`):
            Where the table is written.
    """

    machine: Machine
    path: Path
    rows: list[Row] = field(default_factory=list)

    @contextmanager
    def part(self, name: str) -> Iterator[list[str]]:
        """Takes what is measured inside as strings, and adds the part's row however it ends."""
        measured: list[str] = []
        result = "was cut off"
        try:
            yield measured
            result = "passed"
        except pytest.skip.Exception as why:
            result = f"skipped: {why}"
            raise
        except (Exception, pytest.fail.Exception) as error:
            result = f"failed: {(str(error).strip() or repr(error)).splitlines()[0]}"
            raise
        finally:
            self.rows.append(Row(name, "; ".join(measured), result))
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(self.text, encoding="utf-8")

    @property
    def text(self) -> str:
        """The table so far."""
        return markdown(self.machine, self.rows, datetime.now(UTC).date().isoformat())
