"""numpy's own functions for what `bench.workloads.dispatch` calls."""

from __future__ import annotations

import numpy as np

from bench.workloads.dispatch import Step

CALLS: dict[str, Step] = {
    "argmax": lambda values: np.argmax(values[0], axis=1),
    "cast": lambda values: values[0].astype(np.float64),
    "clip_by_value": lambda values: np.clip(values[0], 0.0, 1.0),
    "concat": lambda values: np.concatenate(values[:2], axis=1),
    "exp": lambda values: np.exp(values[0]),
    "expand_dims": lambda values: np.expand_dims(values[0], axis=1),
    "matmul": lambda values: np.matmul(values[0], values[1]),
    "maximum": lambda values: np.maximum(values[0], values[1]),
    "permute": lambda values: np.transpose(values[0], [1, 0]),
    "reduce_max": lambda values: np.max(values[0], axis=1),
    "reduce_mean": lambda values: np.mean(values[0]),
    "reduce_sum": lambda values: np.sum(values[0], axis=1),
    "reshape": lambda values: np.reshape(values[0], [2, 8]),
    "squeeze": lambda values: np.squeeze(values[3], axis=1),
    "where": lambda values: np.where(values[2], values[0], values[1]),
    "zeros_like": lambda values: np.zeros_like(values[0]),
}
