"""The notebooks: what is stored in them is small and clean, and, marked `notebook`, they run from top to bottom."""

import ast
import base64
import re
import time
from pathlib import Path

import nbformat
import pytest


ROOT = Path(__file__).parent.parent.parent
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
MAX_FILE_BYTES = 250_000
MAX_FIGURE_BYTES = 100_000
MAX_CELL_LINES = 25
MAX_DEFINITION_LINES = 10
TIMEOUT = 600  # seconds a cell may take; a notebook takes one to two minutes on a core of its own


def path_of(name: str) -> Path:
    return ROOT / "notebooks" / f"{name}.ipynb"


def outputs(notebook):
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def noise(notebook) -> list[str]:
    """Errors, and what was written to stderr: warnings, and progress bars."""
    failed = [output.ename for output in outputs(notebook) if output.output_type == "error"]
    return failed + [output.text for output in outputs(notebook) if output.get("name") == "stderr"]


def imported(code: str) -> set[str]:
    nodes = list(ast.walk(ast.parse(code)))
    modules = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    modules += [node.module or "." for node in nodes if isinstance(node, ast.ImportFrom)]
    return {module.split(".")[0] for module in modules}


def definition_lengths(code: str) -> list[int]:
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    found = [node for node in ast.walk(ast.parse(code)) if isinstance(node, kinds)]
    return [node.end_lineno - min(n.lineno for n in (node, *node.decorator_list)) + 1 for node in found]


def test_the_notebooks_are_exactly_these():
    assert sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb")) == sorted(NAMES)


@pytest.fixture(params=NAMES)
def stored(request):
    return nbformat.read(path_of(request.param), as_version=nbformat.NO_CONVERT)


def test_a_stored_notebook_is_valid_and_names_no_kernel_but_python(stored):
    nbformat.validate(stored)
    assert stored.metadata.kernelspec.name == "python3"
    assert set(stored.metadata) == {"kernelspec", "language_info"}
    assert not any(cell.metadata for cell in stored.cells)


def test_a_stored_notebook_was_executed_from_top_to_bottom_without_noise(stored):
    code = [cell for cell in stored.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert any("image/png" in output.get("data", {}) for output in outputs(stored))
    assert noise(stored) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_stored_notebook_is_small_and_knows_no_machine(name):
    text = path_of(name).read_text(encoding="utf-8")
    assert len(text.encode()) < MAX_FILE_BYTES
    assert ABSOLUTE_PATH.search(text) is None


def test_stored_figures_are_small(stored):
    figures = [output.data["image/png"] for output in outputs(stored) if "image/png" in output.get("data", {})]
    assert all(len(base64.b64decode(figure)) < MAX_FIGURE_BYTES for figure in figures)


def test_cells_import_from_the_package_and_define_nothing_long(stored):
    for cell in stored.cells:
        if cell.cell_type == "code":
            assert len(cell.source.splitlines()) <= MAX_CELL_LINES
            assert imported(cell.source) <= ALLOWED_IMPORTS
            assert all(length <= MAX_DEFINITION_LINES for length in definition_lengths(cell.source))


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
        timeout=TIMEOUT,
        resources={"metadata": {"path": str(tmp_path)}},
    )
    start = time.perf_counter()
    client.execute()
    print(f"\n{name}: {time.perf_counter() - start:.0f} s")
    assert noise(notebook) == []
