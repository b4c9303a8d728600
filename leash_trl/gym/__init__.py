"""Provides the gym: an arithmetic task, and a tiny model that overthinks it, to run everything without a download."""

import hashlib
import json
from pathlib import Path
from typing import Any


NAME = "gym"  # value of `model_name_or_path` that selects the gym's model
CHECKPOINT = Path(__file__).parent / "checkpoint"
RECORD = CHECKPOINT / "record.json"


def base_digest() -> str:
    """Returns the SHA-256 digest of the base model's weights."""
    return hashlib.sha256((CHECKPOINT / "model.safetensors").read_bytes()).hexdigest()


def base_record() -> dict[str, Any]:
    """Returns the base model's accuracy and lengths on held-out problems, sampled freely and forced to each style.

    The record is written by `recipes/gym/build_base.py record`.

    Raises:
        `ValueError`: If the record was measured with weights other than the base model's.
    """
    record: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))
    if record.get("weights") != base_digest():
        raise ValueError(
            f"{RECORD} was measured with other weights than model.safetensors; run recipes/gym/build_base.py record"
        )
    return record
