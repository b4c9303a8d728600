"""The table of published data sets, and the parser for names of data sets: one of them, a path or a Hub id."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from leash_trl.paths import existing_path, looks_like_path


Purpose = Literal["train", "benchmark"]

FILE_BUILDERS = {".jsonl": "json", ".ndjson": "json", ".json": "json", ".parquet": "parquet", ".csv": "csv"}


def file_builder(path: Path) -> str | None:
    """Returns the builder with which `datasets` reads a file, compressed or not, by its suffix; `None` for other
    files.

    Example:
        >>> file_builder(Path("data/train.JSONL.gz")), file_builder(Path("notes.txt"))
        ('json', None)
    """
    name = path.name.lower().removesuffix(".gz")
    return FILE_BUILDERS.get(Path(name).suffix)


@dataclass(frozen=True)
class Source:
    """A published data set with a short name.

    If `purpose` is `"train"`, repeated and contradictory rows are dropped; a benchmark keeps every row. `generator`
    names data that this package makes, instead of data on the Hub. `split` is the default split for evaluation.
    """

    name: str
    purpose: Purpose
    hub_id: str | None = None
    config: str | None = None
    generator: str | None = None
    split: str = "train"


SOURCES = {
    source.name: source
    for source in (
        # about 17 thousand problems, each 100 times
        Source("dapo_math_17k", "train", "BytedTsinghua-SIA/DAPO-Math-17k"),
        # the English part of it, without repeats and template
        Source("dapo_math_17k_processed", "train", "open-r1/DAPO-Math-17k-Processed", config="en"),
        # includes the LEASH authors' released training file
        Source("deepmath_103k", "train", "zwhe99/DeepMath-103K"),
        Source("aime24", "benchmark", "HuggingFaceH4/aime_2024"),
        Source("aime25", "benchmark", "math-ai/aime25", split="test"),
        Source("hmmt_feb25", "benchmark", "MathArena/hmmt_feb_2025"),
        Source("amc23", "benchmark", "math-ai/amc23", split="test"),
        # AMC 12 of 2022 and 2023, which the LEASH release calls AMC
        Source("amc", "benchmark", "AI-MO/aimo-validation-amc"),
        Source("math500", "benchmark", "HuggingFaceH4/MATH-500", split="test"),
        Source("gpqa_diamond", "benchmark", "Idavidrein/gpqa", "gpqa_diamond"),
        Source("mmlu_pro", "benchmark", "TIGER-Lab/MMLU-Pro", split="test"),
        Source("gsm8k", "benchmark", "openai/gsm8k", config="main", split="test"),
        # sums of several terms, as formulas and as stories
        Source("gym", "train", generator="gym"),
        Source("gym_test", "benchmark", generator="gym", split="test"),
        Source("gym_stories", "train", generator="gym_stories"),
        Source("gym_stories_test", "benchmark", generator="gym_stories", split="test"),
        # tasks of the package reasoning-gym, each with its settings: reasoning_gym:chain_sum
        Source("reasoning_gym", "train", generator="reasoning_gym", split="test"),
    )
}
SOURCES_BY_HUB_ID = {source.hub_id: source for source in SOURCES.values()}


@dataclass(frozen=True)
class Reference:
    """A data set that a user named: a source, a path, a data set on the Hub, or a source whose rows are at a path.

    `config` is the configuration on the Hub, or the task of reasoning-gym.
    """

    name: str
    source: Source | None = None
    path: Path | None = None
    hub_id: str | None = None
    config: str | None = None


def task_settings(text: str) -> dict[str, Any]:
    """Returns the settings of a task, which is given by its name or as a mapping in YAML.

    Example:
        >>> task_settings("chain_sum"), task_settings("{task: chain_sum, max_terms: 4}")
        ({'task': 'chain_sum'}, {'task': 'chain_sum', 'max_terms': 4})
    """
    # A name such as chain_sum is YAML too, namely text.
    settings = yaml.safe_load(text)
    return settings if isinstance(settings, dict) else {"task": settings}


def parse_reference(text: str, config: str | None = None, field: str = "dataset_name") -> Reference:
    """Returns the data set for a name in a command line or recipe.

    The Hub id of a source means that source.

    Args:
        text (`str`): A name in `SOURCES`; `NAME=PATH` for the same source with rows from a local file or folder; a
            path; a Hub id such as `owner/name` or `owner/name:config`; or `reasoning_gym:TASK`, where the task is a
            name or, in YAML, a mapping with its settings. A name in `SOURCES` has precedence over a path of the same
            name.
        config (`str`): Configuration on the Hub, which overrides the one in `text`.
        field (`str`): Argument that has this value, for messages.

    Raises:
        `ValueError`: If the text is none of these, or looks like a path that does not exist.

    Example:
        >>> parse_reference("openai/gsm8k:main").name, parse_reference("openai/gsm8k:socratic").config
        ('gsm8k', 'socratic')
    """
    # such as "reasoning_gym:chain_sum"
    name, _, task = text.partition(":")
    if name == "reasoning_gym":
        return Reference(task_settings(task)["task"], SOURCES[name], config=task)
    # such as "gsm8k=data/gsm8k.jsonl"
    name, _, rows = text.partition("=")
    if rows and name in SOURCES:
        path = Path(existing_path(rows, f"{name} in {field}"))
        return Reference(name, SOURCES[name], path=path, config=config)
    path = Path(text).expanduser()
    # The path of an empty text would be the working folder.
    if text and text not in SOURCES and path.exists():
        return Reference(path.stem, path=path, config=config)
    # such as "openai/gsm8k" or "openai/gsm8k:socratic"
    hub_id, _, config_in_text = text.partition(":")
    config = config or config_in_text or None
    source = SOURCES.get(text) or SOURCES_BY_HUB_ID.get(hub_id)
    if source is not None:
        return Reference(source.name, source, hub_id=source.hub_id, config=config or source.config)
    _check_hub_id(hub_id, text, field)
    return Reference(hub_id.partition("/")[2], hub_id=hub_id, config=config)


def _check_hub_id(hub_id: str, text: str, field: str) -> None:
    """Raises `ValueError` if a text looks like the path of a file, which then does not exist, or is no id of a data
    set on the Hub."""
    # A Hub id may end like the name of a file, but a name with such an end more likely means a file.
    is_file_name = "=" not in hub_id and file_builder(Path(hub_id)) is not None
    if is_file_name or looks_like_path(hub_id):
        raise ValueError(f"{field} is {text!r}, but there is no such file or folder here; correct the path")
    owner, _, repository = hub_id.partition("/")
    if not (owner and repository) or "=" in hub_id:
        raise ValueError(
            f"{field} is {text!r}, but must be a file, a folder, a Hub id (owner/name or owner/name:config), or one "
            f"of {', '.join(SOURCES)}, alone or as NAME=PATH"
        )
