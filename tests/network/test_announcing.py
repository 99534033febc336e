"""The line on the terminal for what takes long."""

from __future__ import annotations

import io
import re
import time

import pytest

from fastnet.network import announcing
from fastnet.network.announcing import announced


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stream", "seconds"), [(Terminal(), 60.0), (io.StringIO(), 0.0)])
def test_nothing_is_said(
    monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, seconds: float
) -> None:
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(announcing, "_SECONDS", seconds)
    with announced("compiling a step"):
        time.sleep(0.05)
    assert stream.getvalue() == ""


def test_it_is_said_when_it_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(announcing, "_SECONDS", 0.0)
    with announced("compiling a step"):
        while not stream.getvalue():
            time.sleep(0.001)
    assert re.fullmatch(r"fastnet: compiling a step \.\.\. \d+\.\d s\n", stream.getvalue())


def test_without_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", None)
    with announced("compiling a step"):
        pass
