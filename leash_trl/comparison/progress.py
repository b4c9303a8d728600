"""How far the runs of a comparison are, by the progress bars in their logs, and how long the rest takes."""

import heapq
import re
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from tqdm import tqdm

from leash_trl.comparison.queue import EndedJob
from leash_trl.comparison.run import LOG_FILE, ComparedRun
from leash_trl.run_folder import read_trainer_state, whole_checkpoints


SECONDS_BETWEEN_READINGS = 1.0
SECONDS_BETWEEN_LINES = 180.0  # in a file; on a terminal the lines are renewed with every reading
TAIL = 2**16  # bytes at the end of a log, which hold its last bar

UPDATE = "update"  # unit of the bar of leash train
PROBLEM = "problem"  # and of leash eval
# the end of a bar, such as "| 31/80 [01:33<02:27,  3.00s/update, length=52, target=46]"
BAR = re.compile(r"\| (\d+)/(\d+) \[([\d:]+)<[^,]*, +([\d.?]+)(s/)?(update|problem)(?:/s)?(?:, ([^\]]*))?\]")


class Bar(NamedTuple):
    """A progress bar of a log, as it was written last.

    Args:
        num_done (`int`), total (`int`): Number of updates or problems so far, and of all.
        seconds (`int`): Age of the bar.
        seconds_per_unit (`float`): Seconds that an update or a problem takes; `None` if that is not known yet.
        values (`dict[str, str]`): What is shown beside the bar.
    """

    num_done: int
    total: int
    seconds: int
    seconds_per_unit: float | None
    values: dict[str, str]


def last_bars(log: str) -> dict[str, Bar]:
    """Returns the last bar of each unit in the text of a log; the bar that was written last is the last entry.

    Example:
        >>> last_bars("| 31/80 [01:33<02:27,  3.00s/update, length=52]")
        {'update': Bar(num_done=31, total=80, seconds=93, seconds_per_unit=3.0, values={'length': '52'})}
    """
    bars: dict[str, Bar] = {}
    for num_done, total, age, rate, is_inverse, unit, postfix in BAR.findall(log):
        seconds = 0
        for part in age.split(":"):  # hours, minutes and seconds
            seconds = 60 * seconds + int(part)
        seconds_per_unit = None
        if rate != "?" and float(rate) > 0:
            seconds_per_unit = float(rate) if is_inverse else 1 / float(rate)
        values = dict(value.split("=", 1) for value in postfix.split(", ") if value)
        bars.pop(unit, None)
        bars[unit] = Bar(int(num_done), int(total), seconds, seconds_per_unit, values)
    return bars


class Work(NamedTuple):
    """What is left of a run: policy updates, evaluations, of which one may be done in part, and the commands that have
    not begun."""

    updates: int
    evaluations: float
    starts: int


class Costs(NamedTuple):
    """Seconds for a policy update, an evaluation, and the start of a command; `None` if not known yet."""

    update: float | None
    evaluation: float | None
    start: float

    def seconds(self, work: Work) -> float | None:
        """Returns how long work takes; `None` if that is not known yet.

        Example:
            >>> Costs(update=3.0, evaluation=40.0, start=10.0).seconds(Work(updates=5, evaluations=1.5, starts=1))
            85.0
        """
        seconds = work.starts * self.start
        if work.updates > 0:
            if self.update is None:
                return None
            seconds += work.updates * self.update
        if work.evaluations > 0:
            if self.evaluation is None:
                return None
            seconds += work.evaluations * self.evaluation
        return seconds


def seconds_until_all_end(seconds_of_runs: Iterable[float], num_jobs: int) -> float:
    """Returns when the last of several runs ends, if so many run at the same time and start in this order.

    Example:
        >>> seconds_until_all_end([30.0, 10.0, 25.0], num_jobs=2)  # the third starts when the second has ended
        35.0
    """
    ends = [0.0] * num_jobs
    for seconds in seconds_of_runs:
        heapq.heapreplace(ends, ends[0] + seconds)
    return max(ends)


