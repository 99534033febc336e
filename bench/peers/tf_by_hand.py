"""Hand-written steps in TensorFlow.

The baseline is traced once, and called as a concrete function with the batch's own dict: no
signature is looked up, and nothing can trace again. Beside it, the step is called as a function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from bench.program import Program
from bench.workloads.chains import TFGrowingChain
from bench.workloads.tf_models import TFFirstStep, TFForeignBatch, TFOpenEpoch, TFSupervised, sgd
from bench.workloads.workload import Workload

Batch = dict[str, tf.Tensor]
Step = Callable[[Batch], Batch]


def make(
    workload: Workload, concrete: bool = True, any_size: bool = False, jit_compile: bool = False
) -> Program | None:
    """Return the hand-written step of `workload`.

    Args:
        workload: The workload.
        concrete: Whether to call a concrete function, instead of `tf.function`.
        any_size: Whether the batch axis of the concrete function is open.
        jit_compile: Whether XLA compiles the function.
    """

    def trace(step: Step, batch: Batch) -> Step:
        function = tf.function(step, jit_compile=jit_compile or None)
        if concrete:
            function = function.get_concrete_function(_signature(batch, any_size))
        return lambda batch: {**batch, **function(batch)}

    if isinstance(workload, TFSupervised):
        return _supervised(workload, trace)
    if any_size or jit_compile:
        return None
    if isinstance(workload, TFGrowingChain):
        return Program(trace(_increments(workload), workload.batch()), workload.batch())
    if isinstance(workload, TFFirstStep) and concrete:
        step, batch = workload.step, workload.step.batch()
        return Program(
            lambda by_hand: trace(by_hand, batch)(batch),
            fresh=lambda: _supervised_step(step, step.model()),
        )
    if isinstance(workload, TFOpenEpoch) and concrete:
        # A hand-written loop enters nothing: the difference is the error of the measurement.
        program, plain = (_supervised(workload.step, trace) for _ in range(2))
        return Program(program.step, program.argument, model=program.model, plain=plain)
    return None


def _signature(batch: Batch, any_size: bool) -> dict[str, Any]:
    return {
        key: tf.TensorSpec((None if any_size else value.shape[0], *value.shape[1:]), value.dtype)
        for key, value in batch.items()
    }


def _supervised(workload: TFSupervised, trace: Callable[[Step, Batch], Step]) -> Program:
    """Run a step of a model; convert torch tensors first."""
    model = workload.model()
    step = trace(_supervised_step(workload, model), TFSupervised.batch(workload))

    def convert_and_step(batch: dict[str, Any]) -> Any:
        return step({key: tf.convert_to_tensor(value.numpy()) for key, value in batch.items()})

    foreign = isinstance(workload, TFForeignBatch)
    return Program(convert_and_step if foreign else step, workload.batch(), model=model)


def _supervised_step(workload: TFSupervised, model: Any) -> Step:
    """Return the train step, with predictions and loss, or the infer step, with predictions."""
    if not workload.training:
        return lambda batch: {"pred": model(batch["x"], training=False)}
    variables = model.trainable_variables
    optimizer = sgd()
    # A graph must not create the optimizer's variables.
    if hasattr(optimizer, "build"):
        optimizer.build(variables)
    else:
        _ = optimizer.iterations, optimizer.learning_rate

    def step(batch: Batch) -> Batch:
        x = batch["x"]
        with tf.GradientTape() as tape:
            pred = model(x, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=batch["y"], logits=pred)
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return {"pred": pred, "loss": loss}

    return step


def _increments(workload: TFGrowingChain) -> Step:
    """Return a step that adds one as often as there are ops."""
    last = workload.keys[-1]

    def step(batch: Batch) -> Batch:
        value = batch["k0"]
        for _ in range(workload.size):
            value = value + 1
        return {last: value}

    return step
