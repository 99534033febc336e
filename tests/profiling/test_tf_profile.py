"""Profiles of networks in TensorFlow: graphs, traces, eager ops, and names in its profiler."""

from __future__ import annotations

import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastnet
from fastnet.network import TFNetwork
from fastnet.op.tensorop import LambdaOp
from tests.network.keras_models import batches, keras, mlp, supervised, tf, weights
from tests.network.tf_programs import Doing
from tests.profiling.test_profile import names, only

pytestmark = pytest.mark.tf


def ones() -> dict[str, Any]:
    return {"x": tf.ones((4, 2))}


def chain() -> TFNetwork:
    return TFNetwork([LambdaOp(lambda x: x + 1, "x", "y"), LambdaOp(lambda y: y * 2, "y", "z")])


class TestGraphs:
    def test_graph_step_is_one_row(self) -> None:
        section = only(fastnet.profile(chain(), ones(), mode="infer", steps=5))
        parts = {row.kind: row.name for row in section.parts}
        assert parts == {"graph": "graph", "rest": "other"}
        assert [row.count for row in section.parts] == [5, 5]
        assert not section.eager
        assert sum(row.total for row in section.parts) == pytest.approx(section.step.total)

    def test_compiled_step_and_compiling_have_one_row_each(self) -> None:
        network = TFNetwork(LambdaOp(lambda x: x + 1, "x", "y"), compile=True)
        section = only(fastnet.profile(network, ones(), mode="infer", steps=5, skip=0))
        assert names(section, "graph") == ["compiled step"]
        assert names(section, "trace") == [
            "trace: first step in mode 'infer'",
            "compile: first step in mode 'infer'",
        ]

    def test_trace_in_every_epoch_has_row_with_reason(self) -> None:
        def slow(data: Any, state: Any) -> Any:
            time.sleep(5e-3)
            return data[0]

        network = TFNetwork([Doing(slow, inputs=["x", "n"], outputs="y")])
        with fastnet.profile(network) as profile:
            for epoch in (1, 2, 3):
                with network("infer", epoch):
                    for _ in range(4):
                        network.run_step({**ones(), "n": epoch})
        section = only(profile)
        assert section.steps == 12
        traces = [row for row in section.parts if row.kind == "trace"]
        assert [(row.name, row.count) for row in traces] == [
            (f"trace: {trace.reason}", 1) for trace in network.traces
        ]
        assert len(traces) == 3
        assert "'n'" in traces[1].name
        for row, trace in zip(traces, network.traces, strict=True):
            # what it took by its own clock lies in it, but for what making stamps takes
            assert row.total >= trace.seconds - 1e-5
            assert trace.seconds >= 5e-3
        (graph,) = [row for row in section.parts if row.kind == "graph"]
        assert graph.count == 12
        assert sum(row.total for row in section.parts) == pytest.approx(section.step.total)


class TestBlocks:
    def test_trace_in_measured_step_is_no_entry(self) -> None:
        """The skipped steps end with a session, so the next session's first step is measured."""
        network = chain()
        with fastnet.profile(network, skip=5) as profile:
            for mode in ("infer", "eval"):
                with network(mode, 1):
                    for _ in range(5):
                        network.run_step(ones())
        section = only(profile)
        assert (section.name, section.steps) == ("eval", 5)
        traces = [f"trace: {trace.reason}" for trace in network.traces]
        assert names(section, "trace") == traces[1:]
        entries = [row.name for row in profile.entries]
        assert [name for name in entries if name.startswith("trace: ")] == traces[:1]


class TestEager:
    def test_each_eager_op_has_row(self) -> None:
        network = chain()
        with fastnet.profile(network) as profile:
            for eager in (False, True):
                with network("infer", 1, eager=eager):
                    for _ in range(3):
                        result = network.run_step(ones())
        assert [section.name for section in profile.sections] == ["infer", "infer, eager"]
        section = profile.section("infer, eager")
        assert section.eager
        assert names(section, "op") == ["LambdaOp(x) -> y", "LambdaOp(y) -> z"]
        assert names(section, "input") == ["x"]
        assert {row.bytes for row in section.rows if row.kind == "input"} == {32}
        np.testing.assert_array_equal(result["z"], 2 * (np.asarray(ones()["x"]) + 1))

    def test_gradient_tape_has_row(self) -> None:
        model = fastnet.build(mlp, lambda: keras.optimizers.SGD(0.1), model_name="model")
        before = weights(model)
        network = TFNetwork(supervised(model))
        profile = fastnet.profile(network, batches(3), eager=True, skip=0, update=True)
        section = only(profile)
        assert names(section, "tape") == ["gradient tape"]
        assert len(names(section, "op")) == 3
        assert sum(row.total for row in section.parts) == pytest.approx(section.step.total)
        assert any((one != other).any() for one, other in zip(before, weights(model), strict=True))


def recorded(folder: Path) -> bytes:
    """Read what TensorFlow's profiler wrote: a protocol buffer, where names stand as they are."""
    (path,) = folder.rglob("*.xplane.pb")
    return path.read_bytes()


class TestProfilerOfTensorFlow:
    @pytest.mark.parametrize("profiled", [False, True])
    def test_eager_ops_have_ranges(self, tmp_path: Path, profiled: bool) -> None:
        network = chain()
        tf.profiler.experimental.start(str(tmp_path))
        try:
            block = fastnet.profile(network) if profiled else nullcontext()
            with block, network("infer", 1, eager=True):
                network.run_step(ones())
        finally:
            tf.profiler.experimental.stop()
        space = recorded(tmp_path)
        for name in (b"LambdaOp(x) -> y", b"LambdaOp(y) -> z"):
            assert name in space

    def test_ops_in_graphs_have_scopes(self, tmp_path: Path) -> None:
        network = chain()
        with network("infer", 1):
            network.run_step(ones())
            tf.profiler.experimental.start(str(tmp_path))
            network.run_step(ones())
            tf.profiler.experimental.stop()
        space = recorded(tmp_path)
        assert b"op0_LambdaOp" in space
        assert b"op1_LambdaOp" in space
