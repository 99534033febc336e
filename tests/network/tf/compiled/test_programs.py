"""When a traced step is compiled: once, and not after compiling has ended."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from fastnet import CompileOptions
from fastnet.network import TFNetwork
from fastnet.network.tf import xla_program
from fastnet.op.tensorop import LambdaOp
from tests.network.keras_models import tf
from tests.network.tf.compiled.steps import fallbacks, warned

pytestmark = pytest.mark.tf

COMPILED_ONCE = CompileOptions(max_programs=1)


def doubling(**options: Any) -> TFNetwork:
    double = tf.autograph.experimental.do_not_convert(lambda x: 2 * x)
    return TFNetwork(LambdaOp(double, "x", "y"), compile=CompileOptions(**options))


def run_under_tape(network: TFNetwork, size: int) -> None:
    """Run a step that a tape records, which is traced if need be, but not compiled."""
    with tf.GradientTape():
        network.run_step({"x": tf.ones(size)})


def test_two_threads_compile_a_program_once(monkeypatch: pytest.MonkeyPatch) -> None:
    network = doubling()
    compiled: list[Any] = []
    function_for_xla, is_recorded = xla_program.function_for_xla, xla_program.is_recorded
    late_has_begun, first_has_compiled = threading.Event(), threading.Event()

    def count(traced: Any) -> Any:
        compiled.append(traced)
        return function_for_xla(traced)

    def wait_if_late() -> bool:
        if threading.current_thread() is late:
            late_has_begun.set()
            first_has_compiled.wait()
        return is_recorded()

    results: list[Any] = []
    late = threading.Thread(target=lambda: results.append(network.run_step({"x": tf.ones(2)})))
    with network("infer", 1):
        run_under_tape(network, 2)
        monkeypatch.setattr(xla_program, "function_for_xla", count)
        monkeypatch.setattr(xla_program, "is_recorded", wait_if_late)
        late.start()
        late_has_begun.wait()
        results.append(network.run_step({"x": tf.ones(2)}))
        first_has_compiled.set()
        late.join()
    assert len(compiled) == 1
    assert [result["y"].numpy().tolist() for result in results] == [[2.0, 2.0]] * 2
    assert fallbacks(network) == [None, None]


def test_step_that_was_not_compiled_stays_a_graph_after_compiling_has_ended() -> None:
    network = doubling(max_programs=1)
    with network("infer", 1), warned():
        run_under_tape(network, 2)
        for size in (3, 2, 2):
            result = network.run_step({"x": tf.ones(size)})
            assert result["y"].numpy().tolist() == [2.0] * size
    assert [trace.compile_seconds for trace in network.traces] == [0.0, 0.0]
    assert str(fallbacks(network)[1]).startswith("there are more than 1 input signatures")


def test_tapes_that_cannot_be_detected_are_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xla_program, "can_detect_tapes", lambda: False)
    network = doubling()
    with network("infer", 1), warned() as texts:
        network.run_step({"x": tf.ones(2)})
    (reason,) = fallbacks(network)
    assert "whether a tape records a step" in str(reason)
    assert len(texts) == 1


def test_graphs_take_no_place_of_compiled_programs() -> None:
    """A value that is not a tensor is a constant of each graph, and there are twenty."""
    network = TFNetwork(LambdaOp(lambda x, n: x * n, ["x", "n"], "y"), compile=COMPILED_ONCE)
    x = tf.ones(2)
    with network("infer", 1), warned():
        for number in (2.0, *map(float, range(3, 24)), 2.0):
            assert network.run_step({"x": x, "n": number})["y"].numpy().tolist() == [number] * 2
    compiled = [trace for trace in network.traces if trace.compile_seconds]
    assert len(compiled) == 1
    assert len(network.traces) == 22


def test_reason_names_the_key_that_differs_beside_a_sparse_tensor() -> None:
    network = TFNetwork(
        LambdaOp(lambda a, x: tf.sparse.to_dense(a)[0, 0] * x, ["a", "x"], "y"), compile=True
    )
    sparse = tf.sparse.from_dense([[1.0, 0.0]])
    with network("infer", 1), warned():
        for size in (2, 3):
            network.run_step({"a": sparse, "x": tf.ones(size)})
    assert "'x'" in network.traces[1].reason
    assert "'a'" not in network.traces[1].reason


def test_program_that_xla_refuses_is_not_called_unverified() -> None:
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer([0, 1], [2.0, 3.0]), default_value=0.0
    )
    network = TFNetwork(LambdaOp(table.lookup, "x", "y"), compile=CompileOptions(verify=None))
    with network("infer", 1), warned():
        network.run_step({"x": tf.constant([0, 1])})
    (record,) = network.traces
    assert record.fallback is not None
    assert record.unverified is None
