"""Sums of a profile: the same, to the bit, as those of its stamps taken one by one."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import numpy as np
import pytest
import torch

import fastnet
from fastnet.network import TorchNetwork
from fastnet.op.tensorop import LambdaOp
from fastnet.profiling import Section
from fastnet.profiling.recording import Recorder
from fastnet.profiling.sums import BEGIN, Timeline
from fastnet.schedule import EpochScheduler
from fastnet.slicer import AxisSlicer

# happen once in a step, however often they are interrupted
ONCE = {"dispatch", "setting", "autocast", "tape", "conversion", "rest", "measuring"}


def fails_on_zero(x: torch.Tensor) -> torch.Tensor:
    if not x.all():
        raise ValueError("zero")
    return x


def run(network: TorchNetwork, recorder: Recorder, seed: int) -> None:
    """Run steps of several layouts, of several sizes, some of which fail."""
    rng = np.random.default_rng(seed)
    network._measure_with(recorder)
    for mode, epoch in (("train", 1), ("train", 2), ("eval", 1), ("train", 1)):
        with network(mode=mode, epoch=epoch):
            for _ in range(12):
                x = torch.ones(int(rng.integers(1, 6)), 2)
                if rng.random() < 0.3:
                    x[-1] = 0.0
                    with pytest.raises(ValueError, match="zero"):
                        network.run_step({"x": x})
                else:
                    network.run_step({"x": x})
    network._measure_with(None)


def check(section: Section, timeline: Timeline, cost: Any) -> None:
    """Sum the stamps up one by one, and compare."""
    parts = timeline.parts
    steps: list[dict[int, float]] = []
    minibatches: list[dict[int, float]] = []
    counts: Counter[int] = Counter()
    before = 0.0
    for at, row, minibatch in timeline.stamps.tolist():
        if row == BEGIN:
            steps.append(defaultdict(float))
            minibatches.append(defaultdict(float))
        else:
            part = parts[row]
            took = at - before - (cost.kernel if part.in_kernel else cost.python)
            if part.kind not in ONCE or row not in steps[-1]:
                counts[row] += 1
            steps[-1][row] += took
            if minibatch and part.kind != "measuring":
                minibatches[-1][minibatch] += took
        before = at
    assert section.steps == len(steps)
    rows = {(row.kind, row.name, row.index): row for row in section.rows}
    for row, part in enumerate(parts):
        key = part.kind, part.name, part.index
        assert (key in rows) == bool(counts[row])
        if key in rows:
            times = np.array([step.get(row, 0.0) for step in steps])
            assert rows[key].count == counts[row]
            assert (rows[key].total, rows[key].p50) == (times.sum(), np.percentile(times, 50))
    most = max((place for step in minibatches for place in step), default=0)
    for place in range(most):
        times = np.array([step.get(place + 1, 0.0) for step in minibatches])
        row = rows["minibatch", f"minibatch {place}", place]
        assert (row.count, row.total) == (np.count_nonzero(times), times.sum())
    assert ("minibatch", f"minibatch {most}", most) not in rows


@pytest.mark.parametrize("most_stamps", [1, 100, 1 << 14])
@pytest.mark.parametrize("sliced", [False, True])
@pytest.mark.parametrize("skip", [0, 7])
def test_sums_are_those_of_the_stamps(
    monkeypatch: pytest.MonkeyPatch, most_stamps: int, sliced: bool, skip: int
) -> None:
    monkeypatch.setattr("fastnet.profiling.recording._MAX_STAMPS", most_stamps)
    grown = LambdaOp(lambda y: y + 1, "y", "y", mode="train")
    network = fastnet.TorchNetwork(
        [LambdaOp(fails_on_zero, "x", "y"), EpochScheduler({1: None, 2: grown})],
        slicers=AxisSlicer(axis=0, slice="x", unslice=["x", "y"]) if sliced else None,
    )
    recorder = Recorder(skip)
    run(network, recorder, seed=skip)
    assert len(recorder.sections) == 3
    for number, recorded in enumerate(recorder.sections.values()):
        section = recorded.section(str(number))
        assert section is not None
        check(section, recorded.timeline(str(number)), recorder.cost)
