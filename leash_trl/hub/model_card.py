"""Writes the model card of a run: what made the model, how training went, how it scores, how to continue training."""

import functools
import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData

from leash_trl.files import write_whole
from leash_trl.hub.recipe import RECIPE_FILE, recipe_yaml
from leash_trl.hub.run_record import RunRecord


logger = logging.getLogger(__name__)

CARD_FILE = "README.md"
CURVES_FILE = "training_curves.png"
MARKER = "<!-- Written by leash_trl, which leaves a card without this line alone. -->"
# cards that tools write and that may be replaced: ours, TRL's, PEFT's form
GENERATED_CARDS = (MARKER, "It has been trained using [TRL]", "[More Information Needed]")
BADGE = re.compile(r"^\[<img .*$", re.MULTILINE)  # TRL's links to Weights & Biases, Trackio and Comet


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
    folder: str | Path,
    record: RunRecord,
    name: str,
    repo_id: str | None = None,
    evaluation: Evaluation | None = None,
    tags: Sequence[str] = (),
) -> None:
    """Writes the card into a folder. It keeps metadata and links to trackers of a card that a tool wrote there.

    A card that somebody wrote by hand stays, with a warning.

    Args:
        folder (`str` or `Path`):
            The model's folder. If `training_curves.png` lies in it, the card shows it.
        record (`RunRecord`):
            The facts about the run.
        name (`str`):
            Title.
        repo_id (`str`, *optional*):
            Repository on the Hub; without it, the card's examples name the folder.
        evaluation (`Evaluation`, *optional*):
            How the model scores.
        tags (`Sequence[str]`, *optional*):
            Further tags of the metadata.
    """
    folder = Path(folder)
    path = folder / CARD_FILE
    old = ModelCard.load(path, ignore_metadata_errors=True) if path.is_file() else ModelCard("---\n{}\n---\n")
    if path.is_file() and not any(sign in old.content for sign in GENERATED_CARDS):
        logger.warning("%s is not ours to replace; delete it for a new card", path)
        return
    data = _metadata(old, record, name, evaluation, tags)
    text = _template().render(
        record=record,
        name=name,
        repo_id=repo_id,
        folder=folder,
        base_model=data.base_model,
        start=Path(str(record.recipe.get("model_name_or_path") or "a model")).name,
        question=json.dumps(_question(record.recipe), ensure_ascii=False),
        paper={} if record.method is None else record.method.paper(),
        facts=training_facts(record),
        badges=BADGE.findall(old.content),
        evaluation=evaluation,
        curves=CURVES_FILE if (folder / CURVES_FILE).is_file() else None,
        recipe_file=RECIPE_FILE,
        recipe=recipe_yaml(record.recipe),
        has_data={"dataset_name", "datasets"} & record.recipe.keys(),
        marker=MARKER,
    )
    write_whole(path, f"---\n{data.to_yaml()}\n---\n\n{text}")


def _metadata(
    old: ModelCard, record: RunRecord, name: str, evaluation: Evaluation | None, tags: Sequence[str]
) -> ModelCardData:
    kept: dict[str, Any] = old.data.to_dict()  # type: ignore[no-untyped-call]
    kept = {key: value for key, value in kept.items() if key not in ("model-index", "licence")}
    old_tags = kept.get("tags") or ["generated_from_trainer", "trl"]
    return ModelCardData(
        **{
            **kept,
            "base_model": kept.get("base_model") or _hub_id(record.recipe.get("model_name_or_path")),
            "datasets": _datasets(record.recipe) or None,
            "library_name": "peft" if record.is_adapter else "transformers",
            "pipeline_tag": "text-generation",
            "model_name": name,
            "tags": list(dict.fromkeys([*old_tags, "leash", str(record.state["method"]), *tags])),
            "eval_results": list(evaluation.entries) or None if evaluation else None,
        }
    )


def _datasets(recipe: Mapping[str, Any]) -> list[str]:
    from leash_trl.data.references import SOURCES

    names = [part.get("path") for part in recipe.get("datasets") or []] or [recipe.get("dataset_name")]
    ids = (SOURCES[name].hub_id if name in SOURCES else _hub_id(name) for name in names)
    return [hub_id for hub_id in ids if hub_id is not None]


