"""The notebooks: what is stored in them is small and clean, and, marked `notebook`, they run from top to bottom."""

import ast
import base64
import re
from pathlib import Path

import nbformat
import pytest
from conftest import ROOT


NAMES = (
    "from_filter_to_report",
    "leash_in_ten_minutes",
    "one_model_three_budgets",
    "own_task",
    "target_and_controller",
    "your_own_reward_data_and_budgets",
)
ALLOWED_IMPORTS = {"leash_trl", "datasets", "pandas", "IPython", "matplotlib", "dataclasses", "os", "warnings"}
# not after a word, so that URLs and runs/home/ pass
ABSOLUTE_PATH = re.compile(r"(?<![\w.-])/(?:home|root|work|tmp|usr|opt|var|mnt|Users)/|[A-Z]:\\\\")


def path_of(name: str) -> Path:
    return ROOT / "notebooks" / f"{name}.ipynb"


def outputs(notebook):
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def noise(notebook) -> list[str]:
    """Errors, and what was written to stderr: warnings, and progress bars."""
    failed = [output.ename for output in outputs(notebook) if output.output_type == "error"]
    return failed + [output.text for output in outputs(notebook) if output.get("name") == "stderr"]


def test_the_notebooks_are_exactly_these():
    assert sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb")) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_stored_notebook_is_valid_executed_small_and_knows_no_machine(name):
    stored = nbformat.read(path_of(name), as_version=nbformat.NO_CONVERT)
    nbformat.validate(stored)
    assert (stored.metadata.kernelspec.name, {*stored.metadata}) == ("python3", {"kernelspec", "language_info"})
    assert not any(cell.metadata for cell in stored.cells)
    code = [cell for cell in stored.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert noise(stored) == []
    figures = [output.data["image/png"] for output in outputs(stored) if "image/png" in output.get("data", {})]
    assert 0 < max(len(base64.b64decode(figure)) for figure in figures) < 100_000
    text = path_of(name).read_text(encoding="utf-8")
    assert len(text.encode()) < 250_000
    assert ABSOLUTE_PATH.search(text) is None
    for cell in code:
        assert len(cell.source.splitlines()) <= 25
        for node in ast.walk(ast.parse(cell.source)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                modules = [node.module] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names]
                assert {module.split(".")[0] for module in modules} <= ALLOWED_IMPORTS


@pytest.mark.notebook
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_without_noise(name, tmp_path, monkeypatch):
    from jupyter_client import AsyncKernelManager
    from jupyter_client.kernelspec import KernelSpecManager
    from nbclient import NotebookClient

    class ThisInterpreter(AsyncKernelManager):
        """Without folders of kernels it has ipykernel's own entry only, which is this interpreter."""

        def __init__(self, **kwargs):
            super().__init__(kernel_spec_manager=KernelSpecManager(kernel_dirs=[]), **kwargs)

    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(path_of(name), as_version=nbformat.NO_CONVERT)
    client = NotebookClient(
        notebook,
        kernel_manager_class=ThisInterpreter,
        kernel_name="python3",
        timeout=600,  # seconds a cell may take; a notebook takes one to two minutes on a core of its own
        resources={"metadata": {"path": str(tmp_path)}},
    )
    client.execute()
    assert noise(notebook) == []
