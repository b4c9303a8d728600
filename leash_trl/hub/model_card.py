"""The model card of a run: what it was trained with, how training went, how it scores, and how to go on from it."""

import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import yaml
from huggingface_hub import ModelCard, ModelCardData

from leash_trl import __version__
from leash_trl.files import write_whole
from leash_trl.hub.recipe import RECIPE_FILE, package_versions, recipe_yaml
from leash_trl.hub.run_record import RunRecord


if TYPE_CHECKING:
    from leash_trl.evaluation.results import RunResults

logger = logging.getLogger(__name__)

CARD_FILE = "README.md"
CURVES_FILE = "training_curves.png"
MARKER = "<!-- Written by leash_trl, which leaves a card without this line alone. -->"
# cards that tools write to be replaced: ours, TRL's, PEFT's form
GENERATED_CARDS = (MARKER, "It has been trained using [TRL]", "[More Information Needed]")
BADGE = re.compile(r"^\[<img .*$", re.MULTILINE)  # TRL's links to Weights & Biases, Trackio and Comet
LEASH_TAG = "leash"
GENERATED = "leash/generated_tokens"


def write_model_card(
    folder: str | Path,
    record: RunRecord,
    model_name: str,
    repo_id: str | None = None,
    results: "RunResults | None" = None,
    baseline: "RunResults | None" = None,
) -> None:
    """Writes the card into a folder, over one that a tool has written, whose metadata and links to trackers it keeps.

    A card that somebody wrote by hand is left alone, with a warning.

    Args:
        folder (`str` or `Path`):
            The model's folder. Where `training_curves.png` lies in it, the card shows it.
        record (`RunRecord`):
            What is known of the run.
        model_name (`str`):
            Title.
        repo_id (`str`, *optional*):
            Repository on the Hub; without it, the card's examples name the folder.
        results (`RunResults`, *optional*):
            Evaluation of this model, of `leash eval`: a table and, for whole benchmarks of the Hub, metadata.
        baseline (`RunResults`, *optional*):
            Evaluation of the model that this one is compared with, on the same problems.

    Raises:
        `ValueError`: If `results` and `baseline` are not of the same problems.
    """
    folder = Path(folder)
    if is_handwritten(folder):
        logger.warning("%s is not ours to replace; delete it for a new card", folder / CARD_FILE)
        return
    old = _card_there(folder)
    data = _metadata(old, record, model_name, results)
    text = _template().render(
        record=record,
        name=model_name,
        repo_id=repo_id,
        folder=folder,
        base_model=data.base_model,
        start=Path(str(record.recipe.get("model_name_or_path") or "a model")).name,
        question=json.dumps(prompt_example(record.recipe), ensure_ascii=False),
        paper=_paper(record),
        facts=training_facts(record),
        badges=BADGE.findall(old.content),
        evaluation=_evaluation(results, baseline),
        has_curves=(folder / CURVES_FILE).is_file(),
        curves=CURVES_FILE,
        recipe_file=RECIPE_FILE,
        recipe=recipe_yaml(record.recipe),
        has_data={"dataset_name", "datasets"} & record.recipe.keys(),
        more_steps=2 * record.state.get("global_step", 0),
        marker=MARKER,
        versions={"leash-trl": __version__, **package_versions()},
    )
    write_whole(folder / CARD_FILE, f"---\n{data.to_yaml()}\n---\n\n{text}")


def is_handwritten(folder: Path) -> bool:
    """Whether a folder holds a card that no tool has written."""
    path = folder / CARD_FILE
    return path.is_file() and not any(sign in path.read_text(encoding="utf-8") for sign in GENERATED_CARDS)


def _card_there(folder: Path) -> ModelCard:
    path = folder / CARD_FILE
    if not path.is_file():
        return ModelCard("---\n{}\n---\n")
    try:
        return ModelCard(path.read_text(encoding="utf-8"), ignore_metadata_errors=True)
    except (ValueError, yaml.YAMLError):
        return ModelCard("---\n{}\n---\n")


