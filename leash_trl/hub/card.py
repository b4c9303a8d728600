"""Writes the model card of a run: base model, method, training results, evaluation and how to continue training."""

import contextlib
import json
import logging
import shlex
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jinja2
from huggingface_hub import HfUri, ModelCard

from leash_trl.citations import citations
from leash_trl.completions.costs import unit_of
from leash_trl.data.sources import SOURCES
from leash_trl.files import write_atomically
from leash_trl.hub.repository import CARD_FILE
from leash_trl.length_control.fields import hyperparameter_names
from leash_trl.length_control.method import LengthControl
from leash_trl.length_control.methods import find_method, hyperparameter_values
from leash_trl.run_folder import LENGTH_CONTROL_STATE_KEY, target_spans
from leash_trl.saved_recipe import field_as_mapping, recipe_yaml


logger = logging.getLogger(__name__)

# texts that mark a generated card, which may be overwritten: by leash_trl, by TRL, or PEFT's empty template
GENERATED_MARKS = ("<!-- Written by leash_trl", "It has been trained using [TRL]", "[More Information Needed]")
EMPTY_CARD = f"---\n{{}}\n---\n{GENERATED_MARKS[0]}"  # metadata without fields, and the mark


def write_model_card(
    folder: Path,
    trainer_state: Mapping[str, Any],
    recipe: Mapping[str, Any],
    repo_id: str | None = None,
    is_adapter: bool = False,
    evaluation: str = "",
) -> None:
    """Writes the model card into a folder.

    If the folder has a generated card, other metadata of that card, such as the license, is kept. A card that was
    written by hand is not overwritten; a warning is logged instead.

    Args:
        folder (`Path`): The model's folder. The card shows `training_curves.png` if the folder has that file.
        trainer_state (`Mapping[str, Any]`): The content of `trainer_state.json`.
        recipe (`Mapping[str, Any]`): The run's recipe by field name; empty if the recipe is not known.
        repo_id (`str`): Repository on the Hub. If `None`, the card's title and examples name the folder.
        is_adapter (`bool`): Whether the weights are those of a PEFT adapter.
        evaluation (`str`): Evaluation results as Markdown.
    """
    path = folder / CARD_FILE
    old_card = path.read_text(encoding="utf-8") if path.is_file() else EMPTY_CARD
    # Every generated card has one of these texts, so a card without any was written by hand.
    if not any(mark in old_card for mark in GENERATED_MARKS):
        logger.warning("%s was not generated and is not overwritten; delete it to get a new card", path)
        return
    # the state of length control, with the keys that `run_folder.length_control_state` describes
    state = trainer_state["stateful_callbacks"][LENGTH_CONTROL_STATE_KEY]
    # A class of the user can be found only by its import path, which the recipe has; the state has only its name.
    method = find_method(recipe.get("length_control", state["method"]))
    metadata = _card_metadata(old_card, recipe, state["method"])
    # What the Hub's page of the model shows, and how its code examples load the model.
    metadata.library_name = "peft" if is_adapter else "transformers"
    metadata.model_name = Path(repo_id or folder.resolve()).name

    template = Path(__file__).with_name("card.md.j2").read_text(encoding="utf-8")
    card = jinja2.Template(template, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True).render(
        metadata=metadata,
        trainer_state=trainer_state,
        state=state,
        unit=unit_of(state["length_of"]),
        spans=target_spans(trainer_state["log_history"]),
        recipe=recipe,
        recipe_yaml=recipe_yaml(recipe),
        repo_id=repo_id,
        folder=folder,
        paper=method.paper,
        citations=citations(method, recipe),
        hyperparameters=_hyper_parameter_values(method, recipe),
        efforts=field_as_mapping("efforts", recipe.get("efforts")) or {},
        effort_template_kwargs=field_as_mapping("effort_template_kwargs", recipe.get("effort_template_kwargs")) or {},
        evaluation=evaluation,
        shell=shlex.quote,
        # writes a text as Python code; without this argument, an emoji would become two characters
        python=partial(json.dumps, ensure_ascii=False),
    )
    write_atomically(path, card)


def _card_metadata(old_card: str, recipe: Mapping[str, Any], method: str) -> Any:
    """Returns the metadata of the old card, with the base model and the data sets of the recipe, and our tags."""
    # With this argument, malformed evaluation results in the old card are left out instead of raising an error.
    metadata: Any = ModelCard(old_card, ignore_metadata_errors=True).data
    metadata.base_model = metadata.base_model or _hub_id_or_none(recipe.get("model_name_or_path"))
    metadata.datasets = _hub_ids_of_data(recipe) or None
    metadata.pipeline_tag = "text-generation"
    tags = metadata.tags or ["generated_from_trainer", "trl"]
    # The old card may have these tags already, and a tag must occur once.
    metadata.tags = [*dict.fromkeys([*tags, "leash", method])]
    return metadata


def _hub_ids_of_data(recipe: Mapping[str, Any]) -> list[str]:
    """Returns the Hub ids of the data sets of a recipe, without local files and the gym."""
    # A recipe names its data in `dataset_name`, or in `path` of each part of a mixture.
    mixture = recipe.get("datasets")
    names = [part.get("path") for part in mixture] if mixture else [recipe.get("dataset_name")]
    # A name may also be that of one of our sources, such as "gsm8k".
    ids = [_hub_id_or_none(SOURCES[name].hub_id if name in SOURCES else name) for name in names]
    return [hub_id for hub_id in ids if hub_id is not None]


def _hyper_parameter_values(method: type[LengthControl], recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of all hyper-parameters of the method: that of the recipe or else the default."""
    set_fields = {name: value for name, value in recipe.items() if value is not None}
    # A recipe may have the mapping as text, if it was set on the command line.
    kwargs = field_as_mapping("length_control_kwargs", set_fields.get("length_control_kwargs")) or {}
    length_control = method(**hyperparameter_values(method, {**set_fields, "length_control_kwargs": kwargs}))
    return {name: getattr(length_control, name) for name in hyperparameter_names(method)}


def _hub_id_or_none(name: Any) -> str | None:
    """Returns the name if it is an id on the Hub, `owner/name`; `None` if it is not, or if it is a local folder."""
    with contextlib.suppress(ValueError):
        HfUri("model", name)  # raises `ValueError` if this is not an owner and a name, or is `None`
        return None if Path(name).exists() else name
    return None
