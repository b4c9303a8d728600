"""The table of published data sets, and what a name on a command line stands for: one of them, a path or a Hub id."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


Kind = Literal["train", "benchmark"]

FILE_BUILDERS = {".jsonl": "json", ".ndjson": "json", ".json": "json", ".parquet": "parquet", ".csv": "csv"}


def file_builder(path: Path) -> str | None:
    """What `datasets` reads a file with, compressed or not, by the end of its name; `None` for other files.

    Example:
        >>> file_builder(Path("data/train.JSONL.gz")), file_builder(Path("notes.txt"))
        ('json', None)
    """
    return FILE_BUILDERS.get(Path(path.name.lower().removesuffix(".gz")).suffix)


@dataclass(frozen=True)
class Source:
    """A published data set by a short name.

    Repeated and contradictory rows of training data are left out; a benchmark keeps every row. `embedded` names data
    of the package instead of the Hub's; `split` is that to evaluate on or to filter.
    """

    name: str
    kind: Kind
    hub_id: str | None = None
    config: str | None = None
    embedded: str | None = None
    split: str = "train"


SOURCES = {
    source.name: source
    for source in (
        # about 17 thousand problems, each 100 times
        Source("dapo_math_17k", "train", "BytedTsinghua-SIA/DAPO-Math-17k"),
        # the same without repeats and template, in English
        Source("dapo_math_17k_processed", "train", "open-r1/DAPO-Math-17k-Processed", config="en"),
        # the LEASH authors' released training file is a part of it
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
        # running sums, bare and as stories
        Source("gym", "train", embedded="gym"),
        Source("gym_test", "benchmark", embedded="gym", split="test"),
        Source("gym_stories", "train", embedded="gym_stories"),
        Source("gym_stories_test", "benchmark", embedded="gym_stories", split="test"),
    )
}


@dataclass(frozen=True)
class Reference:
    """A data set that a user named: a source, a path, a Hub data set, or a source with its rows at a path."""

    name: str
    source: Source | None = None
    path: Path | None = None
    hub_id: str | None = None
    config: str | None = None


def parse_reference(text: str, config: str | None = None) -> Reference:
    """The data set for a name on a command line.

    The Hub id of a source is that source, unless another configuration is asked for, which holds other rows.

    Args:
        text (`str`): A name of `SOURCES`; `NAME=PATH`, the same source with rows from a local file or folder; a path;
            or a Hub id such as `owner/name` or `owner/name:config`. A name of `SOURCES` comes before a path of the
            same name.
        config (`str`): Configuration on the Hub, before the one in the text.

    Raises:
        `ValueError`: If it is none of these.

    Example:
        >>> parse_reference("openai/gsm8k:main").name, parse_reference("openai/gsm8k:socratic").config
        ('gsm8k', 'socratic')
    """
    source = SOURCES.get(text)
    if source is None and text and Path(text).exists():
        return Reference(Path(text).stem, path=Path(text), config=config)
    name, equals, path = text.partition("=")
    if equals and path and name in SOURCES:
        return Reference(name, SOURCES[name], path=Path(path), config=config)
    if source is not None and source.hub_id is None:
        return Reference(source.name, source)
    hub_id, _, own_config = ((source and source.hub_id) or text).partition(":")
    config = config or own_config or None
    for known in SOURCES.values():
        if known.hub_id == hub_id and config in (None, known.config or "default"):
            return Reference(known.name, known, hub_id=hub_id, config=known.config)
    if hub_id.count("/") == 1 and all(hub_id.split("/")) and file_builder(Path(hub_id)) is None:
        return Reference(hub_id.rpartition("/")[2], hub_id=hub_id, config=config)
    names = f"one of {', '.join(SOURCES)}, alone or as NAME=PATH"
    raise ValueError(f"{text!r} is no file or folder, no Hub id (owner/name or owner/name:config) and not {names}")
