"""Profiles of compiled steps in PyTorch: what tracing and compiling took has rows of its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fastnet
from fastnet import CompileOptions
from fastnet.network import TorchNetwork
from fastnet.op.tensorop import LambdaOp
from fastnet.profiling import Profile
from fastnet.profiling.rows import Section


def network(fn: Any = lambda x: x + 1, **options: Any) -> TorchNetwork:
    return TorchNetwork(
        [LambdaOp(fn, "x", "y")],
        compile=options.get("compile", CompileOptions("eager", verify=None)),
    )


def ones(count: int = 3) -> dict[str, torch.Tensor]:
    return {"x": torch.ones(count)}


def named(section: Section, kind: str) -> dict[str, int]:
    return {row.name: row.count for row in section.rows if row.kind == kind}


def beside(profile: Profile) -> dict[str, float]:
    return {row.name: row.total for row in profile.entries if row.name[:5] in ("trace", "compi")}


def test_each_trace_says_why_and_how_long() -> None:
    net = network()
    with fastnet.profile(net) as profile:
        for _ in fastnet.steps(net, [ones(), ones(), ones(), ones(5), ones(5)], "infer"):
            pass
    (section,) = profile.sections
    assert named(section, "trace") == {
        "trace: first step": 1,
        "compile: first step": 1,
        "trace: a batch has another size": 1,
        "compile: a batch has another size": 1,
    }
    took = {row.name: row.total for row in section.rows if row.kind == "trace"}
    for record in net.traces:
        # what a stamp takes is left out
        assert took[f"trace: {record.reason}"] == pytest.approx(record.seconds, abs=1e-4)
        assert took[f"compile: {record.reason}"] == pytest.approx(record.compile_seconds, abs=1e-4)
    assert sum(row.total for row in section.parts) == pytest.approx(section.step.total)
    # two eager steps, and the others as one row
    assert named(section, "graph") == {"compiled step": 3}
    assert named(section, "op") == {"LambdaOp(x) -> y": 2}
    assert beside(profile) == {}


def test_what_the_steps_that_are_skipped_compiled() -> None:
    net = network()
    profile = fastnet.profile(net, ones(), mode="infer", steps=3, skip=2)
    (section,) = profile.sections
    assert named(section, "trace") == {}
    assert named(section, "graph") == {"compiled step": 3}
    (record,) = net.traces
    assert beside(profile) == {
        "trace: first step": record.seconds,
        "compile: first step": record.compile_seconds,
    }
    assert "infer: compile: first step" in str(profile)
    # what there was before is nothing of this profile's
    assert beside(fastnet.profile(net, ones(), mode="infer", steps=3, skip=2)) == {}
    # of what is measured there are rows in the step
    (section,) = (profile := fastnet.profile(net, ones(4), mode="infer", skip=0, steps=3)).sections
    assert len(named(section, "trace")) == 2
    assert beside(profile) == {}


def test_profile_that_begins_in_an_epoch_runs_no_step_eagerly() -> None:
    net = network()
    with net("infer", 1):
        net.run_step(ones())
        net.run_step(ones())
        with fastnet.profile(net) as profile:
            net.run_step(ones())
            net.run_step(ones())
    (section,) = profile.sections
    assert named(section, "graph") == {"compiled step": 2}
    assert named(section, "op") == {}
