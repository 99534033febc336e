"""What processes leave behind that are killed while they save, and what is not theirs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastnet.backend import saving_folder as module
from fastnet.backend.files import write_whole
from fastnet.backend.saving_folder import saving_folder

needs_linux = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="nothing tells a start of the machine from others"
)

WRITER = """
    import sys, time
    from fastnet.backend.files import write_whole

    def write(path):
        with open(path, "w") as file:
            file.write("half")
        print(path, flush=True)
        time.sleep(600)

    write_whole(sys.argv[1] + "/run.ckpt", write)
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
    write_whole(str(folder / "run.ckpt"), lambda path: Path(path).write_text("whole"))


@needs_linux
def test_what_is_still_written_stays(tmp_path: Path, writer: subprocess.Popen[str]) -> None:
    (left,) = os.listdir(tmp_path)
    save(tmp_path)
    assert sorted(os.listdir(tmp_path)) == [left, "run.ckpt"]
    assert (tmp_path / left / "run.ckpt").read_text() == "half"


@needs_linux
def test_what_a_killed_process_left_is_removed(
    tmp_path: Path, writer: subprocess.Popen[str]
) -> None:
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    assert len(os.listdir(tmp_path)) == 1
    save(tmp_path)
    assert os.listdir(tmp_path) == ["run.ckpt"]
    assert (tmp_path / "run.ckpt").read_text() == "whole"


@needs_linux
@pytest.mark.parametrize(
    "name",
    [
        # not locked yet
        ".saving-abcd1234",
        # another machine's, or one's before it was started anew
        f".saving-{'0' * 32}-abcd1234",
        "saving",
    ],
)
def test_what_may_be_anothers_stays(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    save(tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted([name, "run.ckpt"])


def test_one_inside_of_another(tmp_path: Path) -> None:
    with saving_folder(str(tmp_path)) as outer:
        with saving_folder(str(tmp_path)) as inner:
            assert inner != outer
            assert os.path.isdir(inner)
        assert os.path.isdir(outer)
        assert not os.path.exists(inner)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("lacks", ["Linux", "a start", "locks", "renaming"])
def test_where_nothing_can_be_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    def fail(*given: object) -> None:
        raise OSError(38, "not here")

    if lacks == "Linux":
        monkeypatch.setattr(sys, "platform", "win32")
        monkeypatch.setattr(module, "_machine_start", module._machine_start.__wrapped__)
    elif lacks == "a start":
        monkeypatch.setattr(module, "_machine_start", lambda: None)
    elif lacks == "locks":
        monkeypatch.setattr(module, "_lock", lambda folder: None)
    else:
        monkeypatch.setattr(os, "rename", fail)
    with saving_folder(str(tmp_path)) as folder:
        assert os.listdir(tmp_path) == [os.path.basename(folder)]
        (Path(folder) / "part").write_text("half")
    assert os.listdir(tmp_path) == []


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), saving_folder(str(tmp_path)):
        raise KeyboardInterrupt
    assert os.listdir(tmp_path) == []
