"""Steps in TensorFlow, written by hand: what is traced for the baselines and for `tf.function`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from bench.workloads.growth import TFGrowingChain
from bench.workloads.tf_supervised import TFDivided, TFSupervised

Batch = dict[str, tf.Tensor]
Step = Callable[[Batch], Batch]


def train_step(workload: TFSupervised, model: Any) -> Step:
    """Return a step that trains on a batch and returns the predictions and the loss."""
    optimizer = workload.optimizer()
    variables = model.trainable_variables
    # A graph that must make variables is traced twice, or not at all.
    if hasattr(optimizer, "build"):
        optimizer.build(variables)
    else:
        _ = optimizer.iterations, optimizer.learning_rate
    divided = isinstance(workload, TFDivided)

    def step(batch: Batch) -> Batch:
        x = tf.sort(batch["x"]) if divided else batch["x"]
        with tf.GradientTape() as tape:
            pred = model(x, training=True)
            loss = _loss(batch["y"], pred)
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return {"pred": pred, "loss": loss}

    return step


def eval_step(model: Any) -> Step:
    """Return a step that returns the predictions and the loss, and trains nothing."""

    def step(batch: Batch) -> Batch:
        pred = model(batch["x"], training=False)
        return {"pred": pred, "loss": _loss(batch["y"], pred)}

    return step


def infer_step(model: Any) -> Step:
    """Return a step that returns the predictions."""

    def step(batch: Batch) -> Batch:
        return {"pred": model(batch["x"], training=False)}

    return step


def increments(workload: TFGrowingChain) -> Step:
    """Return a step that adds one as often as there are ops."""
    last = workload.keys[-1]

    def step(batch: Batch) -> Batch:
        value = batch["k0"]
        for _ in range(workload.length):
            value = value + 1
        return {last: value}

    return step


def supervised_step(workload: TFSupervised, model: Any) -> Step:
    """Return the step of `workload`."""
    return train_step(workload, model) if workload.training else infer_step(model)


def concrete_function(step: Step, batch: Batch, size: int | None) -> Step:
    """Trace a step for batches of one size, or of any.

    Args:
        step: The step.
        batch: A batch, for its keys, types and shapes.
        size: How many samples a batch has, or None for any number.

    Returns:
        The concrete function. It takes a dict and returns one.
    """
    signature = {
        key: tf.TensorSpec((size, *value.shape[1:]), value.dtype) for key, value in batch.items()
    }
    traced: Step = tf.function(step).get_concrete_function(signature)
    return traced


def over_batch(function: Step) -> Step:
    """Return a step that lays what `function` returns over its batch."""

    def step(batch: Batch) -> Batch:
        return {**batch, **function(batch)}

    return step


def _loss(truth: tf.Tensor, pred: tf.Tensor) -> tf.Tensor:
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=truth, logits=pred)
    return tf.reduce_mean(losses)
