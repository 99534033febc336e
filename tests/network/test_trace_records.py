"""The line on the terminal while a step is compiled."""

from __future__ import annotations

import io
import threading
from unittest.mock import Mock

import pytest

from fastnet.network.trace_records import report_if_slow


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_slow_work_is_reported_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    timer, stream = Mock(), Terminal()
    monkeypatch.setattr(threading, "Timer", timer)
    monkeypatch.setattr("sys.stderr", stream)
    with report_if_slow("compiling a step"):
        _, function, args, settings = timer.call_args.args
        function(*args, **settings)
    assert stream.getvalue() == "fastnet: compiling a step ...\n"
    timer.return_value.cancel.assert_called_once()
    for other in (io.StringIO(), None):
        monkeypatch.setattr("sys.stderr", other)
        with report_if_slow("compiling a step"):
            timer.assert_called_once()
