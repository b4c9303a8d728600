"""The gym: a task, a tokenizer and a tiny over-thinking model, so that everything runs without a download."""

import json
from pathlib import Path
from typing import Any


NAME = "gym"  # as a model, and as `dataset_name` in a recipe
CHECKPOINT = Path(__file__).parent / "checkpoint"
RECORD = CHECKPOINT / "record.json"


def base_record() -> dict[str, Any]:
    """The base model's accuracy and lengths on held-out problems, free and in each style, from `leash gym record`."""
    record: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))
    return record