class RunProgress:
    """How far a run is, by its files when the comparison starts and by its log since then."""

    def __init__(self, run: ComparedRun):
        self.run = run
        self.has_ended = run.is_done()
        self.bars: dict[str, Bar] = {}
        self.num_done = 0
        self.total = 0  # or not known yet
        self.trains = False
        if run.is_trained:
            state = read_trainer_state(run.folder)
            self.trains = state is None
            checkpoint = next(whole_checkpoints(run.folder), None)
            if state is None and checkpoint is not None:
                state = read_trainer_state(checkpoint)
            saved = state or {}
            self.num_done = saved.get("global_step", 0)
            self.total = max(saved.get("max_steps", 0), run.recipe.get("max_steps") or 0, self.num_done)
        self.num_commands = self.trains + len(self.open_evaluations)
        if self.has_ended:  # what it took tells what the others take
            self.read(num_bytes=None)

    @property
    def open_evaluations(self) -> list[str]:
        """Names of the evaluations without results."""
        return [name for name in self.run.requests if not (self.run.folder / name / "results.json").is_file()]

    @property
    def unit(self) -> str | None:
        """What the run does: updates, problems of an evaluation, or nothing yet."""
        return next(reversed(self.bars), None)

    def read(self, num_bytes: int | None = TAIL) -> None:
        """Reads the end of the log, or all of it."""
        for unit, bar in last_bars(end_of_file(self.run.folder / LOG_FILE, num_bytes)).items():
            self.bars.pop(unit, None)
            self.bars[unit] = bar
        if self.trains and UPDATE in self.bars:
            self.num_done = self.bars[UPDATE].num_done
            self.total = self.bars[UPDATE].total
        if self.unit == PROBLEM:
            self.num_done = self.total

    def cost(self, unit: str) -> float | None:
        """Returns the seconds of an update or of an evaluation; `None` if the run has not shown them yet."""
        bar = self.bars.get(unit)
        if bar is None or bar.seconds_per_unit is None:
            return None
        return bar.seconds_per_unit * (bar.total if unit == PROBLEM else 1)

    def work(self, total: int) -> Work:
        """Returns what is left of the run if it has so many updates."""
        open_evaluations = len(self.open_evaluations)
        starts = open_evaluations + (self.trains and self.unit is None)
        if self.unit != PROBLEM:
            return Work(total - self.num_done, open_evaluations, starts)
        bar = self.bars[PROBLEM]
        return Work(0, max(0.0, open_evaluations - bar.num_done / bar.total), max(0, starts - 1))

    def seconds_of_start(self, job: EndedJob) -> float:
        """Returns the mean seconds between the start of a command and its bar."""
        seconds = job.seconds
        for unit, bar in self.bars.items():
            seconds -= bar.seconds * (len(self.run.requests) if unit == PROBLEM else 1)
        return max(0.0, seconds / self.num_commands)

    def line(self) -> str:
        """Returns what the run does at present, in one line."""
        if self.unit is None:
            return f"{self.run.name}: starting"
        bar = self.bars[self.unit]
        values = dict(bar.values)
        if "length" in values and "target" in values:
            values["length"] += f" of {values.pop('target')}"
        stage = "update" if self.unit == UPDATE else "evaluation, problem"
        numbers = [f"{name} {value}" for name, value in values.items()]
        return f"{self.run.name}: " + ", ".join([f"{stage} {bar.num_done} of {bar.total}", *numbers])


def end_of_file(file: Path, num_bytes: int | None) -> str:
    """Returns the end of a text file, or all of it; empty if there is no file."""
    if not file.is_file():
        return ""
    with open(file, "rb") as log:
        if num_bytes is not None:
            log.seek(max(0, file.stat().st_size - num_bytes))
        return log.read().decode("utf-8", errors="replace")


