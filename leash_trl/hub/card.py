"""Writes the model card of a run: what made the model, how training went, how it scores, how to continue training."""

import json
import logging
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import jinja2
import yaml
from huggingface_hub import EvalResult, HfUri, ModelCard, ModelCardData

from leash_trl.data.efforts import EFFORT_SUFFIX
from leash_trl.data.prompts import BOXED_SUFFIX
from leash_trl.data.references import SOURCES
from leash_trl.engines.checkpoint_path import ADAPTER_FILE
from leash_trl.files import write_whole
from leash_trl.hub.recipe import recipe_yaml
from leash_trl.hub.repository import CARD_FILE, CURVES_FILE
from leash_trl.length_control.methods import find_method


logger = logging.getLogger(__name__)

# of cards that tools write and that may be replaced: ours, TRL's, PEFT's form
SIGNS = ("<!-- Written by leash_trl", "It has been trained using [TRL]", "[More Information Needed]")
BADGE = re.compile(r"^\[<img .*$", re.MULTILINE)  # TRL's links to Weights & Biases, Trackio and Comet
MOST_IN_TABLE = 12  # entries of a table in the state that the card shows; per question it may hold thousands


@dataclass(frozen=True)
class Evaluation:
    """The part of a model's repository that an evaluation adds.

    Args:
        table (`str`):
            Markdown for the card.
        entries (`Sequence[EvalResult]`, *optional*):
            Metadata of the card, for complete benchmarks of the Hub.
        results_file (`str`, *optional*):
            Content of `.eval_results/leash_trl.yaml`, for the same benchmarks.
    """

    table: str
    entries: Sequence[EvalResult] = ()
    results_file: str | None = None


def write_model_card(
    folder: Path,
    trainer_state: Mapping[str, Any],
    recipe: Mapping[str, Any],
    repo_id: str | None = None,
    is_adapter: bool = False,
    evaluation: Evaluation | None = None,
) -> None:
    """Writes the card into a folder. It keeps metadata and links to trackers of a card that a tool wrote there.

    A card that somebody wrote by hand stays, with a warning.

    Args:
        folder (`Path`):
            The model's folder. If `training_curves.png` lies in it, the card shows it.
        trainer_state (`Mapping[str, Any]`):
            The content of `trainer_state.json`: `global_step`, `log_history`, and `stateful_callbacks` with the state
            of length control.
        recipe (`Mapping[str, Any]`):
            The run's recipe by field name; empty if it is not known.
        repo_id (`str`, *optional*):
            Repository on the Hub; without it, the card's title and examples name the folder.
        is_adapter (`bool`, *optional*, defaults to `False`):
            Whether the weights are an adapter of the base model.
        evaluation (`Evaluation`, *optional*):
            How the model scores.
    """
    path = folder / CARD_FILE
    old = ModelCard.load(path, ignore_metadata_errors=True) if path.is_file() else ModelCard("---\n{}\n---\n")
    if path.is_file() and not any(sign in old.content for sign in SIGNS):
        logger.warning("%s is not ours to replace; delete it for a new card", path)
        return
    kept: dict[str, Any] = old.data.to_dict()
    state = trainer_state["stateful_callbacks"]["LengthControl"]
    tags = [*(kept.get("tags") or ["generated_from_trainer", "trl"]), "leash", state["method"]]
    names = [part.get("path") for part in recipe.get("datasets") or []] or [recipe.get("dataset_name")]
    ids = [_hub_id(SOURCES[name].hub_id if name in SOURCES else name) for name in names]
    kept |= {
        "base_model": kept.get("base_model") or _hub_id(recipe.get("model_name_or_path")),
        "datasets": [hub_id for hub_id in ids if hub_id] or None,
        "library_name": "peft" if is_adapter else "transformers",
        "pipeline_tag": "text-generation",
        "model_name": Path(repo_id or folder.resolve()).name,
        "tags": list(dict.fromkeys(tags)),
        "eval_results": list(evaluation.entries) or None if evaluation else None,
    }
    metadata = ModelCardData(**{key: value for key, value in kept.items() if key not in ("model-index", "licence")})
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"shell": shlex.quote, "python": partial(json.dumps, ensure_ascii=False)}
    template = environment.from_string(Path(__file__).with_name("card.md.j2").read_text(encoding="utf-8"))
    text = template.render(
        metadata=metadata,
        trainer_state=trainer_state,
        recipe=recipe,
        recipe_yaml=recipe_yaml(recipe),
        repo_id=repo_id,
        folder=str(folder),
        boxed=BOXED_SUFFIX,
        efforts=_mapping(recipe.get("efforts")),
        effort_suffix=EFFORT_SUFFIX,
        numbers=dict(_numbers(state["state"])),
        badges=BADGE.findall(old.content),
        evaluation=evaluation,
        has_curves=(folder / CURVES_FILE).is_file(),
        **_method(state["method"], recipe),
    )
    write_whole(path, f"---\n{metadata.to_yaml()}\n---\n\n{text}")


def _method(name: str, recipe: Mapping[str, Any]) -> dict[str, Any]:
    """The paper of the method, and its hyper-parameters: its defaults, replaced by the recipe's values.

    A method of the user's own that cannot be imported from here has no paper, and the recipe's values alone.
    """
    kwargs = _mapping(recipe.get("length_control_kwargs"))
    try:
        method = find_method(str(recipe.get("length_control", name)))
    except ValueError:
        return {"paper": None, "knobs": kwargs}
    defaults = {
        field.name: None if field.default is MISSING else field.default for field in fields(method) if field.init
    }
    given = {field: recipe[field] for field in defaults if recipe.get(field) is not None}
    return {"paper": method.paper, "knobs": {**defaults, **kwargs, **given}}


def _hub_id(name: Any) -> str | None:
    """A name to link to: `owner/name`, unless it is a folder here."""
    try:
        HfUri("model", name)
    except ValueError:
        return None
    return None if Path(name).exists() else name


def _mapping(value: Any) -> dict[str, Any]:
    """A field that a recipe may give as text."""
    return (yaml.safe_load(value) if isinstance(value, str) else value) or {}


def _numbers(state: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """The numbers in a method's state by name, those of small tables in it by table and name."""
    for name, value in state.items():
        if type(value) in (int, float):
            yield prefix + name, value
        elif isinstance(value, Mapping) and len(value) <= MOST_IN_TABLE:
            yield from _numbers(value, f"{prefix}{name}.")


def write_curves(folder: Path, trainer_state: Mapping[str, Any]) -> None:
    """Draws the training curves into a folder as `training_curves.png`, if any were logged.

    Args:
        folder (`Path`):
            The model's folder, whose name the legend shows.
        trainer_state (`Mapping[str, Any]`):
            As for [`write_model_card`].
    """
    from leash_trl.figures import dynamics_figure, write_figure
    from leash_trl.figures.curves import curves_from_log

    target = trainer_state["stateful_callbacks"]["LengthControl"].get("target_length")
    curves = curves_from_log(trainer_state["log_history"], folder.resolve().name, target)
    if len(curves.steps) > 0:
        write_figure(dynamics_figure([curves], columns=2), folder / CURVES_FILE)


def local_base_model(folder: Path) -> str | None:
    """The base model of an adapter if it is a folder on this machine, which nobody else can load; else `None`."""
    config = folder / ADAPTER_FILE
    base = json.loads(config.read_text(encoding="utf-8"))["base_model_name_or_path"] if config.is_file() else None
    return base if base and Path(base).is_dir() else None
