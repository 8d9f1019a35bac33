"""replace_file writes all or nothing."""

import os
import stat

import pytest
from shmap_passes import replace_file


def test_a_failure_leaves_the_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "f"
    path.write_text("before")

    def fails(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(OSError, match="No space left"):
        replace_file(path, "after")
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["f"]


def test_permissions_and_links_are_kept(tmp_path):
    path, link = tmp_path / "f", tmp_path / "link"
    path.write_text("before")
    path.chmod(0o640)
    link.symlink_to(path)
    replace_file(link, "after")
    assert link.is_symlink()
    assert path.read_text() == "after"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_new_file_has_the_permissions_of_any(tmp_path):
    (tmp_path / "usual").write_text("")
    replace_file(tmp_path / "new", b"after")
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_a_device_that_leads_to_a_file_keeps_what_others_have_open(tmp_path):
    with open(tmp_path / "f", "w+") as file:
        replace_file(f"/dev/fd/{file.fileno()}", "after")
        assert os.fstat(file.fileno()).st_nlink == 1
        assert (tmp_path / "f").stat().st_ino == os.fstat(file.fileno()).st_ino
    assert (tmp_path / "f").read_text() == "after"


def test_a_folder_that_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match="none"):
        replace_file(tmp_path / "none" / "f", "after")
