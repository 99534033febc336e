"""Keras, one batch per call: `train_on_batch`, `test_on_batch` and `predict_on_batch`."""

from __future__ import annotations

from typing import Any

from bench.peers.keras_fit import compiled
from bench.program import Program
from bench.workloads.tf_models import TFForeignBatch, TFSupervised
from bench.workloads.workload import Workload


def make(workload: Workload) -> Program | None:
    """Return Keras's program. Its steps know no epochs."""
    match workload:
        case TFForeignBatch():
            return None
        case TFSupervised():
            return _supervised(workload)
    return None


def _supervised(workload: TFSupervised) -> Program:
    model = compiled(workload.model(), workload.jit_compile)

    def train(batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "loss": model.train_on_batch(batch["x"], batch["y"])}

    def infer(batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "pred": model.predict_on_batch(batch["x"])}

    if workload.training:
        return Program(train, workload.batch(), model=model, lacks=frozenset({"pred"}))
    return Program(infer, workload.batch())
