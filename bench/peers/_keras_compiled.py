"""A Keras model as Keras itself trains it."""

from __future__ import annotations

from typing import Any

import keras

from bench.workloads.tf_supervised import TFCompiled, TFSupervised


def compiled(workload: TFSupervised, model: Any) -> Any:
    """Return `model`, ready for Keras's own steps. It returns no predictions from training."""
    model.compile(
        optimizer=workload.optimizer(),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=isinstance(workload, TFCompiled),
    )
    return model
