"""The programs of an op's calls in TensorFlow, one by one or in a concrete function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from bench.peers._tf_by_hand import concrete_function
from bench.peers._tf_calls import calls_of
from bench.program import Program
from bench.workloads.tf_op_cost import TFOpCost
from bench.workloads.workload import Workload


def eager(workload: Workload) -> Program | None:
    """Make an op's calls, and nothing else: what they return is not even put into a dict."""
    if not isinstance(workload, TFOpCost):
        return None
    case = workload.case
    model = workload.model()
    calls = calls_of(case.name, model, workload)
    batch = workload.batch()

    def once(batch: dict[str, Any]) -> Any:
        workload.seed()
        return calls(batch)

    def result(values: Any) -> dict[str, Any]:
        return {**batch, **_by_key(workload, values)}

    beside = case.beside and Program(calls_of(case.beside.name, model, workload), batch)
    trained = model if case.updates else None
    return Program(calls, batch, once=once, result=result, model=trained, plain=beside)


def concrete(workload: TFOpCost) -> Program:
    """Call a concrete function of the op's calls with the batch's own dict."""
    model = workload.model()
    calls = calls_of(workload.case.name, model, workload)
    batch = workload.batch()

    def step(batch: dict[str, Any]) -> dict[str, Any]:
        return _by_key(workload, calls(batch))

    function: Callable[[Any], Any] = concrete_function(step, batch, None)
    trained = model if workload.case.updates else None
    return Program(function, batch, result=lambda values: {**batch, **values}, model=trained)


def _by_key(workload: TFOpCost, values: Any) -> dict[str, Any]:
    values = (values,) if tf.is_tensor(values) else values
    return dict(zip(workload.case.outputs, values, strict=True))
