"""What a traced graph is made of: why XLA cannot run it to the same end, or what must hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from fastnet.backend.tf._internals import variable_spec
from fastnet.network.tf.compiled.checks import Check, check_for
from fastnet.network.tf.compiled.vocabulary import (
    CALLS,
    NUMBERED,
    PYTHON,
    RANDOM,
    SAME,
    SEEDED,
    WATCHED,
)

__all__ = ["Reading", "Uncompilable", "read"]

# what tells the shape of a value, whatever the value is
_OF_SHAPE = frozenset({"Const", "Rank", "Shape", "ShapeN", "Size", "VariableShape"})


class Uncompilable(Exception):
    """A step cannot be compiled, and its text says why."""


class Watch(NamedTuple):
    """A check, with the tensors of the graph that it looks at.

    Attributes:
        check: The check.
        names: The names of the tensors.
    """

    check: Check
    names: tuple[str, ...]


class Reading(NamedTuple):
    """What a graph is made of.

    Attributes:
        definition: The graph.
        watches: What must hold for XLA to run it to the same end.
        written: The captured handles of the variables that it may write to, with their types.
    """

    definition: Any
    watches: list[Watch]
    written: list[tuple[Any, tf.DType]]


def read(concrete: Any, describe: Callable[[str], str | None], seeded: bool) -> Reading:
    """Read a graph.

    Args:
        concrete: The traced function: of flat tensors, to a list of tensors.
        describe: Given the name of a node, says which op of the network it is of; or None.
        seeded: Whether random numbers by a seed may be other ones than the graph's.

    Returns:
        What it is made of.

    Raises:
        Uncompilable: If XLA would not run it to the same end.
    """
    graph = concrete.graph
    definition = graph.as_graph_def()
    library = {one.signature.name: one.node_def for one in definition.library.function}
    operations = {operation.name: operation for operation in graph.get_operations()}
    variables = _variables(concrete)
    watches: list[Watch] = []
    top = _Body(definition.node)
    waiting: list[tuple[_Body, str | None]] = [(top, None)]
    seen: set[str] = set()
    while waiting:
        body, owner = waiting.pop()
        for node in body.nodes.values():
            who = owner or describe(node.name) or "the step"
            _require_same(node, body, who, seeded)
            for name in _functions_of(node):
                if name in library and name not in seen:
                    seen.add(name)
                    waiting.append((_Body(library[name]), who))
            if node.op not in WATCHED:
                continue
            if body is not top:
                if _is_harmless(node):
                    continue
                raise Uncompilable(
                    f"{who} uses '{node.op}' in a condition, a loop or a function of its own, "
                    "where what it refuses is not seen when it is compiled"
                )
            operation = operations[node.name]
            check = check_for(operation, _rows(operation, variables))
            if check is not None:
                names = tuple(operation.inputs[place].name for place in check.inputs)
                watches.append(Watch(check, names))
    written = [
        (outside, variables[inside.name].dtype)
        for outside, inside in graph.captures
        if inside.name in variables
        and any(
            user.type not in ("ReadVariableOp", "VariableShape", "ResourceGather")
            for user in inside.consumers()
        )
    ]
    return Reading(definition, watches, written)


class _Body:
    """The nodes of a graph, or of a function."""

    def __init__(self, nodes: Iterable[Any]) -> None:
        self.nodes: dict[str, Any] = {node.name: node for node in nodes}

    def knows(self, name: str) -> bool:
        """Return whether a tensor is the same for all values of one shape."""
        waiting, seen = [name], set()
        while waiting:
            node = self.nodes.get(_node_of(waiting.pop()))
            if node is None or (not node.input and node.op != "Const"):
                return False
            if node.op in CALLS or node.op == "ReadVariableOp" or node.op in SEEDED:
                return False
            if node.name not in seen and node.op not in _OF_SHAPE:
                seen.add(node.name)
                waiting.extend(one for one in node.input if not one.startswith("^"))
        return True


def _node_of(name: str) -> str:
    return name.partition(":")[0]


def _require_same(node: Any, body: _Body, who: str, seeded: bool) -> None:
    kind = node.op
    device = node.device.rpartition("device:")[2] if "device:" in node.device else "CPU:0"
    if device.upper() not in ("CPU:0", "CPU:*"):
        raise Uncompilable(f"{who} runs on {device}, and a compiled step on CPU:0 alone")
    if kind in NUMBERED:
        if not all(body.knows(node.input[place]) for place in NUMBERED[kind]):
            raise Uncompilable(
                f"{who} takes a piece ('{kind}') at a place that it works out of values; one "
                "outside is no error when it is compiled"
            )
    elif kind in RANDOM:
        raise Uncompilable(
            f"{who} draws random numbers by '{kind}', whose seed does not count when it is compiled"
        )
    elif kind in SEEDED:
        if not seeded:
            raise Uncompilable(
                f"{who} draws random numbers by '{kind}', which are other ones when it is "
                "compiled, and fallback_random asks for the same"
            )
    elif kind in PYTHON:
        raise Uncompilable(f"{who} calls Python in each step ('{kind}')")
    elif kind not in SAME and kind not in WATCHED and kind not in CALLS:
        raise Uncompilable(
            f"{who} uses '{kind}', which XLA cannot compile, or is not known to run as the graph "
            "does"
        )


def _functions_of(node: Any) -> Iterator[str]:
    for value in node.attr.values():
        if value.HasField("func"):
            yield value.func.name
        for one in value.list.func:
            yield one.name


def _is_harmless(node: Any) -> bool:
    """Return whether nothing need be checked of an operation, for its types alone."""
    kind = node.op
    if kind == "Cast":
        source, target = (tf.dtypes.as_dtype(node.attr[one].type) for one in ("SrcT", "DstT"))
        return not (source.is_floating and target.is_integer)
    floats = kind in ("Div", "FloorDiv", "FloorMod", "Mod", "Pow", "RealDiv")
    if floats or kind in ("TruncateDiv", "TruncateMod"):
        return bool(tf.dtypes.as_dtype(node.attr["T"].type).is_floating)
    if kind in ("ArgMax", "ArgMin", "Max", "Maximum", "Min", "Minimum"):
        return not tf.dtypes.as_dtype(node.attr["T"].type).is_floating
    return False


def _variables(concrete: Any) -> Mapping[str, tf.TensorSpec]:
    """Find what the variable of each handle holds that a graph has captured, by its name there."""
    known = {
        id(one.handle): tf.TensorSpec(one.shape, one.dtype) for one in concrete.graph.variables
    }
    found: dict[str, tf.TensorSpec] = {}
    for outside, inside in concrete.graph.captures:
        if outside.dtype != tf.resource:
            if outside.dtype == tf.variant:
                raise Uncompilable("the step holds a dataset, a list of tensors or the like")
            continue
        spec = known.get(id(outside)) or variable_spec(outside)
        if spec is None:
            raise Uncompilable(
                f"the step holds '{inside.op.name}', a table, an iterator or the like, which is no "
                "variable"
            )
        if not spec.shape.is_fully_defined():
            raise Uncompilable(f"the variable '{inside.op.name}' may have any shape")
        found[inside.name] = spec
    return found


def _rows(operation: tf.Operation, variables: Mapping[str, tf.TensorSpec]) -> int | None:
    if operation.type != "ResourceGather":
        return None
    variable = variables.get(operation.inputs[0].name)
    if variable is None or operation.get_attr("batch_dims"):
        raise Uncompilable("rows of a variable are looked up in batches")
    return int(variable.shape[0])
