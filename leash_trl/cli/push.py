"""`leash push`: pushes a run on disk to the Hub, with its model card, evaluation and checkpoints, in one commit."""

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from leash_trl.cli.arguments import parse
from leash_trl.cli.errors import user_errors


DESCRIPTION = (
    "Put a run on the Hugging Face Hub in one commit: the model with the state of length control, its recipe, and a "
    "model card that shows method, target, training curves and, with --evaluation, accuracy and tokens. If it stops "
    "or fails, give the same command again: what the Hub has is not sent again. Log in with `hf auth login` or set "
    "HF_TOKEN."
)


@dataclass
class PushArguments:
    """Options of `leash push`."""

    run: str = field(
        metadata={
            "positional": True,
            "help": "output folder of leash train, one of its checkpoints, or of leash merge",
        }
    )
    repo: str | None = field(
        default=None, metadata={"help": "repository on the Hub, owner/name; it is made if it is missing"}
    )
    evaluation: str | None = field(
        default=None, metadata={"help": "folder of leash eval for this model: a table, and the Hub's metadata"}
    )
    baseline: str | None = field(
        default=None, metadata={"help": "folder of leash eval for the model it is compared with"}
    )
    checkpoints: Literal["none", "last", "all"] = field(
        default="none",
        metadata={"help": "push checkpoints too, with optimizers: the last one as last-checkpoint, or all"},
    )
    private: bool = field(default=False, metadata={"help": "make a new repository private"})
    revision: str | None = field(
        default=None, metadata={"help": "branch to push to; it is made if it is missing (default: main)"}
    )
    dry_run: bool = field(default=False, metadata={"help": "write the card, list what would be pushed, and stop"})

    def __post_init__(self) -> None:
        if self.repo is None and not self.dry_run:
            raise ValueError("--repo owner/name is needed, or --dry_run")
        if self.baseline is not None and self.evaluation is None:
            raise ValueError("--baseline is what --evaluation is compared with; give both")


def main(argv: list[str]) -> None:
    """Runs `leash push`."""
    arguments = parse(PushArguments, argv, prog="leash push", description=DESCRIPTION)
    from leash_trl.hub.repository import HubRepository

    folder = Path(arguments.run)
    with user_errors(repo=arguments.repo):
        files = _written_files(arguments, folder)
    num_bytes = sum(len(file) if isinstance(file, bytes) else file.stat().st_size for file in files.values())
    print(f"{len(files)} files, {num_bytes / 1e6:,.1f} MB")
    if arguments.repo is None or arguments.dry_run:
        print("\n".join(f"  {name}" for name in sorted(files)))
        print(f"Nothing was pushed. The model card is {folder / 'README.md'}.")
        return
    repository = HubRepository(arguments.repo, revision=arguments.revision)
    with user_errors(repo=arguments.repo):
        repository.create(private=arguments.private or None)
        print(repository.commit(files, "Upload model").commit_url)


def _written_files(arguments: PushArguments, folder: Path) -> dict[str, Path | bytes]:
    """What to push by its name there, after curves and card are written.

    Raises:
        `ValueError`: If the folder holds no run, or not the checkpoints or the evaluation that are asked for.
    """
    from huggingface_hub import HfUri

    from leash_trl.engines.checkpoint_path import (
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
        checkpoint_files,
        model_files,
    )

    if arguments.repo is not None:
        HfUri("model", arguments.repo)
    checkpoint_path(str(folder))
    trainer_state = read_trainer_state(folder)
    if trainer_state is None or length_control_state(folder) is None:
        raise ValueError(f"{folder} holds no model of leash train: its trainer_state.json has no LengthControl")
    checkpoints = [] if arguments.checkpoints == "none" else [*whole_checkpoints(folder)]
    if arguments.checkpoints != "none" and not checkpoints:
        raise ValueError(f"--checkpoints is {arguments.checkpoints!r}, but {folder} holds none that is complete")
    table, entries, results_file = (
        _evaluation(arguments, arguments.evaluation, folder) if arguments.evaluation else ("", [], "")
    )
    write_curves(trainer_state, folder / CURVES_FILE)
    recipe, base = read_recipe(folder), _adapter_base(folder)
    write_model_card(folder, trainer_state, recipe, arguments.repo, base is not None, table, entries)
    if arguments.checkpoints == "last":
        saved = checkpoint_files(checkpoints[0], LAST_CHECKPOINT)
    else:
        saved = {name: file for path in checkpoints for name, file in checkpoint_files(path, path.name).items()}
    results = {EVAL_RESULTS_FILE: results_file.encode()} if results_file else {}
    return {**model_files(folder), **saved, **results}


def _adapter_base(folder: Path) -> str | None:
    """The base model that a folder's adapter names, or `None` for a whole model; warns of one that only we have."""
    from leash_trl.engines.checkpoint_path import ADAPTER_FILE

    if not (folder / ADAPTER_FILE).is_file():
        return None
    base = str(json.loads((folder / ADAPTER_FILE).read_text())["base_model_name_or_path"])
    if Path(base).is_dir():
        print(
            f"Others cannot load this adapter: its base model is the folder {base} of this machine. "
            f"leash merge {folder} --output_dir DIR makes a complete model.",
            file=sys.stderr,
        )
    return base


def _evaluation(arguments: PushArguments, evaluation: str, folder: Path) -> tuple[str, list[Any], str]:
    """The card's table, its metadata and the Hub's results file, the last two empty for no benchmark of the Hub.

    The evaluation must be of this model, since its numbers go on this model's card.
    """
    from leash_trl.evaluation.frame import load_evaluated_run
    from leash_trl.evaluation.tables import hub_eval_results, model_card_results, summary_markdown

    results = load_evaluated_run(evaluation)
    model = results.run["model"]
    evaluated, pushed = Path(model), folder.resolve()
    is_same = evaluated.resolve() == pushed if evaluated.exists() else evaluated.name == pushed.name
    if model != arguments.repo and not is_same:
        raise ValueError(
            f"--evaluation is of the model {model}, but {folder} is to be pushed; evaluate that with "
            f"leash eval --model_name_or_path {folder}"
        )
    baseline = None if arguments.baseline is None else load_evaluated_run(arguments.baseline)
    return summary_markdown(results, baseline), model_card_results(results), hub_eval_results(results)
