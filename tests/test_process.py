"""What a command changes of its process."""

import gc
import sys

import pytest

from leash_trl.process import import_quickly


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes a module and returns its name."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(code):
        (tmp_path / "quick_module.py").write_text(code)
        monkeypatch.delitem(sys.modules, "quick_module", raising=False)
        return "quick_module"

    yield write
    sys.modules.pop("quick_module", None)
    gc.unfreeze()


def test_a_module_is_imported_without_garbage_collection_and_only_once(module):
    name = module("import gc\nis_collecting = gc.isenabled()\n")
    imported = import_quickly(name)
    assert not imported.is_collecting
    assert gc.isenabled()
    num_frozen = gc.get_freeze_count()
    assert num_frozen > 0
    assert import_quickly(name) is imported
    assert gc.get_freeze_count() <= num_frozen  # what the process makes later is collected as ever


def test_garbage_is_collected_again_after_an_import_that_failed(module):
    with pytest.raises(ZeroDivisionError):
        import_quickly(module("1 / 0"))
    assert gc.isenabled()