def _hub_id(name: Any) -> str | None:
    """A name to link to: `owner/name`, unless it is a folder here."""
    is_id = isinstance(name, str) and re.fullmatch(r"[\w.-]+/[\w.-]+", name) is not None
    return name if is_id and not Path(name).exists() else None


def _question(recipe: Mapping[str, Any]) -> str:
    """A question in the form of the training prompts, at the first effort if there are several."""
    from leash_trl.data.efforts import EFFORT_SUFFIX, effort_suffix
    from leash_trl.data.prompts import BOXED_SUFFIX

    suffix = "".join(effort_suffix(name, recipe.get("effort_suffix", EFFORT_SUFFIX)) for name in _efforts(recipe)[:1])
    own = BOXED_SUFFIX if recipe.get("prompt_suffix") is None else recipe["prompt_suffix"]
    if recipe.get("dataset_name") == "gym":
        return "16 (a) +9 (b) -8 = ?" + suffix
    if recipe.get("dataset_name") == "gym_stories":
        return "Nora has 14 shells. She finds 5 more. How many shells does Nora have now?" + suffix
    return "What is the sum of the first 20 odd numbers?" + own + suffix


def _efforts(recipe: Mapping[str, Any]) -> list[str]:
    efforts = recipe.get("efforts") or {}
    return list(yaml.safe_load(efforts) if isinstance(efforts, str) else efforts)


def training_facts(record: RunRecord) -> list[tuple[str, str]]:
    """Rows of the card's table, name and value; what is not known is left out."""
    target = record.state.get("target_length")
    numbers = _numbers(record.state.get("controller", {}))
    efforts = record.recipe.get("efforts")
    facts = [
        ("method", f"`{record.state['method']}`"),
        ("target for the mean length", "" if target is None else f"{target:,} tokens"),
        ("target of each effort", "" if not efforts else f"`{efforts}`"),
        ("hyper-parameters", ", ".join(f"`{name}` {value}" for name, value in record.hyper_parameters.items())),
        ("state at the end", ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())),
        ("policy updates", f"{record.state.get('global_step', 0):,}"),
    ]
    for name, key, number in (
        ("mean length in tokens", "leash/mean_length", "{:,.1f}"),
        ("accuracy in training", "leash/accuracy", "{:.1%}"),
        ("completions at or under the target", "leash/satisfaction_rate", "{:.1%}"),
    ):
        if (ends := record.ends(key)) is not None:
            count, first, last = ends
            facts.append((f"{name}, first and last {count} batches", f"{number} → {number}".format(first, last)))
    generated = record.logged("leash/generated_tokens")[-1:]
    facts.append(("tokens generated in training", "".join(f"{tokens:,.0f}" for tokens in generated)))
    return [(name, value) for name, value in facts if value]


def _numbers(state: Mapping[str, Any]) -> dict[str, float]:
    """The numbers in a method's state, by name: its own, then those of the method inside toggle."""
    own = {name: value for name, value in state.items() if type(value) in (int, float)}
    own |= {f"lambda of {name}": each["lambda"] for name, each in state.get("multipliers", {}).items()}
    held = _numbers(state["method_state"]) if isinstance(state.get("method_state"), dict) else {}
    return own | {name: value for name, value in held.items() if name not in own}


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("leash_trl", "hub"),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # Markdown
    )
    return environment.get_template("model_card.md.j2")


def write_curves(folder: str | Path, record: RunRecord, name: str) -> None:
    """Draws the training curves into a folder as `training_curves.png`, if any were logged.

    Args:
        folder (`str` or `Path`):
            The model's folder.
        record (`RunRecord`):
            The facts about the run.
        name (`str`):
            Name of the run in the legend.
    """
    from leash_trl.figures import dynamics_figure, write_figure
    from leash_trl.figures.curves import curves_from_log

    curves = curves_from_log(record.log_history, name, record.state.get("target_length"))
    if len(curves.steps) > 0:
        write_figure(dynamics_figure([curves], columns=2), Path(folder) / CURVES_FILE)
