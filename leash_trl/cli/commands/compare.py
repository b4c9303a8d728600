"""`leash compare`: trains and evaluates variants of a recipe, called arms, over the same seeds: a table, a figure."""

import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pandas as pd
import yaml
from tqdm import tqdm

from leash_trl import process
from leash_trl.cli.arguments import parse_known
from leash_trl.cli.errors import UserError, add_resume_hint, errors_to_user_errors
from leash_trl.comparison import page
from leash_trl.comparison.page import FinishedEvaluation
from leash_trl.comparison.progress import SECONDS_BETWEEN_READINGS, ComparisonProgress
from leash_trl.comparison.queue import EndedJob, cause_of_failure, run_jobs
from leash_trl.comparison.run import EVALUATION_NAME, LOG_FILE, ComparedRun, LengthRequest
from leash_trl.comparison.tables import comparison_rows
from leash_trl.evaluation.runs import load_evaluated_run
from leash_trl.figures.evaluation import pareto_figure
from leash_trl.figures.style import write_figure
from leash_trl.figures.training import dynamics_figure, load_curves, logged_curve, split_by_budget
from leash_trl.files import write_atomically
from leash_trl.run_folder import lock_folder


EMPTY_LOG = pd.DataFrame()  # the curves of a run that trains no model


@dataclass
class CompareArguments:
    """Train and evaluate methods over the same seeds, and write a table with 95 % intervals and a figure.

    Run the same command again to resume. Fields of leash train on the command line apply to every arm. The file is a
    recipe, which is then the only arm, or it has four parts, as in own_task_compare.yaml: base, a recipe or its
    fields, which all arms share; eval, options of leash eval (default: the settings of training); arms, each with its
    own fields, label and number of seeds (default: 3); and grid, with a list of values per field, or null to remove
    the field, for arms that do not set the field themselves. An arm with train: false is not trained: leash compare
    evaluates the base model, or the model_name_or_path of the arm, with the arm's options of leash eval, such as
    prompt_ending or max_new_tokens. The models that an arm trains can be evaluated again with other options: evals:
    {forced: {decoding: budget_forcing}} adds a row whose name ends with "forced". In table and figure, base is the
    model before training, which is always evaluated, so no arm may have this name or label.

    Args:
        comparison (`str`): File that describes the comparison.
        arms (`list[str]`): Arms to run, at all points of their grids (default: all).
        seeds (`list[int]`): Seeds of every arm (default: as many as the arm's number of seeds, from 0 on).
        jobs (`int`): Number of runs at the same time (default: 2, or 1 if there is a GPU), unless devices is set.
        devices (`str`): GPUs for each of the runs at the same time, such as '0,1;2,3' for two runs on two GPUs each.
        output_dir (`str`): Folder for everything in this comparison.
    """

    comparison: str = field(metadata={"aliases": ["--config"]})
    arms: list[str] | None = None
    seeds: list[int] | None = None
    jobs: int | None = None
    devices: str | None = None
    output_dir: str = "runs/compare"


def devices_of_jobs(options: CompareArguments) -> list[str | None]:
    """Returns an entry for each of the runs at the same time, with its devices; `None` keeps the environment
    unchanged. Raises `UserError` if runs would have different numbers of devices."""
    if options.devices is None:
        import torch

        num_jobs = options.jobs or (1 if torch.cuda.is_available() else 2)
        return [None] * num_jobs
    devices = options.devices.split(";")  # "0,1;2,3" becomes ["0,1", "2,3"], for two jobs with two GPUs each
    if len({num_devices(job_devices) for job_devices in devices}) > 1:
        raise UserError(f"devices is {options.devices!r}; give each job equally many devices")
    return [*devices]


def num_devices(devices: str | None) -> int:
    """Returns the number of devices of a job, such as 2 for "0,1"."""
    return 1 if devices is None else devices.count(",") + 1


def main(argv: list[str]) -> int:
    """Trains and evaluates the runs that are not done. Then writes tables and figure of all runs that are done, if
    these include the base and another run.

    Returns the exit code, which is 1 if a run failed.
    """
    options, training_words = parse_known(CompareArguments, argv, "leash compare")
    process.use_one_thread()
    process.ignore_future_warnings()
    from leash_trl.cli.comparison_arms import planned_runs
    from leash_trl.cli.training_arguments import fields_of_command_line

    runs = planned_runs(options, overrides=fields_of_command_line(training_words, prog="leash compare"))
    devices = devices_of_jobs(options)
    with add_resume_hint(options.output_dir, "run the same command again to resume"), lock_folder(options.output_dir):
        write_identifying_files(runs)
        num_failed = run_remaining(runs, devices)
    base, *others = runs
    if base.is_done() and any(run.is_done() for run in others):
        write_comparison(shlex.join(["leash", "compare", *argv]), runs, Path(options.output_dir))
    return 1 if num_failed else 0


def write_identifying_files(runs: list[ComparedRun]) -> None:
    """Writes into the folder of each run the files that identify the run. Raises `UserError` before it writes any, if
    a folder holds another run."""
    with errors_to_user_errors():
        # the content of these files for each run, by file name
        files_of_runs = {run: run.identifying_files() for run in runs}
        for run, files in files_of_runs.items():
            run.check_holds_this_run(files)
    for run, files in files_of_runs.items():
        for name, content in files.items():
            write_atomically(run.folder / name, yaml.safe_dump(content))


