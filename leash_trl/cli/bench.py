"""`leash bench step | rollout`: time, memory and exactness of the training step, and speed of generating."""

import argparse
import dataclasses
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leash_trl.cli.command_parser import CommandParser
from leash_trl.cli.errors import check_writable, user_errors
from leash_trl.cli.process_queue import Job, run_jobs


if TYPE_CHECKING:
    from leash_trl.benchmark.settings import BenchSettings


HELP = {
    "step": "training step of TRL's GRPOTrainer and of LeashGRPOTrainer",
    "rollout": "generating without vLLM: generate, shrinking batch, continuous batching",
}
MODULES = {"step": "leash_trl.benchmark.training_step", "rollout": "leash_trl.benchmark.rollout_engines"}


def build_parser() -> argparse.ArgumentParser:
    """Parser of `leash bench`."""
    from leash_trl.benchmark.settings import ENGINES, RolloutSettings, StepSettings

    parser = CommandParser(
        prog="leash bench",
        description="Measure on models with random weights and completions of drawn lengths, each arm in a process of "
        "its own, on the first GPU or else the CPU. Writes JSON, Markdown and a log per arm.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="benchmark", required=True)
    for name, settings_type in {"step": StepSettings, "rollout": RolloutSettings}.items():
        command = commands.add_parser(name, help=HELP[name], allow_abbrev=False)
        command.set_defaults(settings_type=settings_type)
        for field in dataclasses.fields(settings_type):
            kind = {"action": "store_true"} if field.default is False else {"type": type(field.default)}
            text = f"{field.metadata['help']} (default: {field.default})"
            command.add_argument(f"--{field.name}", default=field.default, help=text, **kind)
        if name == "rollout":
            command.add_argument(
                "--engines", nargs="+", choices=ENGINES, default=list(ENGINES), help="what to measure (default: all)"
            )
        command.add_argument("--output_dir", default="runs/bench", help="for results and logs (default: runs/bench)")
    return parser


def main(argv: list[str]) -> int:
    """Runs `leash bench`; 1 if an arm failed."""
    options = vars(build_parser().parse_args(argv))
    benchmark, output = options.pop("benchmark"), Path(options.pop("output_dir"))
    settings_type, engines = options.pop("settings_type"), options.pop("engines", [])
    with user_errors():
        settings = settings_type(**options)
        check_writable(output)

    from leash_trl.benchmark.settings import ARMS, ENGINES
    from leash_trl.benchmark.tables import make_report, markdown, with_utilisation
    from leash_trl.files import write_whole

    output.mkdir(parents=True, exist_ok=True)
    arms = ARMS if benchmark == "step" else ENGINES
    for name in (f"{benchmark}.json", f"{benchmark}.md", *(f"{arm}.log" for arm in arms)):
        (output / name).unlink(missing_ok=True)  # what an earlier run has left
    names: Iterable[str] = dict.fromkeys(engines)
    if benchmark == "step":
        names = ARMS if settings.num_dead_groups else ("stock", "ours")
    with tempfile.TemporaryDirectory() as folder:
        results = _run(MODULES[benchmark], names, settings, Path(folder), output)
        more: dict[str, Any] = {}
        if benchmark == "step":
            results = with_utilisation(results)
            more = {"num_groups": settings.num_groups, "num_dead_groups": settings.num_dead_groups}
            more["gradient_difference"] = _gradient_difference(results, Path(folder))
    report = make_report(shlex.join(["leash", "bench", *argv]), settings, results, **more)
    page = markdown(report)
    write_whole(output / f"{benchmark}.json", json.dumps(report, indent=2) + "\n")
    write_whole(output / f"{benchmark}.md", page)
    print(f"\n{page}\nResults and logs are in {output}.")
    return 1 if any("failed" in result for result in results.values()) else 0


def _gradient_difference(results: dict[str, dict[str, Any]], folder: Path) -> dict[str, float] | None:
    if any("failed" in result for result in results.values()):
        return None
    from leash_trl.benchmark.gradients import gradient_difference

    return gradient_difference(folder / "ours.pt", folder / "stock.pt")


def _run(
    module: str, names: Iterable[str], settings: "BenchSettings", folder: Path, output: Path
) -> dict[str, dict[str, Any]]:
    """Runs a module once per name, one after the other, and returns what each wrote, or why it failed."""
    given = json.dumps(vars(settings))
    jobs = [
        Job(name, (sys.executable, "-m", module, given, name, str(folder)), output / f"{name}.log") for name in names
    ]
    run_jobs(jobs, 1, _environment(settings), _describe)
    results = {}
    for job in jobs:
        written = folder / f"{job.name}.json"
        results[job.name] = json.loads(written.read_text()) if written.exists() else {"failed": _last_line(job)}
    return results


def _environment(settings: "BenchSettings") -> dict[str, str]:
    # one GPU: with several, Trainer would wrap the model in DataParallel
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": visible, "TRL_EXPERIMENTAL_SILENCE": "1"}
    if settings.model_name_or_path == "gym":
        environment.setdefault("OMP_NUM_THREADS", "1")  # a model this small is slower on two
    return environment


def _describe(job: Job, exit_code: int, seconds: float) -> str:
    return f"{job.name}: {f'{seconds:.0f} s' if exit_code == 0 else f'failed, see {job.log_file}'}"


def _last_line(job: Job) -> str:
    lines = job.log_file.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "it was ended from outside, without a word"
