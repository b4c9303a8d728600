"""Shows how far the runs of a comparison are, by the progress bars in their logs."""

import io
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from leash_trl.comparison.queue import EndedJob
from leash_trl.comparison.run import LOG_FILE, ComparedRun
from leash_trl.run_folder import newest_trainer_state


SECONDS_BETWEEN_READINGS = 1.0
SECONDS_BETWEEN_LINES = 180.0  # in a file; on a terminal the lines are renewed with every reading
TAIL_BYTES = 2**16  # bytes at the end of a log, which hold its last bar

UPDATE_UNIT = "update"  # unit of the bar of leash train; that of leash eval is "problem"
# the end of a bar, such as "| 31/80 [01:33<02:27,  3.00s/update, length=52, target=46]"
BAR_PATTERN = re.compile(
    r"\| (?P<bar>(?P<num_done>\d+)/(?P<total>\d+) "
    r"\[[\d:]+<[^,]*, +[\d.?]+(?:s/)?(?P<unit>update|problem)(?:/s)?(?:, [^\]]*)?\])"
)


class RunProgress:
    """How far a run is: at the start of the comparison by the run's files, and from then on by its log."""

    def __init__(self, run: ComparedRun):
        self.run = run
        self.has_ended = run.is_done()
        self.stage = "starting"  # or the progress bar of what the run does now
        self.num_done = 0  # updates
        self.total = 0  # updates; 0 means not known yet
        if run.is_trained:
            # An interrupted run continues from its newest checkpoint. The state of a new run is empty.
            state = newest_trainer_state(run.folder)
            self.num_done = state.get("global_step", 0)
            # Before the first checkpoint, only the recipe may tell the total.
            self.total = max(state.get("max_steps", 0), run.recipe.get("max_steps") or 0, self.num_done)

    def read_log(self) -> None:
        """Reads the end of the log. The bar that was written last says what the run does now."""
        for match in BAR_PATTERN.finditer(text_at_end(self.run.folder / LOG_FILE)):
            self.stage = match["bar"]
            if match["unit"] == UPDATE_UNIT:
                self.num_done = int(match["num_done"])
                self.total = int(match["total"])


def text_at_end(file: Path) -> str:
    """Returns the end of a text file; empty if there is no file."""
    if not file.is_file():
        return ""
    with open(file, "rb") as log:
        log.seek(max(0, file.stat().st_size - TAIL_BYTES))
        return log.read().decode("utf-8", errors="replace")


class ComparisonProgress:
    """Shows how far a comparison is: a bar over the updates of all runs, with the time left at their mean speed, and a
    line for each run in progress.

    On a terminal, bar and lines are renewed in place. In a file, they are written every few minutes.

    Args:
        runs (`Sequence[ComparedRun]`): All runs, in the order in which they start.
        num_jobs (`int`): Number of runs at the same time.
    """

    def __init__(self, runs: Sequence[ComparedRun], num_jobs: int):
        self.runs = [RunProgress(run) for run in runs]
        self.num_jobs = num_jobs
        # The time at which lines were last written into a file. With this value, the first lines are written at once.
        self._last_line = -SECONDS_BETWEEN_LINES
        self._is_terminal = sys.stderr.isatty()
        # In a file, tqdm must not draw the bar: `show` prints its text.
        self._bar = tqdm(
            initial=sum(run.num_done for run in self.runs),
            file=sys.stderr if self._is_terminal else io.StringIO(),
            bar_format="{n_fmt} of {total_fmt} updates |{bar}| {desc}, {remaining} left",
            dynamic_ncols=True,
            disable=False,  # also where TQDM_DISABLE is set: its numbers are read below
        )
        # There is a line for each run in progress, on a terminal only. tqdm cuts a line to the width of the terminal
        # only if the line has a bar, so it gets a bar of one blank.
        self._rows = [
            tqdm(position=position, bar_format="{desc}{bar:1}", leave=False, dynamic_ncols=True, disable=None)
            for position in range(1, num_jobs + 1)
        ]

    def __enter__(self) -> "ComparisonProgress":
        self.show()
        return self

    def __exit__(self, *exception: object) -> None:
        for row in self._rows:
            row.close()
        self._bar.close()

    def record_end(self, job: EndedJob) -> None:
        """Counts the run of a job as ended."""
        progress = next(progress for progress in self.runs if progress.run.folder == job.log_file.parent)
        progress.read_log()
        progress.has_ended = True
        # A bar is not written at every update, so the last one in the log may be short of the total.
        if job.exit_code == 0:
            progress.num_done = progress.total
        self.show()

    def show(self) -> None:
        """Reads the logs of the runs in progress, and shows how far they are."""
        remaining = [progress for progress in self.runs if not progress.has_ended]
        lines = []
        # Runs start in this order, so the first remaining ones are in progress.
        for progress in remaining[: self.num_jobs]:
            progress.read_log()
            lines.append(f"{progress.run.name}: {progress.stage}")
        self._update_bar()
        if self._is_terminal:
            # A row without a run becomes empty.
            lines += [""] * (self.num_jobs - len(lines))
            for row, line in zip(self._rows, lines, strict=True):
                row.set_description_str(line)
        elif time.monotonic() >= self._last_line + SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            print(self._bar, *lines, sep="\n  ", file=sys.stderr, flush=True)

    def _update_bar(self) -> None:
        """Counts updates and ended runs, and draws the bar on a terminal."""
        trained = [progress for progress in self.runs if progress.run.is_trained]
        # A run whose number of updates is not known yet counts as much as the longest run.
        longest = max(progress.total for progress in trained)
        self._bar.total = sum(progress.total or longest for progress in trained)
        self._bar.n = sum(progress.num_done for progress in trained)
        # tqdm computes the time left from the speed since `start_t`, so the time until the first update must not
        # count.
        if self._bar.n == self._bar.initial:
            self._bar.start_t = time.time()
        num_ended = sum(progress.has_ended for progress in self.runs)
        self._bar.set_description_str(f"{num_ended} of {len(self.runs)} runs", refresh=self._is_terminal)
