"""Profiles on a GPU, where there is one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import fastnet
from fastnet.op.tensorop import LambdaOp
from tests.network.programs import batches, built, mlp, supervised
from tests.profiling.trace_format import validate

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_each_op_has_its_time_on_the_device(tmp_path: Path) -> None:
    network = fastnet.Network(
        [
            LambdaOp(lambda x: x @ x, "large", "squared"),
            LambdaOp(lambda x: x + 1, "small", "more"),
        ]
    )
    batch = {"large": torch.ones(4096, 4096), "small": torch.ones(4)}
    profile = fastnet.profile(network, batch, mode="infer", steps=5)
    (section,) = profile.sections
    large, small = [row for row in section.rows if row.kind == "op"]
    assert large.device_mean is not None
    assert small.device_mean is not None
    assert large.device_mean > 10 * small.device_mean > 0
    # the host only queues it
    assert large.p50 < large.device_mean
    profile.to_trace(tmp_path / "trace.json")
    tracks = validate(json.loads((tmp_path / "trace.json").read_text()))
    assert len(tracks["device"]) == 10


def test_deferred_updates_have_their_time_on_the_device(tmp_path: Path) -> None:
    (batch,) = batches(1)
    profile = fastnet.profile(fastnet.Network(supervised(built(mlp))), batch, steps=2, skip=0)
    (deferred,) = [row for row in profile.rows if row.kind == "deferred"]
    assert deferred.device_mean is not None
    assert deferred.device_mean > 0
    assert "device mean" in str(profile)
    profile.to_trace(tmp_path / "trace.json")
    events = validate(json.loads((tmp_path / "trace.json").read_text()))["device"]
    assert [event["name"] for event in events][3::4] == ["deferred updates"] * 2


def test_copies_are_named_with_their_bytes() -> None:
    network = fastnet.Network(LambdaOp(lambda x, unused: x, ["x", "unused"], "y"))
    batch = {"x": torch.ones(4), "unused": torch.ones(64, 1024, 1024)}
    (section,) = fastnet.profile(network, batch, mode="infer", steps=3).sections
    slowest = max(section.parts, key=lambda row: row.p50)
    assert slowest.title in ("input unused", "wait for the device")
    sizes = {row.title: row.bytes for row in section.rows if row.bytes}
    assert sizes["input unused"] == 4 << 26


def test_torch_profiler_beside_it() -> None:
    network = fastnet.Network(supervised(built(mlp)))
    with (
        torch.profiler.profile() as profiler,
        fastnet.profile(network) as profile,
        network("train", 1),
    ):
        for batch in batches(3):
            network.run_step(batch)
    # once for the host and, in some versions, once more for the device
    counts = {each.count for each in profiler.key_averages() if each.key == "ModelOp(x) -> y"}
    assert counts == {3}
    (section,) = profile.sections
    assert section.steps == 3
    assert sum(row.total for row in section.parts) == pytest.approx(section.step.total)