class ComparisonProgress:
    """Shows how far a comparison is: a bar over the updates of all runs, and a line for each run in progress.

    On a terminal they are renewed in place. In a file, they are written every few minutes.

    Args:
        runs (`Sequence[ComparedRun]`): All runs, in the order in which they start.
        num_jobs (`int`): Number of runs at the same time.
    """

    def __init__(self, runs: Sequence[ComparedRun], num_jobs: int):
        self.runs = [RunProgress(run) for run in runs]
        self.num_jobs = num_jobs
        self._starts: list[float] = []  # seconds that the runs so far took to start a command
        self._last_line = -SECONDS_BETWEEN_LINES
        self._is_terminal = sys.stderr.isatty()
        self._bar = tqdm(bar_format="{n_fmt} of {total_fmt} updates |{bar}| {desc}", dynamic_ncols=True, disable=None)
        self._rows: list[tqdm] = []
        for position in range(1, num_jobs + 1):
            # tqdm cuts a line to the width of the terminal only if it has a bar, here a blank
            row = tqdm(position=position, bar_format="{desc}{bar:1}", leave=False, dynamic_ncols=True, disable=None)
            self._rows.append(row)

    def __enter__(self) -> "ComparisonProgress":
        self.show()
        return self

    def __exit__(self, *exception: object) -> None:
        for row in self._rows:
            row.close()
        self._bar.close()

    @property
    def _remaining(self) -> list[RunProgress]:
        return [run for run in self.runs if not run.has_ended]

    def end(self, job: EndedJob) -> None:
        """Counts a run as ended."""
        run = next(run for run in self.runs if run.run.folder == job.log_file.parent)
        run.read(num_bytes=None)
        run.has_ended = True
        if job.exit_code == 0:
            run.num_done = run.total
            self._starts.append(run.seconds_of_start(job))
        self.show()

    def show(self) -> None:
        """Reads the logs of the runs in progress, and shows what they do."""
        running = self._remaining[: self.num_jobs]
        for run in running:
            run.read()
        lines = [run.line() for run in running]
        num_done = sum(run.num_done for run in self.runs)
        total = sum(self._total(run) for run in self.runs)
        num_ended = len(self.runs) - len(self._remaining)
        text = f"{num_ended} of {len(self.runs)} runs"
        if running:
            text += f", {self._time_left()}"
        if self._is_terminal:
            self._bar.total = total
            self._bar.n = num_done
            self._bar.set_description_str(text)
            for number, row in enumerate(self._rows):
                row.set_description_str(lines[number] if number < len(lines) else "")
        elif time.monotonic() >= self._last_line + SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            print(f"{num_done} of {total} updates, {text}", *lines, sep="\n  ", file=sys.stderr, flush=True)

    def _total(self, run: RunProgress) -> int:
        """Returns the number of updates of a run, by the other runs until its training begins."""
        if run.total or not run.run.is_trained:
            return run.total
        return max(other.total for other in self.runs)

    def _cost(self, run: RunProgress, unit: str) -> float | None:
        """Returns the seconds of an update or an evaluation: of the run, else of its arm, else of all runs."""
        arm = [other for other in self.runs if other.run.arm == run.run.arm]
        for runs in ([run], arm, self.runs):
            costs: list[float] = []
            for other in runs:
                cost = other.cost(unit)
                if cost is not None:
                    costs.append(cost)
            if costs:
                return fmean(costs)
        return None

    def _time_left(self) -> str:
        seconds_of_runs: list[float] = []
        for run in self._remaining:
            start = fmean(self._starts) if self._starts else 0.0
            costs = Costs(self._cost(run, UPDATE), self._cost(run, PROBLEM), start)
            seconds = costs.seconds(run.work(self._total(run)))
            if seconds is None:
                return "time left not known yet"
            seconds_of_runs.append(seconds)
        return f"about {tqdm.format_interval(seconds_until_all_end(seconds_of_runs, self.num_jobs))} left"
