"""`leash eval`: measures avg@k accuracy and tokens of a model on benchmarks, with intervals; runs can be resumed."""

from dataclasses import dataclass
from pathlib import Path

from leash_trl.cli.arguments import parse
from leash_trl.cli.errors import user_errors
from leash_trl.cli.sampling_arguments import SamplingArguments, sample_all
from leash_trl.evaluation.runs import load_evaluated_run
from leash_trl.evaluation.tables import summary_markdown, write_results
from leash_trl.paths import existing_path


@dataclass(kw_only=True)
class EvalArguments(SamplingArguments):
    """Sample and grade benchmarks, with intervals. Run the same command again to resume.

    Args:
        benchmarks (`list[str]`): Benchmarks, each as a named source, NAME=PATH for a local copy of one, a file, a
            folder or a Hub id.
        baseline (`str`): Folder of another run to compare with, problem by problem.
    """

    benchmarks: list[str]
    baseline: str | None = None


def main(argv: list[str]) -> None:
    """Samples and grades the benchmarks, writes the results and prints their table."""
    arguments = parse(EvalArguments, argv, "leash eval", takes_recipe=True)
    folder = Path(arguments.output_dir)
    baseline = None
    if arguments.baseline:
        with user_errors():
            baseline = load_evaluated_run(existing_path(arguments.baseline, "baseline"))
    sample_all(arguments, arguments.benchmarks, "benchmark", baseline=baseline.run if baseline else None)
    with user_errors():
        run = load_evaluated_run(folder)
        write_results(folder, run, baseline)
    print(f"\n{summary_markdown(run, baseline)}")
    print(f"Samples and results are in {folder}, which leash plot and leash report can read.")
