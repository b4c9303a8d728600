"""The page of an own task runs as printed, and recipes/speed.py gives both arms the same work."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from conftest import ROOT


pytestmark = pytest.mark.slow


def test_the_page_of_an_own_task_runs_from_two_files_to_a_table_a_picture_and_a_report(tmp_path):
    page = (ROOT / "recipes" / "own_task.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run(["bash", "-e", "-c", "\n".join(blocks)], cwd=tmp_path, env=environment, check=True, timeout=900)
    folder = tmp_path / "runs" / "own_task"
    seeds = pd.read_csv(folder / "compare" / "seeds.csv")
    assert seeds["name"].tolist() == ["base", "no control", "no control", "LEASH", "LEASH", "ALP", "ALP"]
    assert seeds["score"].between(0.4, 1).all()
    assert (folder / "compare" / "pareto.png").stat().st_size > 10_000
    assert "own_task" in (folder / "report" / "report.html").read_text(encoding="utf-8")


def measured(folder, *words):
    command = [sys.executable, str(ROOT / "recipes" / "speed.py"), *words, "--max_length", "16", "--steps", "1"]
    subprocess.run([*command, "--output_dir", str(folder)], check=True)
    return json.loads((folder / f"{words[0]}.json").read_text(encoding="utf-8"))


def test_both_trainers_have_one_gradient_and_ours_pads_less(tmp_path):
    report = measured(tmp_path, "step", "--gradient_accumulation_steps", "4", "--dtype", "float64")
    assert report["gradient_difference"] < 1e-6
    assert report["results"]["ours"]["padding share"] < report["results"]["stock"]["padding share"]


def test_both_engines_write_the_drawn_lengths(tmp_path):
    report = measured(tmp_path, "rollout", "--num_completions", "8")
    assert report["results"].keys() == {"generate", "shrinking"}  # an engine that writes other lengths fails
