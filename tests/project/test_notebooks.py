"""The notebooks: what is stored in them was executed, is small and clean, and, marked `notebook`, they run."""

import itertools
import re

import nbformat
import pytest
from conftest import ROOT


PATHS = sorted((ROOT / "notebooks").glob("*.ipynb"))
# not after a word, so that URLs and runs/home/ pass
ABSOLUTE_PATH = re.compile(r"(?<![\w.-])/(?:home|root|work|tmp|usr|opt|var|mnt|Users)/|[A-Z]:\\\\")


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def outputs(notebook):
    return [*itertools.chain.from_iterable(cell.outputs for cell in code_cells(notebook))]


def noise(notebook):
    """Errors, and what was written to stderr: warnings, and progress bars."""
    return [out for out in outputs(notebook) if out.output_type == "error" or out.get("name") == "stderr"]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_stored_notebook_is_valid_executed_small_and_knows_no_machine(path):
    stored = nbformat.read(path, as_version=nbformat.NO_CONVERT)
    nbformat.validate(stored)
    code = code_cells(stored)
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert noise(stored) == []
    text = path.read_text(encoding="utf-8")
    assert ABSOLUTE_PATH.search(text) is None


@pytest.mark.notebook
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_notebook_runs_without_noise(path, tmp_path, monkeypatch):
    from nbclient import NotebookClient

    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))  # not the user's kernel named python3
    notebook = nbformat.read(path, as_version=nbformat.NO_CONVERT)
    folder = {"metadata": {"path": str(tmp_path)}}
    # seconds a cell may take; a notebook takes one to two minutes on a core of its own
    NotebookClient(notebook, kernel_name="python3", timeout=600, resources=folder).execute()
    assert noise(notebook) == []
