"""The notebooks: what is stored in them was executed, is small and clean, and, marked `notebook`, they run."""

import base64
import re

import nbformat
import pytest
from conftest import ROOT


PATHS = sorted((ROOT / "notebooks").glob("*.ipynb"))
# not after a word, so that URLs and runs/home/ pass
ABSOLUTE_PATH = re.compile(r"(?<![\w.-])/(?:home|root|work|tmp|usr|opt|var|mnt|Users)/|[A-Z]:\\\\")


def code_cells(notebook) -> list:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def noise(notebook) -> list:
    """Errors, and what was written to stderr: warnings, and progress bars."""
    outputs = [output for cell in code_cells(notebook) for output in cell.outputs]
    return [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_stored_notebook_is_valid_executed_small_and_knows_no_machine(path):
    stored = nbformat.read(path, as_version=nbformat.NO_CONVERT)
    nbformat.validate(stored)
    assert stored.metadata.keys() == {"kernelspec", "language_info"}
    code = code_cells(stored)
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert noise(stored) == []
    data = [output.get("data", {}) for cell in code for output in cell.outputs]
    figures = [base64.b64decode(one["image/png"]) for one in data if "image/png" in one]
    assert 0 < max(map(len, figures)) < 100_000
    text = path.read_text(encoding="utf-8")
    assert len(text) < 250_000
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
