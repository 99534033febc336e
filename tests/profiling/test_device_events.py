"""Times of a device from events; that a GPU records them is tested in test_cuda.py."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fastnet
from fastnet.network import TorchNetwork
from fastnet.profiling.device_events import device_events_for
from tests.network.programs import batches, built, line, regression
from tests.profiling.trace_format import validate

BETWEEN = 0.25  # milliseconds between two events


class Event:
    """An event of a device whose clock goes on with each."""

    ticks = itertools.count()

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self, stream: Any) -> None:
        self.at = next(self.ticks) * BETWEEN

    def elapsed_time(self, other: Event) -> float:
        return other.at - self.at


@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_ops_and_deferred_updates_have_their_time(
    device: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    waits: list[Any] = []
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "synchronize", waits.append)
    target: Any = SimpleNamespace(target_type="torch", device=SimpleNamespace(type=device))
    make = device_events_for(target)
    assert (make is None) == (device == "mps")
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
