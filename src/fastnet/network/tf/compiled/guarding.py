"""A traced function as one for XLA, which changes nothing where a graph would raise."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from fastnet.network.tf.compiled.reading import Reading, Uncompilable

__all__ = ["for_xla"]


def for_xla(concrete: Any, reading: Reading) -> Any:
    """Make a function for XLA of a traced one.

    Args:
        concrete: The traced function: of flat tensors, to a list of tensors.
        reading: What it is made of.

    Returns:
        Another one that takes and returns the same. Where something must hold, it has one more
        result, whether it does, and leaves all variables as they were if it does not.

    Raises:
        Uncompilable: If it captures what cannot be handed on.
    """
    graph = concrete.graph
    captures = list(graph.captures)
    inputs = graph.inputs[: len(graph.inputs) - len(captures)]
    if [one.name for one in graph.inputs[len(inputs) :]] != [inner.name for _, inner in captures]:
        raise Uncompilable("the step reads what is only found when it is called")
    definition = _without_inputs(reading.definition, {one.op.name for one in graph.inputs})
    used = {name for node in definition.node for name in map(_tensor_of, node.input)}
    wanted = [one.name for one in concrete.outputs]
    looked_at = [name for watch in reading.watches for name in watch.names]

    def run(*tensors: tf.Tensor) -> list[tf.Tensor]:
        known = dict(zip([one.name for one in inputs], tensors, strict=True))
        outer = tf.compat.v1.get_default_graph()
        # what XLA is called with has the variables last
        for outside, inside in sorted(captures, key=lambda pair: pair[0].dtype == tf.resource):
            known[inside.name] = outer.capture(outside)
        before = [_read(outer.capture(handle), dtype) for handle, dtype in reading.written]
        asked = [name for name in dict.fromkeys([*wanted, *looked_at]) if name not in known]
        found = tf.graph_util.import_graph_def(
            definition,
            input_map={name: tensor for name, tensor in known.items() if name in used},
            return_elements=asked,
            name="",
        )
        known.update(zip(asked, found or (), strict=True))
        results = [known[name] for name in wanted]
        if not reading.watches:
            return results
        fine = tf.reduce_all(
            [
                tf.reduce_all(watch.check.holds(*[known[name] for name in watch.names]))
                for watch in reading.watches
            ]
        )
        for (outside, dtype), old in zip(reading.written, before, strict=True):
            handle = outer.capture(outside)
            now = _read(handle, dtype)
            tf.raw_ops.AssignVariableOp(resource=handle, value=tf.where(fine, now, old))
        return [*results, fine]

    specs = [tf.TensorSpec(one.shape, one.dtype) for one in inputs]
    made = tf.function(run, jit_compile=True, autograph=False)
    # whatever strategy or device is in force has no part in this
    with tf.init_scope():
        return made.get_concrete_function(*specs)


def _read(handle: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    return tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)


def _without_inputs(definition: Any, inputs: set[str]) -> Any:
    """Copy a graph without the nodes that its inputs were, and what places its nodes."""
    copy = tf.compat.v1.GraphDef()
    copy.CopyFrom(definition)
    kept = [node for node in copy.node if node.name not in inputs]
    for node in kept:
        node.device = ""
        node.attr.pop("_class", None)
        controls = [one for one in node.input if one.startswith("^") and one[1:] in inputs]
        for one in controls:
            node.input.remove(one)
    rest = tf.compat.v1.GraphDef(versions=copy.versions, library=copy.library)
    rest.node.extend(kept)
    return rest


def _tensor_of(name: str) -> str:
    return name if ":" in name or name.startswith("^") else f"{name}:0"
