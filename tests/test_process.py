"""What a command changes of its process."""

import gc

from leash_trl.process import import_quickly


def test_a_module_is_imported_without_garbage_collection(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "quick_module.py").write_text("import gc\nis_collecting = gc.isenabled()\n")
    assert not import_quickly("quick_module").is_collecting
    assert gc.isenabled()
