"""`leash eval`: avg@k accuracy and tokens of a model on benchmarks, resumable, with intervals and exports."""

from pathlib import Path

from leash_trl.cli.command_parser import CommandParser
from leash_trl.cli.errors import UserError, user_errors
from leash_trl.cli.recipe import parse_with_recipe
from leash_trl.cli.sampling import add_sampling_arguments, checked_plan, load_checked, sample_all


def build_parser() -> CommandParser:
    """Parser of `leash eval`."""
    parser = CommandParser(
        prog="leash eval",
        description="Sample and grade benchmarks: accuracy (avg@k) and tokens with intervals, as the paper's tables. "
        "A run that was stopped goes on with the same command.",
    )
    parser.add_argument("--output_dir", required=True, help="folder of the run")
    parser.add_argument(
        "--benchmarks",
        nargs="+",
        required=True,
        help="aime24 aime25 hmmt_feb25 amc23 amc math500 gpqa_diamond mmlu_pro gsm8k gym_test "
        "gym_stories_test, any with a local copy as NAME=PATH; or a file, folder or Hub id",
    )
    parser.add_argument("--baseline", help="folder of another run, to compare with problem by problem")
    add_sampling_arguments(parser, num_samples=32)
    return parser


def main(argv: list[str]) -> None:
    """Runs `leash eval`."""
    parser = build_parser()
    with user_errors():
        arguments = parse_with_recipe(parser, argv)

    from leash_trl.data.sources import parse_reference
    from leash_trl.evaluation.export import summary_markdown, write_results
    from leash_trl.evaluation.results import load_results
    from leash_trl.evaluation.run_description import check_same_problems

    folder = Path(arguments.output_dir)
    with user_errors():
        plan = checked_plan(arguments)
        baseline = None if arguments.baseline is None else load_results(arguments.baseline)
        names = [parse_reference(reference).name for reference in arguments.benchmarks]
        if len(set(names)) < len(names):
            raise UserError(f"--benchmarks {' '.join(names)}: two have the same name; evaluate one in its own run")
        problems = {
            name: load_checked(reference, arguments, "benchmark", drops_unreadable=False)
            for name, reference in zip(names, arguments.benchmarks, strict=True)
        }
        if baseline is not None:
            check_same_problems(problems, baseline.run["benchmarks"], arguments.baseline)
    sample_all(arguments, plan, problems, dict(zip(names, arguments.benchmarks, strict=True)), folder)
    with user_errors():
        results = load_results(folder)
        write_results(folder, results, baseline)
    print(f"\n{summary_markdown(results, baseline)}")
    print(f"Samples and results are in {folder}; leash behavior, plot and report read it.")
