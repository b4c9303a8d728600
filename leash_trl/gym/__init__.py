"""The gym: a task, a tokenizer and a tiny over-thinking model, so that everything runs without a download."""

import hashlib
import json
from pathlib import Path
from typing import Any


NAME = "gym"  # as a model
CHECKPOINT = Path(__file__).parent / "checkpoint"
RECORD = CHECKPOINT / "record.json"


def base_digest() -> str:
    """SHA-256 of the base model's weights."""
    return hashlib.sha256((CHECKPOINT / "model.safetensors").read_bytes()).hexdigest()


def base_record() -> dict[str, Any]:
    """The base model's accuracy and lengths on held-out problems, free and in each style.

    `recipes/gym/build_base.py record` wrote it.

    Raises:
        `ValueError`: If the record is of other weights than the base model's.
    """
    record: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))
    if record.get("weights") != base_digest():
        raise ValueError(
            f"{RECORD} was measured on other weights than those beside it; run recipes/gym/build_base.py record"
        )
    return record
