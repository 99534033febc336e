"""Rewrites traced steps for XLA: small products are loops, random numbers those of the graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import tensorflow as tf

from fastnet.network.tf.products import loop_for
from fastnet.network.tf.random_numbers import function_drawing
from fastnet.network.tf.step_tracer import TracedGraph


class XlaError(Exception):
    """XLA cannot compile a step."""


def function_for_xla(traced: TracedGraph) -> Any:
    """Return a traced step as a function that XLA compiles when it is first called.

    Raises:
        XlaError: If the function cannot be made.
    """
    concrete = traced.concrete
    inputs = concrete.inputs[: len(concrete.inputs) - len(concrete.captured_inputs)]
    specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in inputs]
    try:
        # The strategy or device of the caller has no part in this.
        with tf.init_scope():
            add_operations = partial(add_operations_for_xla, concrete, traced.results)
            function = tf.function(add_operations, jit_compile=True, autograph=False)
            return function.get_concrete_function(specs)
    except Exception as error:
        raise XlaError(f"{type(error).__name__}: {error}") from error


def add_operations_for_xla(
    concrete: Any, results: Iterable[tf.Tensor], tensors: list[tf.Tensor]
) -> list[tf.Tensor]:
    """Add the operations of a traced function to the current graph, rewritten for XLA.

    Args:
        concrete: The traced function.
        results: The tensors of its graph to return.
        tensors: The tensors of the current graph that take the places of its inputs.

    Returns:
        The results in the current graph.
    """
    graph = tf.compat.v1.get_default_graph()
    definition = concrete.graph.as_graph_def()
    functions: dict[Any, Any] = {}
    for node in definition.node:
        if node.op == "Placeholder":
            # `import_graph_def` maps the inputs to tensors, but other nodes may wait for the node.
            node.op = "NoOp"
            node.attr.clear()
            continue
        replacement = loop_for(concrete.graph, node) or function_drawing(node)
        if replacement is not None:
            key, make = replacement
            if key not in functions:
                functions[key] = make()
                functions[key].add_to_graph(graph)
            node.op = functions[key].name
            node.attr.clear()
    captured = map(graph.capture, concrete.captured_inputs)
    inputs = {
        tensor.name: value
        for tensor, value in zip(concrete.inputs, (*tensors, *captured), strict=True)
        if tensor.consumers()
    }
    outputs = [result.name for result in results]
    return tf.graph_util.import_graph_def(definition, inputs, outputs, name="") or []


def nodes_of(concrete: Any) -> Iterator[Any]:
    """Yield the nodes of a traced function, and of the functions that it calls."""
    definition = concrete.graph.as_graph_def()
    yield from definition.node
    for function in definition.library.function:
        yield from function.node_def
