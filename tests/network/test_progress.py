"""The line on the terminal for slow work."""

from __future__ import annotations

import io
from typing import Any
from unittest.mock import Mock

import pytest

from fastnet.network import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def timer(monkeypatch: pytest.MonkeyPatch) -> Mock:
    made = Mock()
    monkeypatch.setattr(progress.threading, "Timer", made)
    return made


def test_a_line_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch, timer: Mock) -> None:
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    with progress.report_if_slow("compiling a step"):
        timer.return_value.start.assert_called_once()
        assert stream.getvalue() == ""
        _, function, args, settings = timer.call_args.args
        function(*args, **settings)
    assert stream.getvalue() == "fastnet: compiling a step ...\n"
    timer.return_value.cancel.assert_called_once()


@pytest.mark.parametrize("stream", [io.StringIO(), None])
def test_nothing_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch, timer: Mock, stream: Any
) -> None:
    monkeypatch.setattr("sys.stderr", stream)
    with progress.report_if_slow("compiling a step"):
        timer.assert_not_called()
