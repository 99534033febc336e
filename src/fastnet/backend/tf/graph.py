"""How concrete functions are called, and what is cleaned up after they were traced."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from fastnet.backend.tf._internals import (
    could_record,
    direct_call,
    registered_gradients,
    unregister_gradients,
)

# Takes the inputs of a traced function as a list, and returns its outputs.
Call = Callable[[list[tf.Tensor]], Iterable[tf.Tensor]]


def forget_gradients(concrete: Any) -> None:
    """Unregister the custom gradients of a traced function when it is deleted.

    TensorFlow never drops the gradients that `tf.custom_gradient` registers during tracing, and
    they refer to the graph. Every Keras optimizer registers one that sums over all devices.
    """
    names = registered_gradients(concrete.graph)
    if names:
        weakref.finalize(concrete, unregister_gradients, names).atexit = False


def is_recorded() -> bool:
    """Return whether a tape, or a function that is traced, may record the operations of a step."""
    return could_record() or not tf.executing_eagerly()


def caller(
    concrete: Any,
    explain: Callable[[BaseException, Any], None],
    recorded: Call | None = None,
) -> Call:
    """Return the function that calls a traced function with the least overhead.

    Args:
        concrete: The traced function.
        explain: Called with an error of an operation, and the graph.
        recorded: Runs the calls that a tape or a graph of the user may record; by default the
            function itself.
    """

    def call_publicly(tensors: list[tf.Tensor]) -> Iterable[tf.Tensor]:
        if recorded is not None and is_recorded():
            return recorded(tensors)
        try:
            return concrete(*tensors) or ()
        except tf.errors.OpError as error:
            explain(error, concrete.graph)
            raise

    direct = direct_call(concrete, concrete.outputs)
    if direct is None:
        return call_publicly
    call_recorded = recorded or call_publicly

    def call(tensors: list[tf.Tensor]) -> Iterable[tf.Tensor]:
        if is_recorded():
            return call_recorded(tensors)
        try:
            return direct(tensors) or ()
        except tf.errors.OpError as error:
            explain(error, concrete.graph)
            raise

    return call
