"""`leash filter`: keeps the training problems that a model sometimes solves, with pass rates and correct lengths."""

import json
from pathlib import Path

from leash_trl.cli.command_parser import CommandParser
from leash_trl.cli.errors import UserError, user_errors
from leash_trl.cli.recipe import parse_with_recipe
from leash_trl.cli.sampling import add_sampling_arguments, checked_plan, load_checked, sample_all


DATASET_FILE = "dataset/train.jsonl"


def build_parser() -> CommandParser:
    """Parser of `leash filter`."""
    parser = CommandParser(
        prog="leash filter",
        description="Sample k completions of every training problem and keep those that are neither always nor never "
        "solved, as the paper does with k = 4. A run that was stopped goes on with the same command.",
    )
    parser.add_argument("--output_dir", required=True, help="folder of the run; the data set is in its folder dataset")
    parser.add_argument(
        "--dataset_name",
        required=True,
        help="dapo_math_17k, dapo_math_17k_processed, deepmath_103k, gym, gym_stories, any with a local "
        "copy as NAME=PATH; or a file, folder or Hub id",
    )
    parser.add_argument("--min_passes", type=int, default=1, help="fewest right completions to keep (default: 1)")
    parser.add_argument("--max_passes", type=int, help="most right completions to keep (default: k - 1)")
    parser.add_argument(
        "--target_quantile",
        type=float,
        help="add a column target_length: this quantile of the problem's right lengths (0: shortest, 0.5: median)",
    )
    add_sampling_arguments(parser, num_samples=4)
    return parser


def main(argv: list[str]) -> None:
    """Runs `leash filter`."""
    parser = build_parser()
    with user_errors():
        arguments = parse_with_recipe(parser, argv)
    folder = Path(arguments.output_dir)

    from leash_trl.data.sources import parse_reference
    from leash_trl.evaluation.pass_rate_filter import check_bounds, filtered_rows
    from leash_trl.evaluation.samples import read_samples, samples_path
    from leash_trl.files import write_whole

    bounds = {
        "min_passes": arguments.min_passes,
        "max_passes": arguments.num_samples - 1 if arguments.max_passes is None else arguments.max_passes,
        "target_quantile": arguments.target_quantile,
    }
    with user_errors():
        plan = checked_plan(arguments)
        check_bounds(arguments.num_samples, **bounds)
        name = parse_reference(arguments.dataset_name).name
        problems = load_checked(arguments.dataset_name, arguments, "train", drops_unreadable=True)
    sample_all(arguments, plan, {name: problems}, {name: arguments.dataset_name}, folder)
    samples = read_samples(samples_path(folder, name))
    rows = list(filtered_rows(problems, samples, **bounds))
    print(_summary(samples, arguments.num_samples, len(rows)))
    if not rows:
        raise UserError("nothing is left to train on; take other problems, another model or other bounds")
    write_whole(folder / DATASET_FILE, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    print(f"Train on it with --dataset_name {folder / DATASET_FILE}; raw generations are in {folder / 'samples'}")


def _summary(samples: list, num_samples: int, num_kept: int) -> str:
    """A summary: how often the problems were solved, and how many were kept."""
    from leash_trl.evaluation.pass_rate_filter import correct_lengths, num_ungraded

    passes = [len(correct_lengths(problem)) for problem in samples]
    ungraded = sum(map(num_ungraded, samples))
    counts = ", ".join(f"{passes.count(number)} with {number}" for number in range(num_samples + 1))
    return f"Of {len(samples)} problems, by right completions out of {num_samples}: {counts}. Kept {num_kept}." + (
        f" {ungraded} completions could not be graded and count as neither right nor wrong (grader_failure in the "
        "samples says why); problems that they could decide are left out."
        if ungraded
        else ""
    )
