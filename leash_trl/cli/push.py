"""`leash push`: pushes a run on disk to the Hub, with its model card, evaluation and checkpoints, in one commit."""

import argparse
import json
import sys
from pathlib import Path

from leash_trl.cli.command_parser import CommandParser
from leash_trl.cli.errors import UserError, user_errors


def build_parser() -> argparse.ArgumentParser:
    """Parser of `leash push`."""
    parser = CommandParser(
        prog="leash push",
        description="Put a run on the Hugging Face Hub in one commit: the model with the state of length control, its "
        "recipe, and a model card that shows method, target, training curves and, with --evaluation, accuracy and "
        "tokens. If it stops or fails, give the same command again: what the Hub has is not sent again. Log in with "
        "`hf auth login` or set HF_TOKEN.",
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

    from huggingface_hub import HfUri

    from leash_trl.engines.checkpoint_path import (
        ADAPTER_FILE,
        checkpoint_path,
        length_control_state,
        read_recipe,
        read_trainer_state,
        whole_checkpoints,
    )
    from leash_trl.figures.training import write_curves
    from leash_trl.hub.card import write_model_card
    from leash_trl.hub.repository import (
        CURVES_FILE,
        EVAL_RESULTS_FILE,
        LAST_CHECKPOINT,
        HubRepository,
        checkpoint_files,
        model_files,
    )

    with user_errors(repo=arguments.repo):
        if arguments.repo is not None:
            HfUri("model", arguments.repo)
        checkpoint_path(str(folder))
        trainer_state = read_trainer_state(folder)
        if trainer_state is None or length_control_state(folder) is None:
            raise ValueError(f"{folder} holds no model of leash train: its trainer_state.json has no LengthControl")
        checkpoints = [] if arguments.checkpoints == "none" else [*whole_checkpoints(folder)]
        if arguments.checkpoints != "none" and not checkpoints:
            raise ValueError(f"--checkpoints is {arguments.checkpoints!r}, but {folder} holds none that is complete")
        table, entries, results_file = _evaluation(arguments, folder) if arguments.evaluation else ("", [], None)
        write_curves(trainer_state, folder / CURVES_FILE)
        is_adapter = (folder / ADAPTER_FILE).is_file()
        write_model_card(folder, trainer_state, read_recipe(folder), arguments.repo, is_adapter, table, entries)
        base = json.loads((folder / ADAPTER_FILE).read_text())["base_model_name_or_path"] if is_adapter else None
    if base is not None and Path(base).is_dir():
        print(
            f"Others cannot load this adapter: its base model is the folder {base} of this machine. "
            f"leash merge {folder} --output_dir DIR makes a complete model.",
            file=sys.stderr,
        )
    files: dict[str, Path | bytes] = {**model_files(folder)}
    for checkpoint in checkpoints[:1] if arguments.checkpoints == "last" else checkpoints:
        files |= checkpoint_files(checkpoint, LAST_CHECKPOINT if arguments.checkpoints == "last" else checkpoint.name)
    if results_file is not None:
        files[EVAL_RESULTS_FILE] = results_file.encode()
    num_bytes = sum(len(file) if isinstance(file, bytes) else file.stat().st_size for file in files.values())
    print(f"{len(files)} files, {num_bytes / 1e6:,.1f} MB")
    if arguments.dry_run:
        print("\n".join(f"  {name}" for name in sorted(files)))
        print(f"Nothing was pushed. The model card is {folder / 'README.md'}.")
        return
    repository = HubRepository(arguments.repo, revision=arguments.revision)
    with user_errors(repo=arguments.repo):
        repository.create(private=arguments.private or None)
        print(repository.commit(files, "Upload model").commit_url)


def _evaluation(arguments: argparse.Namespace, folder: Path):
    """The card's table, its metadata and the Hub's results file, without the last two for no benchmark of the Hub.

    The evaluation must be of this model, since its numbers go on this model's card.
    """
    from leash_trl.evaluation.frame import load_evaluated_run
    from leash_trl.evaluation.tables import hub_benchmarks, hub_eval_results, model_card_results, summary_markdown

    results = load_evaluated_run(arguments.evaluation)
    model = results.run["model"]
    evaluated, pushed = Path(model), folder.resolve()
    is_same = evaluated.resolve() == pushed if evaluated.exists() else evaluated.name == pushed.name
    if model != arguments.repo and not is_same:
        raise ValueError(
            f"--evaluation is of the model {model}, but {folder} is to be pushed; evaluate that with "
            f"leash eval --model_name_or_path {folder}"
        )
    baseline = None if arguments.baseline is None else load_evaluated_run(arguments.baseline)
    table = summary_markdown(results, baseline)
    if not hub_benchmarks(results):
        return table, [], None
    return table, model_card_results(results), hub_eval_results(results)
