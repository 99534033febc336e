"""The lines on the standard error about compiling."""

from __future__ import annotations

import io
import threading
from typing import Any
from unittest.mock import Mock

import pytest

from fastnet.network.trace_records import Records, describe_step, report_if_slow


def test_slow_work_is_reported_on_the_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    timer, stream = Mock(), io.StringIO()
    monkeypatch.setattr(threading, "Timer", timer)
    monkeypatch.setattr("sys.stderr", stream)
    with report_if_slow("compiling a step"):
        _, function, args, settings = timer.call_args.args
        function(*args, **settings)
    assert stream.getvalue() == "fastnet: compiling a step ...\n"
    timer.return_value.cancel.assert_called_once()
    monkeypatch.setattr("sys.stderr", None)
    with report_if_slow("compiling a step"):
        timer.assert_called_once()


def test_line_says_how_long_it_took_the_last_time(monkeypatch: pytest.MonkeyPatch) -> None:
    records = Records("eagerly")
    context = {"mode": "train", "epoch": 1}
    assert records.last_compilation() is None
    records.add(context, "first step", 0.5, 12.3)
    records.add(context, "first step", fallback="an op looks at values")
    timer = Mock()
    monkeypatch.setattr(threading, "Timer", timer)
    with report_if_slow("compiling a step", records.last_compilation()):
        (line,) = timer.call_args.args[2]
    assert line == "fastnet: compiling a step (12 s the last time) ..."


def test_step_is_described_by_its_models_and_mode() -> None:
    models: list[Any] = [Mock(model_name="generator"), Mock(model_name="critic")]
    assert describe_step(models, "train") == "a step of 'generator', 'critic' in mode 'train'"
    assert describe_step([], "infer") == "a step in mode 'infer'"


@pytest.mark.parametrize(("uncompiled", "has_advice"), [("eagerly", True), ("as a graph", False)])
def test_eager_steps_are_advised_where_they_were_faster(uncompiled: str, has_advice: bool) -> None:
    times = Mock()
    times.describe_if_slower.return_value = "a compiled step takes longer"
    with pytest.warns(UserWarning, match="In mode 'eval' a compiled step") as caught:
        Records(uncompiled).warn_if_slower("eval", times)
    times.describe_if_slower.assert_called_once_with(uncompiled)
    (warning,) = caught
    assert ("eager=True" in str(warning.message)) is has_advice


def test_a_summary_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    records = Records("eagerly")
    context = {"mode": "train", "epoch": 1}
    records.add(context, "first step", 0.5, 1.0)
    records.summarize()
    assert capsys.readouterr().err == ""
    records.add(context, "a batch has another size", 1.0, 20.0)
    for _ in range(2):
        records.summarize()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("fastnet: compiled programs: 2, fallbacks: 0, 22 s")
