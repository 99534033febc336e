"""What a profile asks of a device, without one: events, their order, and a single wait.

A made-up device stands in for the GPU. That a GPU does it is tested in test_cuda.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import fastnet
from fastnet.network import TorchNetwork
from fastnet.op.tensorop import LambdaOp
from fastnet.profiling import Profile
from tests.network.programs import batches, built, line, regression
from tests.network.torch.test_devices import Machine, machine
from tests.profiling.trace_format import validate

__all__ = ["machine"]

# milliseconds that the made-up device takes for what is queued between two events
BETWEEN = 0.25
X = {"x": torch.ones(2), "big": torch.zeros(5000)}


class Event:
    """An event of a device whose clock moves by a quarter of a millisecond with each."""

    log: list[str]
    stream: Any

    def __init__(self, enable_timing: bool = False) -> None:
        assert enable_timing
        self.at: float | None = None

    def record(self, stream: Any) -> None:
        assert stream is Event.stream, "an event of another device than the network's"
        Event.log.append("event")
        self.at = BETWEEN * len([one for one in Event.log if one == "event"])

    def elapsed_time(self, other: Event) -> float:
        assert "synchronize" in Event.log, "a time is read before the device got there"
        assert self.at is not None
        assert other.at is not None
        return other.at - self.at


@pytest.fixture
def events(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    Event.log, Event.stream = [], machine
    streams = {id(machine.device): machine}
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: streams.get(id(device)))
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: Event.log.append("synchronize"))
    return Event.log


def note(what: str) -> Any:
    def run(*values: Any) -> Any:
        Event.log.append(what)
        return values[0]

    return run


def network() -> TorchNetwork:
    return TorchNetwork([LambdaOp(note("a"), "x", "y"), LambdaOp(note("b"), ["y", "big"], "z")])


def profiled(steps: int = 3) -> Profile:
    return fastnet.profile(network(), X, mode="infer", steps=steps, skip=0)


def test_the_times_of_the_device(events: list[str]) -> None:
    (section,) = profiled(4).sections
    ops = [row for row in section.rows if row.kind == "op"]
    assert len(ops) == 2
    for row in ops:
        for name in ("mean", "p99"):
            assert getattr(row, f"device_{name}") == pytest.approx(BETWEEN / 1e3)
    assert all(row.device_mean is None for row in section.rows if row.kind != "op")
    assert "device mean" in str(profiled())


def test_deferred_updates_have_their_time_too(events: list[str], tmp_path: Path) -> None:
    model = built(line)
    # the made-up device has no place for weights
    model.to = lambda device: model
    (batch,) = batches(1, (2,))
    profile = fastnet.profile(TorchNetwork(regression(model)), batch, steps=2, skip=0)
    (section,) = profile.sections
    times = {row.kind: row.device_mean for row in section.rows if row.device_mean is not None}
    assert times == pytest.approx({"op": BETWEEN / 1e3, "deferred": BETWEEN / 1e3})
    profile.to_trace(tmp_path / "trace.json")
    events = validate(json.loads((tmp_path / "trace.json").read_text()))["device"]
    names = [event["name"] for event in events]
    assert names[3::4] == ["deferred updates"] * 2


@pytest.mark.parametrize("machine", ["mps"], indirect=True)
def test_other_devices_have_no_events(machine: Machine) -> None:
    (section,) = profiled().sections
    assert all(row.device_mean is None for row in section.rows)