def run_remaining(runs: list[ComparedRun], devices: list[str | None]) -> int:
    """Trains and evaluates the runs that are not done, as many at once as there are entries in `devices`, and returns
    how many failed."""
    # For each log file, the function that returns the commands of its job. It is called when the job starts, since the
    # commands depend on what the run has done so far.
    jobs = {run.folder / LOG_FILE: partial(run.commands, num_devices(devices[0])) for run in runs if not run.is_done()}
    num_failed = 0
    with ComparisonProgress(runs, num_jobs=len(devices)) as progress:
        for job in run_jobs(jobs, devices, seconds_between=SECONDS_BETWEEN_READINGS):
            if job is None:  # no job has ended for `SECONDS_BETWEEN_READINGS`
                progress.show()
                continue
            tqdm.write(outcome_in_words(job), file=sys.stderr)
            progress.record_end(job)
            if job.exit_code != 0:
                num_failed += 1
    return num_failed


def outcome_in_words(job: EndedJob) -> str:
    """Returns a line on how a run ended."""
    folder = job.log_file.parent
    if job.exit_code == 0:
        return f"{folder} done ({job.seconds:.0f} s)"
    why = cause_of_failure(job.log_file)  # the last error in the log
    return f"{folder} failed with exit code {job.exit_code}: {why} (see {job.log_file}) ({job.seconds:.0f} s)"


def write_comparison(command: str, runs: list[ComparedRun], output_dir: Path) -> None:
    """Writes tables and figure of the finished runs, and prints the tables. The first run is the base."""
    finished = finished_by_arm(runs[1:])
    # the curves of each run that trained a model; runs of an arm with `train: false` have none
    logs = {run: load_curves(run.folder) for run in finished if run.is_trained}
    with errors_to_user_errors():
        base = load_evaluated_run(runs[0].folder / EVALUATION_NAME)
        evaluations: list[FinishedEvaluation] = []
        for run in finished:
            evaluations.extend(finished_evaluations(run, log=logs.get(run, EMPTY_LOG)))
        # `seeds` has a row for the base and for each evaluation, `differences` the differences of each point of a grid
        # from a reference, and `table` the means over the seeds of each point.
        seeds = page.seed_rows(base, evaluations)
        differences = page.paired_differences(seeds, base, evaluations)
    table = comparison_rows(seeds)
    text = page.page_text(command, runs, base, evaluations=evaluations, seeds=seeds, differences=differences)
    page.write_tables(output_dir, text, table=table, seeds=seeds, differences=differences)
    # Several arms are compared by accuracy over length. For a single arm, the curves of its training say more.
    if len({run.arm for run in runs[1:]}) > 1:
        training = page.accuracies_by_method(seeds, evaluations)
        write_figure(pareto_figure(table, training=training), output_dir / "pareto.png")
    else:
        write_figure(dynamics_figure(list(logs.values())), output_dir / "dynamics.png")
    print(f"\n{text}\n\nTables and figure are in {output_dir}.")


def finished_by_arm(runs: list[ComparedRun]) -> list[ComparedRun]:
    """Returns the finished runs in the order of the tables, one arm after the other. (They start in another order,
    with the first seeds of all arms.)"""
    arm_names = list(dict.fromkeys(run.arm for run in runs))
    return sorted((run for run in runs if run.is_done()), key=lambda run: arm_names.index(run.arm))


def finished_evaluations(run: ComparedRun, log: pd.DataFrame) -> Iterator[FinishedEvaluation]:
    """Yields the evaluations of a finished run; `log` has the curves of its training."""
    for name, request in run.requests.items():  # by folder: "eval", or "eval-low" and "eval-high" for two efforts
        log_of_request = log if request.effort is None else curves_of_effort(run, log, request)
        # The entries of `evals` evaluate the same trained model with other options. The curves of the training belong
        # to the evaluation with the common options, and must not be shown twice.
        if request.eval_name is not None:
            log_of_request = EMPTY_LOG
        yield FinishedEvaluation(
            run,
            request,
            load_evaluated_run(run.folder / name),
            mean_lengths=logged_curve(log_of_request, "leash/mean_length"),
            multipliers=logged_curve(log_of_request, "leash/lambda"),
            accuracies=logged_curve(log_of_request, "leash/accuracy"),
            generated_tokens=logged_curve(log, "leash/generated_tokens"),
        )


def curves_of_effort(run: ComparedRun, log: pd.DataFrame, request: LengthRequest) -> pd.DataFrame:
    """Returns the curves of one effort. If they were not logged, returns only lambda, if all efforts share one."""
    from leash_trl.length_control.leash import budget_name

    # `multiplier_per` says what has a multiplier of its own: each effort, or each target. The names of the curves end
    # with it, as in "leash/lambda/low" or "leash/lambda/1024".
    names = {"effort": request.effort, "target_length": budget_name(request.target_length)}
    name = names.get(run.multiplier_per or "")
    for curves in split_by_budget(log):
        if curves.attrs["label"] == name:
            return curves
    # A multiplier that all efforts share is also that of this effort. Lengths and accuracies were logged for all
    # efforts together, and say nothing of this one.
    return log.filter(["leash/lambda"] if run.multiplier_per is None else [])
