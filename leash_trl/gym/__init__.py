"""Provides the gym: an arithmetic task, and a tiny model that overthinks it, to run everything without a download."""

import json
from pathlib import Path
from typing import Any


MODEL_NAME = "gym"  # value of `model_name_or_path` that selects the gym's model
CHECKPOINT = Path(__file__).parent / "checkpoint"
RECORD_FILE = CHECKPOINT / "record.json"


def base_record() -> dict[str, Any]:
    """Returns the base model's accuracy and lengths on held-out problems, sampled freely and forced to each style, as
    `recipes/gym/build_base.py record` wrote them.
    """
    record: dict[str, Any] = json.loads(RECORD_FILE.read_text(encoding="utf-8"))
    return record
