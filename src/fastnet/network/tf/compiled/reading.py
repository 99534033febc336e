"""What a traced graph is made of: why XLA cannot run it to the same end, or what must hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from fastnet.backend.tf._internals import variable_spec
from fastnet.network.tf.compiled.checks import Check, check_for
from fastnet.network.tf.compiled.placing import Placing
from fastnet.network.tf.compiled.vocabulary import (
    CALLS,
    COLLECTIVE,
    NUMBERED,
    PYTHON,
    RANDOM,
    SAME,
    SEEDED,
    WATCHED,
)

__all__ = ["Reading", "Uncompilable", "Watch", "calls_functions", "read"]

# what tells the shape of a value, whatever the value is
_OF_SHAPE = frozenset({"Const", "Rank", "Shape", "ShapeN", "Size", "VariableShape"})


class Uncompilable(Exception):
    """A step cannot be compiled, and its text says why."""


class Watch(NamedTuple):
    """A check, with the tensors of the graph that it looks at.

    Attributes:
        node: The name of the node that is checked.
        check: The check.
        names: The names of the tensors.
    """

    node: str
    check: Check
    names: tuple[str, ...]


class Reading(NamedTuple):
    """What a graph is made of.

    Attributes:
        definition: The graph.
        watches: What must hold for XLA to run it to the same end.
        variables: What the variable of each handle holds that is captured, by its name there.
        unfit: Why XLA would not run a node to the same end, by its name.
        draws: Where random numbers are drawn from generators of the nodes' own, why XLA would not
            draw them; None where they are not.
        devices: The device of each node, where they are on several.
        meetings: The nodes in which devices wait for others, or whose functions have such; with the
            device of each.
    """

    definition: Any
    watches: list[Watch]
    variables: Mapping[str, tf.TensorSpec]
    unfit: Mapping[str, str]
    draws: str | None
    devices: Mapping[str, str]
    meetings: Mapping[str, list[str]]


def read(
    concrete: Any, describe: Callable[[str], str | None], seeded: bool, spread: bool = False
) -> Reading:
    """Read a graph.

    Args:
        concrete: The traced function: of flat tensors, to a list of tensors.
        describe: Given the name of a node, says which op of the network it is of; or None.
        seeded: Whether random numbers by a seed may be other ones than the graph's.
        spread: Whether it is for several devices.

    Returns:
        What it is made of.
    """
    graph = concrete.graph
    definition = graph.as_graph_def()
    library = {one.signature.name: one.node_def for one in definition.library.function}
    operations = {operation.name: operation for operation in graph.get_operations()}
    variables, unfit = _variables(concrete)
    watches: list[Watch] = []
    meetings: dict[str, list[str]] = {}
    top = _Body(definition.node)
    placing = Placing(graph)
    devices = {name: placing.devices_of(one) for name, one in operations.items()}
    homes = {name: found[0] for name, found in devices.items() if spread}
    for node in top.nodes.values():
        who = describe(node.name) or "the step"
        home = homes.get(node.name) or "CPU:0"
        insides = list(_inside(node, library))
        meeting = [
            placing.short(one.device) or home
            for one in (node, *(inner for inner, _ in insides))
            if one.op.startswith(COLLECTIVE)
        ]
        if meeting:
            meetings[node.name] = meeting
        try:
            for device in devices[node.name]:
                _require_on(home, device, who)
            _require_same(node, top, who, seeded)
            for inner, body in insides:
                _require_on(home, placing.short(inner.device), who)
                _require_same(inner, body, who, seeded)
                _require_harmless(inner, who)
            check = _check(operations[node.name], variables) if node.op in WATCHED else None
        except Uncompilable as error:
            unfit.setdefault(node.name, str(error))
            continue
        if check is not None:
            inputs = operations[node.name].inputs
            watches.append(Watch(node.name, check, tuple(inputs[one].name for one in check.inputs)))
    nodes = [*top.nodes.values(), *(one for body in library.values() for one in body)]
    # a generator of a node's own has the seeds of the graph and of the node
    drawing = [node.name for node in nodes if "seed2" in node.attr]
    reasons = [unfit[name] for name in drawing if name in unfit]
    draws = next(iter([*reasons, *unfit.values()]), None) if drawing else None
    return Reading(definition, watches, variables, unfit, draws, homes, meetings)


def _inside(node: Any, library: Mapping[str, Any]) -> Iterator[tuple[Any, _Body]]:
    """Go through the nodes of the functions that a node calls, and of those that these call."""
    waiting, seen = [node], set()
    while waiting:
        for name in _functions_of(waiting.pop()):
            if name in library and name not in seen:
                seen.add(name)
                body = _Body(library[name])
                waiting.extend(body.nodes.values())
                for inner in body.nodes.values():
                    yield inner, body


def _require_harmless(node: Any, who: str) -> None:
    if node.op in WATCHED and not _is_harmless(node):
        raise Uncompilable(
            f"{who} uses '{node.op}' in a condition, a loop or a function of its own, where what "
            "it refuses is not seen when it is compiled"
        )


def _check(operation: tf.Operation, variables: Mapping[str, tf.TensorSpec]) -> Check | None:
    return check_for(operation, _rows(operation, variables))


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


def _require_on(home: str, device: str, who: str) -> None:
    if not home.startswith("CPU:") or device not in ("", home):
        raise Uncompilable(f"{who} runs on {device}, and what is compiled on {home} alone")


def _require_same(node: Any, body: _Body, who: str, seeded: bool) -> None:
    kind = node.op
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


def calls_functions(node: Any) -> bool:
    """Return whether a node calls functions of the graph that it is of.

    Args:
        node: Its definition.
    """
    return next(_functions_of(node), None) is not None


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


def _variables(concrete: Any) -> tuple[dict[str, tf.TensorSpec], dict[str, str]]:
    """Find what the variable of each handle holds that a graph has captured.

    Returns:
        That, by the handle's name there, and why a node that takes something else is unfit.
    """
    known = {
        id(one.handle): tf.TensorSpec(one.shape, one.dtype) for one in concrete.graph.variables
    }
    found: dict[str, tf.TensorSpec] = {}
    unfit: dict[str, str] = {}
    for outside, inside in concrete.graph.captures:
        reason = None
        if outside.dtype == tf.variant:
            reason = "the step holds a dataset, a list of tensors or the like"
        elif outside.dtype == tf.resource:
            spec = known.get(id(outside)) or variable_spec(outside)
            if spec is None:
                reason = (
                    f"the step holds '{inside.op.name}', a table, an iterator or the like, which "
                    "is no variable"
                )
            elif not spec.shape.is_fully_defined():
                reason = f"the variable '{inside.op.name}' may have any shape"
            else:
                found[inside.name] = spec
        if reason is not None:
            unfit.update({user.name: reason for user in inside.consumers()})
    return found, unfit


def _rows(operation: tf.Operation, variables: Mapping[str, tf.TensorSpec]) -> int | None:
    if operation.type != "ResourceGather":
        return None
    variable = variables.get(operation.inputs[0].name)
    if variable is None or operation.get_attr("batch_dims"):
        raise Uncompilable("rows of a variable are looked up in batches")
    return int(variable.shape[0])
