"""Files that are written whole: through links too, and nothing is left of one that cannot be."""

import os

import pytest

from leash_trl.files import write_atomically


def test_a_file_is_made_with_its_folders_and_written_over_and_a_link_stays(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "new" / "file.txt")
    for path in (tmp_path / "link", tmp_path / "new" / "file.txt"):
        for content in ("first", b"second"):
            write_atomically(path, content)
        assert (tmp_path / "new" / "file.txt").read_text() == "second"
    assert (tmp_path / "link").is_symlink()
    assert len([*tmp_path.rglob("*")]) == 3


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(IsADirectoryError):
        write_atomically(tmp_path, "text")
    assert not [*tmp_path.iterdir()]


def test_nothing_is_left_of_a_file_that_cannot_be_written(tmp_path, monkeypatch):
    def disk_full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", disk_full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(tmp_path / "file.txt", "text")
    assert not [*tmp_path.iterdir()]
