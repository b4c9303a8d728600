"""`leash gym`: rebuild the gym's base model, or measure it; write stories for models from elsewhere."""

import argparse
import json
from pathlib import Path

from leash_trl.cli.command_parser import CommandParser


def main(argv: list[str]) -> None:
    """Runs `leash gym`."""
    parser = CommandParser(prog="leash gym", description="The embedded task and its over-thinking model.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    build = commands.add_parser("build", help="train the base model from nothing (about 35 minutes on one core)")
    build.add_argument("--output_dir", help="folder for the checkpoint (default: the package's own)")
    build.add_argument(
        "--work_dir", default="runs/gym-build", help="folder for intermediate checkpoints, to resume from"
    )
    build.add_argument("--seed", type=int, default=0, help="of weights and problems (default: 0)")
    record = commands.add_parser(
        "record", help="measure the base model, free and in forced styles, and store the result beside it"
    )
    record.add_argument("--figure", help="file for accuracy over tokens of the styles: .png, .svg or .pdf")
    show = commands.add_parser("show", help="print problems with traces such as the base model was taught last")
    show.add_argument("--count", type=int, default=2, help="problems to print (default: 2)")
    show.add_argument("--seed", type=int, default=0, help="of the problems (default: 0)")
    stories = commands.add_parser(
        "stories",
        help="write sums told as stories, with traces that over-think: prompts and completions for `trl sft`",
    )
    stories.add_argument("--output", required=True, help="file to write, JSON Lines")
    stories.add_argument("--count", type=int, default=3072, help="stories to write (default: 3072)")
    stories.add_argument("--seed", type=int, default=1000, help="of stories and traces (default: 1000)")
    arguments = parser.parse_args(argv)
    {"build": _build, "record": _record, "show": _show, "stories": _stories}[arguments.command](arguments)


def _build(arguments: argparse.Namespace) -> None:
    import torch

    from leash_trl.gym import CHECKPOINT
    from leash_trl.gym.pretrain import build_checkpoint

    torch.set_num_threads(1)  # a model this small is slower on two
    output = arguments.output_dir or str(CHECKPOINT)
    build_checkpoint(output, arguments.work_dir, arguments.seed)
    print(f"wrote {output}" + ("; `leash gym record` measures it" if output == str(CHECKPOINT) else ""))


def _record(arguments: argparse.Namespace) -> None:
    import pandas as pd

    from leash_trl.cli.errors import user_errors
    from leash_trl.figures import check_format, styles_figure, write_figure
    from leash_trl.gym import RECORD, base_record
    from leash_trl.gym.record import write_record

    if arguments.figure:
        with user_errors():
            check_format(arguments.figure)
    summary = write_record()
    print(f"accuracy {summary.accuracy:.3f}, mean tokens {summary.mean_tokens:.1f}; wrote {RECORD}")
    if arguments.figure:
        write_figure(styles_figure(pd.DataFrame(base_record()["styles"])), arguments.figure)
        print(f"wrote {arguments.figure}")


def _show(arguments: argparse.Namespace) -> None:
    import random

    from leash_trl.gym.pretrain import STAGES
    from leash_trl.gym.task import LEVELS, problems, solution_trace

    style = STAGES[-1].styles[""]
    rng = random.Random(arguments.seed)
    for _, problem in zip(range(arguments.count), problems(arguments.seed, LEVELS, "train"), strict=False):
        print(f"{problem.question}\n<think>{solution_trace(problem, style, rng)}\n")


def _stories(arguments: argparse.Namespace) -> None:
    from leash_trl.cli.errors import user_errors
    from leash_trl.files import write_whole
    from leash_trl.gym.stories import traced_stories

    output = Path(arguments.output)
    with user_errors(output=arguments.output):
        if output.is_dir():
            file = output / "traces.jsonl"
            raise ValueError(f"output is {arguments.output!r}, a folder; name a file, such as {file}")
        rows = traced_stories(arguments.count, arguments.seed)
        write_whole(output, "".join(f"{json.dumps(row)}\n" for row in rows))
    print(f"wrote {arguments.output}, {len(rows)} stories")
