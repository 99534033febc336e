"""How ops take gradients in TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from fastnet.backend.tf.gradients import get_gradient, paused
from fastnet.backend.tf.processes import is_of_several_workers

__all__ = ["take"]


def take(
    target: tf.Tensor,
    sources: Sequence[Any] | Any,
    higher_order: bool = False,
    tape: tf.GradientTape | None = None,
    retain_graph: bool = True,
) -> Any:
    """Differentiate for an op: by a tensor, or by the weights of a model.

    Args:
        target: What to differentiate; of any shape, whose elements count alike.
        sources: What to differentiate by: a tensor, or a list of weights.
        higher_order: Whether the gradients can be differentiated in turn.
        tape: What recorded the target.
        retain_graph: Not used; other frameworks need it.

    Returns:
        A gradient of the shape of its source, or a list of them, with None for a source that has
        no part in the target. Of several workers the gradients by weights are averaged, so that an
        op which clips them by their norm finds that of the whole batch.

    Raises:
        ValueError: If there is no tape.
    """
    gradients = get_gradient(target, sources, higher_order, tape)
    if not isinstance(sources, list) or not is_of_several_workers(tf.distribute.get_strategy()):
        return gradients
    found = [one for one in gradients if one is not None]
    context = tf.distribute.get_replica_context()
    if not found or context is None:
        return gradients
    with paused(tape):
        averages = iter(context.all_reduce(tf.distribute.ReduceOp.MEAN, found))
    return [None if one is None else next(averages) for one in gradients]
