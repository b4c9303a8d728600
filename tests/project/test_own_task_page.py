"""The page of an own task runs as printed: from two files to a table, a picture and a report."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from conftest import ROOT


@pytest.mark.slow
def test_the_page_runs_as_printed(tmp_path):
    page = (ROOT / "recipes" / "own_task.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}
    subprocess.run(["bash", "-e", "-c", "\n".join(blocks)], cwd=tmp_path, env=environment, check=True, timeout=900)
    folder = tmp_path / "runs" / "own_task"
    seeds = pd.read_csv(folder / "compare" / "seeds.csv")
    assert seeds["name"].tolist() == ["base", *["no control"] * 2, *["LEASH"] * 2, *["ALP"] * 2]
    assert seeds["score"].between(0.4, 1).all()
    assert (folder / "compare" / "pareto.png").stat().st_size > 10_000
    assert "own_task" in (folder / "report" / "report.html").read_text(encoding="utf-8")
