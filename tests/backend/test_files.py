"""Atomic writing, and temporary folders of processes that were killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastnet.backend.files import write_atomically

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="folders are not locked there")

WRITER = """
    import sys, time
    from fastnet.backend.files import write_atomically

    def write(path):
        with open(path, "w") as file:
            file.write("half")
        print(path, flush=True)
        time.sleep(600)

    write_atomically(sys.argv[1] + "/run.ckpt", write)
"""


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that is in the middle of writing a file."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(WRITER), str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


def save(folder: Path) -> None:
    write_atomically(str(folder / "run.ckpt"), lambda path: Path(path).write_text("whole"))


def test_what_is_still_written_stays(tmp_path: Path, writer: subprocess.Popen[str]) -> None:
    (left,) = os.listdir(tmp_path)
    save(tmp_path)
    assert sorted(os.listdir(tmp_path)) == [left, "run.ckpt"]
    assert (tmp_path / left / "run.ckpt").read_text() == "half"


def test_what_a_killed_process_left_is_removed(
    tmp_path: Path, writer: subprocess.Popen[str]
) -> None:
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    assert len(os.listdir(tmp_path)) == 1
    save(tmp_path)
    assert os.listdir(tmp_path) == ["run.ckpt"]
    assert (tmp_path / "run.ckpt").read_text() == "whole"


@pytest.mark.parametrize("name", [".saving-abcd1234", ".saving-abcd1234-elsewhere", "saving"])
def test_folders_that_may_be_in_use_stay(tmp_path: Path, name: str) -> None:
    """One is not locked yet, one is of another machine, and one of another program."""
    (tmp_path / name).mkdir()
    save(tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted([name, "run.ckpt"])


def test_saves_at_the_same_time(tmp_path: Path) -> None:
    """The last one that ends counts."""

    def write(path: str) -> None:
        save(tmp_path)
        assert (tmp_path / "run.ckpt").read_text() == "whole"
        Path(path).write_text("later")

    write_atomically(str(tmp_path / "run.ckpt"), write)
    assert os.listdir(tmp_path) == ["run.ckpt"]
    assert (tmp_path / "run.ckpt").read_text() == "later"


def test_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    def fail(*given: object) -> None:
        raise OSError(38, "not here")

    monkeypatch.setattr(fcntl, "flock", fail)
    save(tmp_path)
    assert os.listdir(tmp_path) == ["run.ckpt"]


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
