"""Hand-written steps in TensorFlow, from which the baselines and `tf.function` are traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from bench.workloads.chains import TFGrowingChain
from bench.workloads.tf_models import TFSupervised, sgd

Batch = dict[str, tf.Tensor]
Step = Callable[[Batch], Batch]


def built_optimizer(variables: list[Any]) -> Any:
    """Return the optimizer with its variables, which a graph must not create."""
    optimizer = sgd()
    if hasattr(optimizer, "build"):
        optimizer.build(variables)
    else:
        _ = optimizer.iterations, optimizer.learning_rate
    return optimizer


def train_step(model: Any, sorts: bool = False) -> Step:
    """Return a step that trains on a batch and returns the predictions and the loss."""
    variables = model.trainable_variables
    optimizer = built_optimizer(variables)

    def step(batch: Batch) -> Batch:
        x = tf.sort(batch["x"]) if sorts else batch["x"]
        with tf.GradientTape() as tape:
            pred = model(x, training=True)
            loss = _loss(batch["y"], pred)
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return {"pred": pred, "loss": loss}

    return step


def eval_step(model: Any) -> Step:
    """Return a step that returns the predictions and the loss."""

    def step(batch: Batch) -> Batch:
        pred = model(batch["x"], training=False)
        return {"pred": pred, "loss": _loss(batch["y"], pred)}

    return step


def supervised_step(workload: TFSupervised, model: Any) -> Step:
    """Return the train step or the infer step of `workload`."""
    if workload.training:
        return train_step(model, workload.sorts)
    return lambda batch: {"pred": model(batch["x"], training=False)}


def increments(workload: TFGrowingChain) -> Step:
    """Return a step that adds one as often as there are ops."""
    last = workload.keys[-1]

    def step(batch: Batch) -> Batch:
        value = batch["k0"]
        for _ in range(workload.size):
            value = value + 1
        return {last: value}

    return step


def concrete_function(step: Step, batch: Batch, any_size: bool = False) -> Step:
    """Trace a step, for batches of the size of `batch` or of any size."""
    signature = {
        key: tf.TensorSpec((None if any_size else value.shape[0], *value.shape[1:]), value.dtype)
        for key, value in batch.items()
    }
    traced: Step = tf.function(step).get_concrete_function(signature)
    return traced


def over_batch(function: Step) -> Step:
    """Return a step that adds what `function` returns to its batch."""
    return lambda batch: {**batch, **function(batch)}


def _loss(truth: tf.Tensor, pred: tf.Tensor) -> tf.Tensor:
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=truth, logits=pred)
    return tf.reduce_mean(losses)
