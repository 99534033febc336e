"""Times of a device from events; that a GPU records them is tested in test_cuda.py."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fastnet
from fastnet.network import TorchNetwork
from fastnet.profiling.device_events import DeviceEvents
from tests.network.programs import batches, built, line, regression
from tests.profiling.trace_format import validate

BETWEEN = 0.25  # milliseconds between two events


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_ops_and_deferred_updates_have_their_time(
    device: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ticks, waits = itertools.count(), []

    def mark() -> Any:
        at = next(ticks) * BETWEEN
        return SimpleNamespace(at=at, elapsed_time=lambda other: other.at - at)

    make = (lambda: DeviceEvents(mark, lambda: waits.append(1))) if device == "cuda" else None
    monkeypatch.setattr("fastnet.profiling.session.device_events_for", lambda network: make)
    (batch,) = batches(1, (2,))
    profile = fastnet.profile(TorchNetwork(regression(built(line))), batch, steps=2, skip=0)
    (section,) = profile.sections
    times = {row.kind: row.device_mean for row in section.rows if row.device_mean is not None}
    assert times == pytest.approx({"op": BETWEEN / 1e3, "deferred": BETWEEN / 1e3} if make else {})
    assert len(waits) == bool(make)
    if make:
        assert "device mean" in str(profile)
        profile.to_trace(tmp_path / "trace.json")
        events = validate(json.loads((tmp_path / "trace.json").read_text()))["device"]
        assert [event["name"] for event in events][3::4] == ["deferred updates"] * 2
