"""`leash push`: pushes a run on disk to the Hub, with its model card, evaluation and checkpoints, in one commit."""

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from leash_trl.cli.arguments import parse
from leash_trl.cli.errors import errors_to_user_errors
from leash_trl.paths import existing_path


@dataclass
class PushArguments:
    """Push a run to the Hugging Face Hub in one commit: model, recipe, state of length control and model card.

    Args:
        run (`str`): Folder of leash train or leash merge, or a checkpoint.
        repo (`str`): Repository as owner/name, which is created if necessary.
        evaluation (`str`): Folder of leash eval with an evaluation of this model.
        baseline (`str`): Folder of leash eval with an evaluation of the model to compare with.
        checkpoints (`str`): Complete checkpoints to push; last is pushed as last-checkpoint.
        private (`bool`): Whether a new repository is private; false leaves this to the Hub.
        revision (`str`): Branch, which is created if necessary (default: main).
    """

    run: str = field(metadata={"positional": True})
    repo: str
    evaluation: str | None = None
    baseline: str | None = None
    checkpoints: Literal["none", "last", "all"] = "none"
    private: bool = False
    revision: str | None = None


def main(argv: list[str]) -> None:
    """Pushes the files of a run and prints the address of the commit."""
    arguments = parse(PushArguments, argv, "leash push")
    from leash_trl.hub.repository import HubRepository

    with errors_to_user_errors(repo=arguments.repo):
        files = files_to_push(arguments, Path(existing_path(arguments.run, "run")))
        repository = HubRepository(arguments.repo, revision=arguments.revision)
        # `None` leaves it to the Hub, where an organization may have private repositories by default.
        repository.create(private=arguments.private or None)
        commit = repository.commit(files, "Upload model")
    print(commit.commit_url)


def files_to_push(arguments: PushArguments, folder: Path) -> dict[str, Path | bytes]:
    """Writes curves and card, and returns the files to push by their paths in the repository: the model in its root,
    and each checkpoint in a folder."""
    from leash_trl.hub import repository

    # The next two lines raise an error if the user named something wrong, before any file is written.
    checkpoints = checkpoints_to_push(arguments, folder)
    table = evaluation_table(arguments, folder)
    write_curves_and_card(folder, arguments.repo, table)
    files: dict[str, Path | bytes] = dict(repository.model_files(folder))
    for path_in_repo, checkpoint in checkpoints.items():
        files.update(repository.checkpoint_files(checkpoint, path_in_repo))
    return files


def write_curves_and_card(folder: Path, repo: str, table: str) -> None:
    """Writes the figure and the model card of a run into its folder; `table` shows an evaluation, and may be empty."""
    from leash_trl import run_folder
    from leash_trl.figures.training import write_curves_figure
    from leash_trl.hub.card import write_model_card
    from leash_trl.hub.repository import CURVES_FILE

    trainer_state = run_folder.read_trainer_state(folder)
    if trainer_state is None or run_folder.length_control_state(folder) is None:
        raise ValueError(f"{folder} holds no model of leash train: its trainer_state.json has no LengthControl")
    adapter = folder / run_folder.ADAPTER_FILE
    is_adapter = adapter.is_file()
    if is_adapter:
        warn_of_local_base(adapter)
    write_curves_figure(trainer_state, folder / CURVES_FILE)
    write_model_card(folder, trainer_state, run_folder.read_saved_recipe(folder), repo, is_adapter, table)


def warn_of_local_base(adapter: Path) -> None:
    """Warns if the configuration of an adapter names a folder as its base: the repository gets only the adapter, and
    others must be able to load the base too."""
    base = json.loads(adapter.read_text())["base_model_name_or_path"]
    if Path(base).is_dir():
        print(f"Others cannot load this adapter, whose base is the folder {base}; run leash merge.", file=sys.stderr)


def checkpoints_to_push(arguments: PushArguments, folder: Path) -> dict[str, Path]:
    """Returns the checkpoints to push, by their folders in the repository.

    Raises:
        `ValueError`: If checkpoints are requested, but the run has no complete one.
    """
    from leash_trl.hub.repository import LAST_CHECKPOINT
    from leash_trl.run_folder import complete_checkpoints

    if arguments.checkpoints == "none":
        return {}
    newest_first = list(complete_checkpoints(folder))
    if not newest_first:
        raise ValueError(f"--checkpoints is {arguments.checkpoints!r}, but {folder} holds none that is complete")
    if arguments.checkpoints == "last":
        return {LAST_CHECKPOINT: newest_first[0]}
    return {checkpoint.name: checkpoint for checkpoint in newest_first}


def evaluation_table(arguments: PushArguments, folder: Path) -> str:
    """Returns the table of the card; empty if there is no evaluation.

    Raises:
        `ValueError`: If a folder does not exist, or if the evaluation is of another model.
    """
    from leash_trl.evaluation.runs import load_evaluated_run
    from leash_trl.evaluation.tables import summary_markdown

    if arguments.evaluation is None:
        return ""
    evaluated = load_evaluated_run(existing_path(arguments.evaluation, "evaluation"))
    baseline = None
    if arguments.baseline:
        baseline = load_evaluated_run(existing_path(arguments.baseline, "baseline"))
    model = evaluated.record["model"]  # the folder or the Hub id, as `leash eval` was told
    if model != arguments.repo and not is_same_folder(Path(model), folder):
        raise ValueError(f"--evaluation is of the model {model}, but --run is {folder}; evaluate the latter")
    return summary_markdown(evaluated, baseline)


def is_same_folder(evaluated: Path, pushed: Path) -> bool:
    """Returns whether the folder of a model that was evaluated is that of the run to push."""
    if evaluated.exists():
        return evaluated.resolve() == pushed.resolve()
    # The model was evaluated on another machine or has been moved, so only the names of the folders can be compared.
    return evaluated.name == pushed.resolve().name
