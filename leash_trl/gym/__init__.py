"""The gym: a task, a tokenizer and a tiny over-thinking model, so that everything runs without a download."""

from pathlib import Path


NAME = "gym"  # as `model_name_or_path` and as `dataset_name` in a recipe
CHECKPOINT = Path(__file__).parent / "checkpoint"