def _metadata(old: ModelCard, record: RunRecord, model_name: str, results: "RunResults | None") -> ModelCardData:
    kept: dict[str, Any] = {
        name: value
        for name, value in old.data.to_dict().items()  # type: ignore[no-untyped-call]
        if name not in ("model-index", "licence")
    }
    tags = dict.fromkeys(
        [*(kept.get("tags") or ["generated_from_trainer", "trl"]), LEASH_TAG, str(record.state["method"])]
    )
    base_model = kept.get("base_model") or _hub_id(record.recipe.get("model_name_or_path"))
    return ModelCardData(
        **{
            **kept,
            "base_model": base_model,
            "datasets": _datasets(record.recipe) or None,
            "library_name": "peft" if record.is_adapter else "transformers",
            "pipeline_tag": "text-generation",
            "model_name": model_name,
            "tags": list(tags),
            "eval_results": _eval_results(results),
        }
    )


def _datasets(recipe: Mapping[str, Any]) -> list[str]:
    from leash_trl.data.references import SOURCES

    mixture = [part.get("path") for part in recipe.get("datasets") or []]
    names = mixture or [recipe.get("dataset_name")]
    ids = (SOURCES[name].hub_id if name in SOURCES else _hub_id(name) for name in names)
    return [hub_id for hub_id in ids if hub_id is not None]


def _hub_id(name: Any) -> str | None:
    """What can be linked to: `owner/name`, unless there is such a folder here."""
    is_id = isinstance(name, str) and re.fullmatch(r"[\w.-]+/[\w.-]+", name) is not None
    return name if is_id and not Path(name).exists() else None


def _eval_results(results: "RunResults | None") -> Any:
    from leash_trl.evaluation.hub_results import hub_benchmarks, model_card_results

    if results is None or not hub_benchmarks(results):
        return None
    return model_card_results(results)


def _evaluation(results: "RunResults | None", baseline: "RunResults | None") -> str:
    if results is None:
        return ""
    from leash_trl.evaluation.export import summary_markdown

    return summary_markdown(results, baseline)


def _paper(record: RunRecord) -> dict[str, str]:
    return {} if record.method is None else record.method.paper()


def training_facts(record: RunRecord) -> list[tuple[str, str]]:
    """Rows of the card's table: name and value, what is not known left out.

    Args:
        record (`RunRecord`):
            What is known of the run.
    """
    target = record.target_length
    facts = [
        ("method", f"`{record.state['method']}`"),
        ("target for the mean length", "" if target is None else f"{target:,} tokens"),
        ("hyper-parameters", ", ".join(f"`{name}` {value}" for name, value in record.hyper_parameters.items())),
        ("state at the end", ", ".join(f"{name} {value:.4g}" for name, value in record.final_state.items())),
        ("policy updates", f"{record.state.get('global_step', 0):,}"),
        *_from_to(record, "mean length in tokens", "leash/mean_length", "{:,.1f}"),
        *_from_to(record, "accuracy in training", "leash/accuracy", "{:.1%}"),
        *_from_to(record, "completions at or under the target", "leash/satisfaction_rate", "{:.1%}"),
        ("tokens generated in training", "".join(f"{tokens:,.0f}" for tokens in record.logged(GENERATED)[-1:])),
    ]
    return [(name, value) for name, value in facts if value]


def _from_to(record: RunRecord, name: str, key: str, number: str) -> list[tuple[str, str]]:
    ends = record.ends(key)
    if ends is None:
        return []
    count, first, last = ends
    return [(f"{name}, first and last {count} batches", f"{number.format(first)} → {number.format(last)}")]


def prompt_example(recipe: Mapping[str, Any]) -> str:
    """A question as the model was asked in training."""
    from leash_trl.data.prompts import BOXED_SUFFIX

    if recipe.get("dataset_name") == "gym":
        return "16 + 9 - 8 = ?"
    return "What is the sum of the first 20 odd numbers?" + (recipe.get("prompt_suffix") or BOXED_SUFFIX)


def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("leash_trl", "hub"),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # Markdown
    )
    return environment.get_template("model_card.md.j2")


def write_curves(folder: str | Path, record: RunRecord, model_name: str) -> None:
    """Draws the training curves into a folder as `training_curves.png`; nothing where none were logged.

    Args:
        folder (`str` or `Path`):
            The model's folder.
        record (`RunRecord`):
            What is known of the run.
        model_name (`str`):
            Name of the run in the legend.
    """
    from leash_trl.figures import dynamics_figure, write_figure
    from leash_trl.figures.curves import curves_from_log

    curves = curves_from_log(record.log_history, model_name, record.target_length)
    if len(curves.steps) > 0:
        write_figure(dynamics_figure([curves], columns=2), Path(folder) / CURVES_FILE)
