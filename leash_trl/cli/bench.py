"""`leash bench step | rollout`: time, memory and exactness of the training step, and speed of rollout engines."""

import argparse
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leash_trl.cli.command_parser import CommandParser
from leash_trl.cli.errors import UserError, user_errors
from leash_trl.cli.process_queue import Job, run_jobs


if TYPE_CHECKING:
    from leash_trl.benchmark.settings import BenchSettings, RolloutSettings, StepSettings


def build_parser() -> argparse.ArgumentParser:
    """Parser of `leash bench`."""
    from leash_trl.benchmark.settings import ENGINES

    parser = CommandParser(
        prog="leash bench",
        description="Measure on models with random weights and completions of drawn lengths, each arm in a process of "
        "its own, on the first GPU or else the CPU. Writes JSON, Markdown and a log per arm.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="benchmark", required=True)
    step = commands.add_parser(
        "step", help="training step of TRL's GRPOTrainer and of LeashGRPOTrainer", allow_abbrev=False
    )
    _add_step_arguments(step)
    rollout = commands.add_parser(
        "rollout", help="generate, shrinking batch, continuous batching and vLLM", allow_abbrev=False
    )
    rollout.add_argument("--num_completions", type=int, default=64, help="completions in a round (default: 64)")
    rollout.add_argument(
        "--engines", nargs="+", choices=ENGINES, default=list(ENGINES), help="which to measure (default: all)"
    )
    for command in (step, rollout):
        _add_common_arguments(command)
    return parser


def _add_step_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--loss_type", default="dapo", help="TRL's name of the loss (default: %(default)s)")
    parser.add_argument(
        "--per_device_train_batch_size",
        type=int,
        default=8,
        help="completions in a micro-batch (default: %(default)s)",
    )
    parser.add_argument(
        "--gradient_accumulation_steps",
        type=int,
        default=32,
        help="micro-batches in an optimizer step (default: %(default)s)",
    )
    parser.add_argument("--num_generations", type=int, default=8, help="completions per prompt (default: %(default)s)")
    parser.add_argument(
        "--dead_share",
        type=float,
        default=0.0,
        help="share of groups with equal rewards, rounded to whole groups (default: %(default)s)",
    )
    parser.add_argument("--gradient_checkpointing", action="store_true", help="recompute activations (default: off)")


def _add_common_arguments(parser: argparse.ArgumentParser) -> None:
    from leash_trl.benchmark.lengths import NAMED
    from leash_trl.benchmark.settings import DTYPES, MODELS

    parser.add_argument(
        "--model_name_or_path",
        dest="model",
        metavar="MODEL",
        default="gym",
        help=f"{', '.join(MODELS)}, or a config.json (default: gym)",
    )
    parser.add_argument(
        "--dtype", choices=DTYPES, default="float32", help="of weights and activations (default: %(default)s)"
    )
    parser.add_argument(
        "--lengths",
        default="paper-start",
        help=f"{', '.join(NAMED)}, or a CSV with a column length (default: paper-start)",
    )
    parser.add_argument(
        "--max_length",
        type=int,
        default=512,
        help="longest completion in tokens; the paper's lengths are scaled to it (default: %(default)s)",
    )
    parser.add_argument("--steps", type=int, default=5, help="steps or rounds to measure, after one more (default: 5)")
    parser.add_argument("--seed", type=int, default=0, help="of weights, lengths and rewards (default: %(default)s)")
    parser.add_argument("--output_dir", default="runs/bench", help="folder for results and logs (default: runs/bench)")


def main(argv: list[str]) -> int:
    """Runs `leash bench`; 1 if an arm failed or nothing was measured."""
    options = vars(build_parser().parse_args(argv))
    benchmark, output = options.pop("benchmark"), Path(options.pop("output_dir"))

    from leash_trl.benchmark.settings import ARMS, ENGINES, RolloutSettings, StepSettings

    command = shlex.join(["leash", "bench", *argv])
    if benchmark == "step":
        with user_errors():
            step_settings = StepSettings(**options)
        _clear(output, benchmark, ARMS)
        report, page = _measure_step(command, step_settings, output)
    else:
        engines = options.pop("engines")
        with user_errors():
            rollout_settings = RolloutSettings(**options)
        _clear(output, benchmark, ENGINES)
        report, page = _measure_rollout(command, rollout_settings, engines, output)

    from leash_trl.benchmark.tables import finished
    from leash_trl.files import write_whole

    write_whole(output / f"{benchmark}.json", json.dumps(report, indent=2) + "\n")
    write_whole(output / f"{benchmark}.md", page)
    print(f"\n{page}\nResults and logs are in {output}.")
    results = report["results"]
    return 1 if any("failed" in result for result in results.values()) or not finished(results) else 0


def _clear(output: Path, benchmark: str, names: Iterable[str]) -> None:
    """Makes the folder and removes what an earlier run of the same benchmark has left in it."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        for old in (f"{benchmark}.json", f"{benchmark}.md", *(f"{name}.log" for name in names)):
            (output / old).unlink(missing_ok=True)
        tempfile.TemporaryFile(dir=output).close()
    except OSError as error:
        raise UserError(f"--output_dir {output} cannot be written to ({error}); give another folder") from error


def _measure_step(command: str, settings: "StepSettings", output: Path) -> tuple[dict[str, Any], str]:
    from leash_trl.benchmark.settings import ARMS
    from leash_trl.benchmark.tables import finished, make_report, step_markdown, with_utilisation

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        arms = ARMS if settings.num_dead_groups else ("stock", "ours")
        gradients = {arm: folder / f"{arm}.pt" for arm in arms}
        results = _run(
            "leash_trl.benchmark.training_step",
            {arm: [arm, str(path)] for arm, path in gradients.items()},
            settings,
            folder,
            output,
        )
        difference = None
        if len(finished(results)) == len(gradients):
            from leash_trl.benchmark.gradients import gradient_difference

            difference = gradient_difference(gradients["ours"], gradients["stock"])
    report = make_report(
        command,
        settings,
        with_utilisation(results),
        gradient_difference=difference,
        num_groups=settings.num_groups,
        num_dead_groups=settings.num_dead_groups,
    )
    return report, step_markdown(report)


def _measure_rollout(
    command: str, settings: "RolloutSettings", engines: list[str], output: Path
) -> tuple[dict[str, Any], str]:
    from leash_trl.benchmark.tables import make_report, rollout_markdown

    with tempfile.TemporaryDirectory() as name:
        results = _run(
            "leash_trl.benchmark.rollout_engines",
            {engine: [engine] for engine in dict.fromkeys(engines)},
            settings,
            Path(name),
            output,
        )
    report = make_report(command, settings, results)
    return report, rollout_markdown(report)


def _run(
    module: str, arguments: dict[str, list[str]], settings: "BenchSettings", folder: Path, output: Path
) -> dict[str, dict[str, Any]]:
    """Runs a module once per name, one after the other, and returns what each wrote, or why it failed."""
    settings.save(folder / "settings.json")
    jobs, files = [], {}
    for name, own in arguments.items():
        files[name] = folder / f"{name}.json"
        command = (sys.executable, "-m", module, str(folder / "settings.json"), *own, str(files[name]))
        jobs.append(Job(name, command, output / f"{name}.log"))
    run_jobs(jobs, 1, _environment(settings), _describe)
    results = {}
    for job in jobs:
        if files[job.name].exists():
            results[job.name] = json.loads(files[job.name].read_text(encoding="utf-8"))
        else:
            results[job.name] = {"failed": _last_line(job.log_file)}
    return results


def _environment(settings: "BenchSettings") -> dict[str, str]:
    # one GPU: with several, Trainer would wrap the model in DataParallel
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": visible, "TRL_EXPERIMENTAL_SILENCE": "1"}
    if settings.model == "gym":
        environment.setdefault("OMP_NUM_THREADS", "1")  # a model this small is slower on two
    return environment


def _describe(job: Job, exit_code: int, seconds: float) -> str:
    return f"{job.name}: {f'{seconds:.0f} s' if exit_code == 0 else f'failed, see {job.log_file}'}"


def _last_line(log_file: Path) -> str:
    lines = log_file.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "it was ended from outside, without a word"
