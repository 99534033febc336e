"""Small matrix products as loops, which XLA fuses with the operations around them.

XLA calls Eigen for each product, which takes as long as a loop over ten thousand multiplications.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import tensorflow as tf

from fastnet.network.tf.random_numbers import function_drawing

_MAX_MULTIPLICATIONS = 16_384
# Loops over the last axes of both matrices are slow.
_MAX_OVER_LAST_AXES = 2_048
# By what is transposed: the axes to add to the matrices, and the axis to sum over.
_AXES = {(False, False): (2, 0, 1), (True, False): (2, 1, 0), (False, True): (1, 0, 2)}


def run_with_loops(
    concrete: Any, results: Iterable[tf.Tensor], tensors: list[tf.Tensor]
) -> list[tf.Tensor]:
    """Add the operations of a traced function to the current graph, small products as loops.

    Random numbers are those of the traced function.
    """
    graph = tf.compat.v1.get_default_graph()
    definition = concrete.graph.as_graph_def()
    functions: dict[Any, Any] = {}

    def call_instead(node: Any, key: Any, make: Callable[[], Any]) -> None:
        if key not in functions:
            functions[key] = make()
            functions[key].add_to_graph(graph)
        node.op = functions[key].name
        node.attr.clear()

    for node in definition.node:
        if node.op == "Placeholder":
            # The mapped inputs take its place, but other nodes may wait for it.
            node.op = "NoOp"
            node.attr.clear()
        elif node.op == "MatMul":
            transposed = node.attr["transpose_a"].b, node.attr["transpose_b"].b
            operation = concrete.graph.get_operation_by_name(node.name)
            if transposed in _AXES and _is_small(operation, transposed):
                call_instead(node, transposed, partial(_loop, *_AXES[transposed]))
        elif (make := function_drawing(node)) is not None:
            key = node.op, node.attr["dtype"].type, node.attr["Tshape"].type
            call_instead(node, key, make)
    captured = map(graph.capture, concrete.captured_inputs)
    given = zip(concrete.inputs, (*tensors, *captured), strict=True)
    inputs = {one.name: value for one, value in given if one.consumers()}
    outputs = [result.name for result in results]
    return tf.graph_util.import_graph_def(definition, inputs, outputs, name="") or []


def _is_small(product: tf.Operation, transposed: tuple[bool, bool]) -> bool:
    one, other = product.inputs
    if one.dtype != tf.float32 or not (one.shape + other.shape).is_fully_defined():
        return False
    count: int = one.shape.num_elements() * other.shape[0 if transposed[1] else 1]
    return 0 < count <= (_MAX_OVER_LAST_AXES if transposed[1] else _MAX_MULTIPLICATIONS)


def _loop(first: int, second: int, axis: int) -> Any:
    def multiply(one: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(tf.expand_dims(one, first) * tf.expand_dims(other, second), axis)

    matrix = tf.TensorSpec((None, None))
    return tf.function(multiply, autograph=False).get_concrete_function(matrix, matrix)
