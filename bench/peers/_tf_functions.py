"""TensorFlow's own functions for what `bench.workloads.dispatch` calls."""

from __future__ import annotations

import tensorflow as tf

from bench.workloads.dispatch import Step

CALLS: dict[str, Step] = {
    "argmax": lambda values: tf.argmax(values[0], axis=1),
    "cast": lambda values: tf.cast(values[0], tf.float64),
    "clip_by_value": lambda values: tf.clip_by_value(values[0], 0.0, 1.0),
    "concat": lambda values: tf.concat(values[:2], axis=1),
    "exp": lambda values: tf.exp(values[0]),
    "expand_dims": lambda values: tf.expand_dims(values[0], axis=1),
    "get_gradient": lambda values: values[2].gradient(values[0], values[1]),
    "matmul": lambda values: tf.matmul(values[0], values[1]),
    "maximum": lambda values: tf.maximum(values[0], values[1]),
    "permute": lambda values: tf.transpose(values[0], [1, 0]),
    "reduce_max": lambda values: tf.reduce_max(values[0], axis=1),
    "reduce_mean": lambda values: tf.reduce_mean(values[0]),
    "reduce_sum": lambda values: tf.reduce_sum(values[0], axis=1),
    "reshape": lambda values: tf.reshape(values[0], [2, 8]),
    "squeeze": lambda values: tf.squeeze(values[3], axis=1),
    "where": lambda values: tf.where(values[2], values[0], values[1]),
    "zeros_like": lambda values: tf.zeros_like(values[0]),
}
