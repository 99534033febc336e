"""Atomic writing, and temporary folders of processes that were killed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from fastnet.backend.files import write_atomically


def save(folder: Path) -> None:
    write_atomically(str(folder / "run.ckpt"), lambda path: Path(path).write_text("whole"))


def test_folders_of_killed_saves_are_removed_on_a_later_day(tmp_path: Path) -> None:
    long_ago = time.time() - 48 * 3600
    for name in (".saving-old", "saving-old", ".saving-new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.ckpt").write_text("half")
        if name.endswith("old"):
            os.utime(tmp_path / name, (long_ago, long_ago))
    save(tmp_path)
    assert sorted(os.listdir(tmp_path)) == [".saving-new", "run.ckpt", "saving-old"]


def test_saves_at_the_same_time(tmp_path: Path) -> None:
    """The last one that ends counts."""

    def write(path: str) -> None:
        save(tmp_path)
        assert (tmp_path / "run.ckpt").read_text() == "whole"
        Path(path).write_text("later")

    write_atomically(str(tmp_path / "run.ckpt"), write)
    assert os.listdir(tmp_path) == ["run.ckpt"]
    assert (tmp_path / "run.ckpt").read_text() == "later"


def test_a_link_and_the_mode_of_a_file_stay(tmp_path: Path) -> None:
    target, link = tmp_path / "disk" / "first", tmp_path / "run.ckpt"
    target.parent.mkdir()
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to(target)
    save(tmp_path)
    assert link.is_symlink()
    assert target.read_text() == "whole"
    assert target.stat().st_mode & 0o777 == 0o640
    assert os.listdir(target.parent) == ["first"]


@pytest.mark.parametrize("error", [OSError("the disk is full"), KeyboardInterrupt()], ids=repr)
def test_an_error_leaves_the_old_file(tmp_path: Path, error: BaseException) -> None:
    save(tmp_path)

    def write(path: str) -> None:
        Path(path).write_text("half")
        raise error

    with pytest.raises(type(error)):
        write_atomically(str(tmp_path / "run.ckpt"), write)
    assert os.listdir(tmp_path) == ["run.ckpt"]
    assert (tmp_path / "run.ckpt").read_text() == "whole"
