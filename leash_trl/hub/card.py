"""Writes the model card of a run: base model, method, training results, evaluation and how to continue training."""

import contextlib
import json
import logging
import shlex
from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import jinja2
from huggingface_hub import HfUri, ModelCard

from leash_trl.data.sources import SOURCES
from leash_trl.files import write_whole
from leash_trl.hub.repository import CARD_FILE
from leash_trl.length_control.methods import find_method, hyper_parameters
from leash_trl.run_folder import target_spans
from leash_trl.saved_recipe import mapping_field, recipe_yaml


logger = logging.getLogger(__name__)

# texts that mark a generated card, which may be overwritten: by leash_trl, by TRL, or PEFT's empty template
GENERATED_MARKS = ("<!-- Written by leash_trl", "It has been trained using [TRL]", "[More Information Needed]")

MOST_TARGETS = 4  # listed in the card; a schedule or targets of single prompts have more
UNKNOWN_PROMPT = [{"role": "user", "content": "..."}]  # of the quick start, if the run saved no prompt of its data


def write_model_card(
    folder: Path,
    trainer_state: Mapping[str, Any],
    recipe: Mapping[str, Any],
    repo_id: str | None = None,
    is_adapter: bool = False,
    evaluation: str = "",
) -> None:
    """Writes the model card into a folder.

    If the folder has a generated card, further metadata of that card, such as the license, is kept. A card that was
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
    old = path.read_text(encoding="utf-8") if path.is_file() else f"---\n{{}}\n---\n{GENERATED_MARKS[0]}"
    if not any(mark in old for mark in GENERATED_MARKS):
        logger.warning("%s was not generated and is not overwritten; delete it to get a new card", path)
        return
    state = trainer_state["stateful_callbacks"]["LengthControl"]
    method = find_method(recipe.get("length_control", state["method"]))
    given = {name: value for name, value in recipe.items() if value is not None}
    own = mapping_field("length_control_kwargs", recipe.get("length_control_kwargs")) or {}
    chosen = hyper_parameters(method, {**given, "length_control_kwargs": own})
    names = [part.get("path") for part in recipe.get("datasets") or []] or [recipe.get("dataset_name")]
    ids = [_hub_id(SOURCES[name].hub_id if name in SOURCES else name) for name in names]
    metadata: Any = ModelCard(old, ignore_metadata_errors=True).data
    metadata.base_model = metadata.base_model or _hub_id(recipe.get("model_name_or_path"))
    metadata.datasets = [hub_id for hub_id in ids if hub_id] or None
    metadata.library_name = "peft" if is_adapter else "transformers"
    metadata.pipeline_tag = "text-generation"
    metadata.model_name = Path(repo_id or folder.resolve()).name
    tags = metadata.tags or ["generated_from_trainer", "trl"]
    metadata.tags = [*dict.fromkeys([*tags, "leash", state["method"]])]
    efforts = mapping_field("efforts", recipe.get("efforts")) or {}
    length_control = method(**chosen)
    spans = target_spans(trainer_state["log_history"])
    changed_targets = spans if 1 < len(spans) <= MOST_TARGETS else []
    template = Path(__file__).with_name("card.md.j2").read_text(encoding="utf-8")
    card = jinja2.Template(template, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True).render(
        metadata=metadata,
        trainer_state=trainer_state,
        recipe=given,
        recipe_yaml=recipe_yaml(recipe),
        repo_id=repo_id,
        folder=folder,
        paper=method.paper,
        hyperparameters={field.name: getattr(length_control, field.name) for field in fields(method) if field.init},
        efforts=efforts,
        changed_targets=changed_targets,
        prompt=state.get("example_prompt") or UNKNOWN_PROMPT,
        evaluation=evaluation,
        shell=shlex.quote,
        python=partial(json.dumps, ensure_ascii=False),  # Python reads the surrogates of JSON as two characters
    )
    write_whole(path, card)


def _hub_id(name: Any) -> str | None:
    """Returns the name if it is an id on the Hub, `owner/name`; `None` if it is not, or if it is a local folder."""
    with contextlib.suppress(ValueError):
        HfUri("model", name)
        return None if Path(name).exists() else name
    return None
