"""recipes/speed.py: both trainers and both engines do the same work, and the result says so."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


SCRIPT = Path(__file__).parents[2] / "recipes" / "speed.py"


def measured(folder: Path, *words: str) -> dict:
    shown = subprocess.run(
        [sys.executable, SCRIPT, *words, "--max_length", "16", "--steps", "1", "--output_dir", folder],
        capture_output=True,
        text=True,
    )
    assert shown.returncode == 0, shown.stderr
    return json.loads((folder / f"{words[0]}.json").read_text(encoding="utf-8"))


@pytest.mark.slow
def test_both_trainers_have_one_gradient_and_ours_pads_less(tmp_path):
    made = measured(tmp_path, "step", "--gradient_accumulation_steps", "4", "--dtype", "float64")
    assert made["gradient_difference"] < 1e-6
    assert made["results"]["ours"]["padding share"] < made["results"]["stock"]["padding share"]


@pytest.mark.slow
def test_both_engines_write_the_drawn_lengths(tmp_path):
    made = measured(tmp_path, "rollout", "--num_completions", "8")
    assert {"generate", "shrinking"} == made["results"].keys()  # an engine that writes other lengths fails
