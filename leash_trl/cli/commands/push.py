"""`leash push`: pushes a run on disk to the Hub, with its model card, evaluation and checkpoints, in one commit."""

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from leash_trl.cli.arguments import parse
from leash_trl.cli.errors import user_errors
from leash_trl.paths import existing_path


@dataclass
class PushArguments:
    """Push a run to the Hugging Face Hub in one commit: model, recipe, state of length control and model card.

    Args:
        run (`str`): Folder of leash train or leash merge, or a checkpoint.
        repo (`str`): Repository as owner/name, which is created if necessary (default: write the card and list the
            files, but push nothing).
        evaluation (`str`): Folder of leash eval with an evaluation of this model.
        baseline (`str`): Folder of leash eval with an evaluation of the model to compare with.
        checkpoints (`str`): Complete checkpoints to push; last is pushed as last-checkpoint.
        private (`bool`): Whether a new repository is private.
        revision (`str`): Branch, which is created if necessary (default: main).
    """

    run: str = field(metadata={"positional": True})
    repo: str | None = None
    evaluation: str | None = None
    baseline: str | None = None
    checkpoints: Literal["none", "last", "all"] = "none"
    private: bool = False
    revision: str | None = None


def main(argv: list[str]) -> None:
    """Runs `leash push`."""
    arguments = parse(PushArguments, argv, "leash push")
    from leash_trl.hub.repository import HubRepository

    with user_errors(repo=arguments.repo):
        folder = Path(existing_path(arguments.run, "run"))
        files = _written_files(arguments, folder)
        if arguments.repo is None:
            print(*sorted(files), sep="\n")
            print(f"Nothing was pushed: give --repo owner/name. The model card is {folder / 'README.md'}.")
            return
        repository = HubRepository(arguments.repo, revision=arguments.revision)
        repository.create(private=arguments.private or None)
        print(repository.commit(files, "Upload model").commit_url)


def _written_files(arguments: PushArguments, folder: Path) -> dict[str, Path | bytes]:
    """Writes curves and card, and returns the files to push by their names in the repository."""
    from leash_trl import run_folder
    from leash_trl.figures.training import write_curves
    from leash_trl.hub import repository
    from leash_trl.hub.card import write_model_card

    trainer_state = run_folder.read_trainer_state(folder)
    if trainer_state is None or run_folder.length_control_state(folder) is None:
        raise ValueError(f"{folder} holds no model of leash train: its trainer_state.json has no LengthControl")
    whole = {path.name: path for path in run_folder.whole_checkpoints(folder)}
    last = dict(zip([repository.LAST_CHECKPOINT], whole.values(), strict=False))
    checkpoints = {"none": {}, "last": last, "all": whole}[arguments.checkpoints]
    if arguments.checkpoints != "none" and not checkpoints:
        raise ValueError(f"--checkpoints is {arguments.checkpoints!r}, but {folder} holds none that is complete")
    table = _evaluation(arguments, folder)
    adapter = folder / run_folder.ADAPTER_FILE
    if adapter.is_file() and Path(base := json.loads(adapter.read_text())["base_model_name_or_path"]).is_dir():
        print(f"Others cannot load this adapter, whose base is the folder {base}; run leash merge.", file=sys.stderr)
    write_curves(trainer_state, folder / repository.CURVES_FILE)
    recipe = run_folder.read_saved_recipe(folder)
    write_model_card(folder, trainer_state, recipe, arguments.repo, adapter.is_file(), table)
    files: dict[str, Path | bytes] = {**repository.model_files(folder)}
    for place, path in checkpoints.items():
        files |= repository.checkpoint_files(path, place)
    return files


def _evaluation(arguments: PushArguments, folder: Path) -> str:
    """Returns the table of the card; empty if there is no evaluation."""
    from leash_trl.evaluation.runs import load_evaluated_run
    from leash_trl.evaluation.tables import summary_markdown

    if arguments.evaluation is None:
        return ""
    results = load_evaluated_run(existing_path(arguments.evaluation, "evaluation"))
    baseline = load_evaluated_run(existing_path(arguments.baseline, "baseline")) if arguments.baseline else None
    model, pushed = results.run["model"], folder.resolve()
    is_same = Path(model).resolve() == pushed if Path(model).exists() else Path(model).name == pushed.name
    if model != arguments.repo and not is_same:  # the card would show the numbers of another model
        raise ValueError(f"--evaluation is of the model {model}, but --run is {folder}; evaluate the latter")
    return summary_markdown(results, baseline)
