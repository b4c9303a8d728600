"""`leash push`: a run, with its model card, evaluation and checkpoints, on the Hub."""

import argparse
import sys
from pathlib import Path

from leash_trl.cli.command_parser import CommandParser
from leash_trl.cli.errors import UserError, user_errors


def build_parser() -> argparse.ArgumentParser:
    """Parser of `leash push`."""
    parser = CommandParser(
        prog="leash push",
        description="Puts a run on the Hugging Face Hub: the model with the state of length control, its recipe and a "
        "model card that shows method, target, training curves and, with --evaluation, accuracy and tokens. Each "
        "commit is whole. Stopped or failed, the same command goes on: what the Hub has is not sent again. Log in "
        "with `hf auth login` or set HF_TOKEN.",
    )
    parser.add_argument("run", help="output folder of leash train, one of its checkpoints, or of leash merge")
    parser.add_argument("--repo", help="repository on the Hub, owner/name; it is made if it is missing")
    parser.add_argument("--evaluation", help="folder of leash eval for this model: a table, and the Hub's metadata")
    parser.add_argument("--baseline", help="folder of leash eval for the model it is compared with")
    parser.add_argument(
        "--checkpoints",
        choices=("none", "last", "all"),
        default="none",
        help="push checkpoints too, with optimizers: the last one as last-checkpoint, or all (default: none)",
    )
    parser.add_argument("--private", action="store_true", help="make a new repository private")
    parser.add_argument("--revision", help="branch to push to; it is made if it is missing (default: main)")
    parser.add_argument("--dry_run", action="store_true", help="write the card, list what would be pushed, and stop")
    return parser


def main(argv: list[str]) -> None:
    """Runs `leash push`."""
    arguments = build_parser().parse_args(argv)
    folder = Path(arguments.run)
    if arguments.repo is None and not arguments.dry_run:
        raise UserError("--repo owner/name is needed, or --dry_run")
    if arguments.baseline is not None and arguments.evaluation is None:
        raise UserError("--baseline is what --evaluation is compared with; give both")

    from leash_trl.hub.publishing import check_model, local_base_model, run_commits, write_card

    with user_errors():
        check_model(folder)
        results, baseline = _load(arguments.evaluation), _load(arguments.baseline)
        if results is not None:
            _check_same_model(results, folder, arguments.repo)
        write_card(folder, arguments.repo, results, baseline)
        commits = run_commits(folder, arguments.checkpoints, results)
    if (base := local_base_model(folder)) is not None:
        print(
            f"Others cannot load this adapter: its base model is the folder {base} of this machine. "
            f"leash merge {folder} makes a whole model.",
            file=sys.stderr,
        )
    for commit in commits:
        print(f"{commit.message}: {len(commit.files)} files, {commit.num_bytes / 1e6:,.1f} MB")
        if arguments.dry_run:
            print("\n".join(f"  {name}" for name in sorted(commit.files)))
    if arguments.dry_run:
        print(f"Nothing was pushed. The model card is {folder / 'README.md'}.")
        return
    _push(arguments, commits)


def _load(folder: str | None):
    from leash_trl.evaluation.results import load_results

    return None if folder is None else load_results(folder)


def _check_same_model(results, folder: Path, repo: str | None) -> None:
    """An evaluation of another model would put its numbers on this one's card."""
    model = results.run["model"]
    evaluated = Path(model)
    is_same = (
        evaluated.resolve() == folder.resolve() if evaluated.exists() else evaluated.name == folder.resolve().name
    )
    if model != repo and not is_same:
        raise ValueError(
            f"--evaluation is of the model {model}, but {folder} is to be pushed; evaluate that with "
            f"leash eval --model_name_or_path {folder}"
        )


def _push(arguments: argparse.Namespace, commits: list) -> None:
    from leash_trl.hub.publishing import push_commits
    from leash_trl.hub.repository import HubRepository, what_went_wrong

    repository = HubRepository(arguments.repo, revision=arguments.revision)
    try:
        repository.create(private=arguments.private or None)
        for url in push_commits(repository, commits):
            print(url)
    except Exception as error:  # the Hub and the network have many ways to say no
        raise UserError(
            f"pushing to {arguments.repo} failed ({what_went_wrong(error)}); the same command goes on"
        ) from error
