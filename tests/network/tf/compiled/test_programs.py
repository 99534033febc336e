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
