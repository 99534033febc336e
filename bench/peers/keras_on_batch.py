"""Keras, a batch a call: `train_on_batch`, `test_on_batch` and `predict_on_batch`."""

from __future__ import annotations

from typing import Any

from bench.peers import installed, version_of
from bench.program import Program
from bench.workloads.tf_supervised import TFCompiled, TFSupervised
from bench.workloads.tf_traces import TFTraces, TraceCensus
from bench.workloads.workload import Workload

NAME = "Keras on_batch"


def available() -> bool:
    """Return whether Keras can run in TensorFlow here."""
    return installed("keras") and installed("tensorflow")


def version() -> str | None:
    """Return Keras's version."""
    return version_of("keras")


def make(workload: Workload) -> Program | None:
    """Return Keras's program. Its steps know no epochs."""
    match workload:
        case TFSupervised(training=True):
            return _train(workload)
        case TFSupervised():
            return _infer(workload)
        case TFTraces():
            return _traces(workload)
    return None


def _train(workload: TFSupervised) -> Program:
    from bench.peers._keras_compiled import compiled

    model = compiled(workload, workload.model())

    def step(batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "loss": model.train_on_batch(batch["x"], batch["y"])}

    return Program(step, workload.batch(), model=model, lacks=frozenset({"pred"}))


def _infer(workload: TFSupervised) -> Program:
    model = workload.model()
    if isinstance(workload, TFCompiled):
        from bench.peers._keras_compiled import compiled

        model = compiled(workload, model)

    def step(batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "pred": model.predict_on_batch(batch["x"])}

    return Program(step, workload.batch(), model=model)


def _traces(workload: TFTraces) -> Program:
    from bench.peers._keras_compiled import compiled

    census = TraceCensus()
    batches = workload.batches()

    def count(_: None) -> int:
        model = compiled(workload.step, workload.model(census))
        steps = {"train": model.train_on_batch, "eval": model.test_on_batch}

        def run_epoch(mode: str, epoch: int) -> None:
            for batch in batches:
                steps[mode](batch["x"], batch["y"])

        return workload.count(census, run_epoch)

    return Program(count)
