"""Functions for XLA, of the nodes of a traced one, which change nothing where it would raise."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from fastnet.backend.tf._internals import deferred_captures
from fastnet.network.tf.compiled.products import as_loop
from fastnet.network.tf.compiled.reading import Reading, Uncompilable, calls_functions
from fastnet.network.tf.compiled.vocabulary import READING

__all__ = ["Made", "Source"]


class Made(NamedTuple):
    """A function that was made of some nodes.

    Attributes:
        concrete: The function.
        results: The names of the tensors that it returns.
        fixed: The values of those asked for that are the same in each call.
        checked: Whether it returns one more tensor: whether all is well. If not, it has left all
            variables as they were.
        require: Raises an error if XLA cannot compile it for a device, and runs nothing.
    """

    concrete: Any
    results: list[str]
    fixed: dict[str, Any]
    checked: bool
    require: Callable[[str], None]


class Source:
    """The nodes of a traced function.

    Args:
        concrete: The function: of flat tensors, to a list of tensors.
        reading: What it is made of.

    Attributes:
        arguments: The names of the tensors that it is given.
        by_name: The nodes by their names.
        captures: What it has captured, with the name that this has in it.
        called: What is called for a value that it takes besides, in each step, with the tensor that
            this is in it.
        graph: Its graph.
        operations: The nodes that are run, each after those that it waits for.
        outputs: The names of the tensors that it returns.
        users: The nodes that take a tensor, by its name.

    Raises:
        Uncompilable: If it captures what cannot be handed on.
    """

    def __init__(self, concrete: Any, reading: Reading) -> None:
        self.graph = graph = concrete.graph
        self.captures = [(outside, inside.name) for outside, inside in graph.captures]
        self.operations = _needed(graph, [one.op for one in concrete.outputs])
        self.outputs = [one.name for one in concrete.outputs]
        names = [one.name for one in graph.inputs]
        self.called = deferred_captures(graph)
        found = [name for _, name in self.captures] + [inside.name for _, inside in self.called]
        self.arguments = names[: len(names) - len(found)]
        if names[len(self.arguments) :] != found:
            raise Uncompilable("the step reads what is only found when it is called")
        self.inputs = {name.partition(":")[0] for name in names}
        self.users: dict[str, set[str]] = defaultdict(set)
        for operation in self.operations:
            for one in operation.inputs:
                self.users[one.name].add(operation.name)
        self.by_name = {one.name: one for one in self.operations}
        self._reading = reading
        self._nodes = {node.name: node for node in reading.definition.node}

    @property
    def first_used(self) -> int:
        """The place of the first argument that is used, as the epoch is by few ops."""
        used = (name in self.outputs or bool(self.users[name]) for name in self.arguments)
        return next((place for place, is_used in enumerate(used) if is_used), 0)

    def taken_by(self, names: Collection[str]) -> set[str]:
        """Name the tensors that nodes take of others, but for constants.

        Args:
            names: The nodes.
        """
        return {
            one.name
            for name in names
            for one in self.by_name[name].inputs
            if one.op.name not in names and one.op.type != "Const"
        }

    def handed_on(self, names: Collection[str]) -> list[str]:
        """Name the tensors of nodes that others take, or that are results.

        Args:
            names: The nodes.
        """
        results = set(self.outputs)
        return [
            one.name
            for name in sorted(names)
            for one in self.by_name[name].outputs
            if one.name in results or self.users[one.name].difference(names)
        ]

    def whole(self) -> Made:
        """Make a function of all nodes for XLA, which takes no argument before `first_used`.

        An input takes as long as a small operation.
        """
        given = self.arguments[self.first_used :]
        tensors = [self.graph.get_tensor_by_name(name) for name in given]
        specs = [tf.TensorSpec(one.shape, one.dtype) for one in tensors]
        names = frozenset({one.name for one in self.operations} - self.inputs)
        return self.make(names, given, self.outputs, specs, folds=False)

    def make(
        self,
        names: frozenset[str],
        given: Sequence[str],
        asked: Sequence[str],
        specs: Sequence[tf.TensorSpec],
        compiled: bool = True,
        fixed: Mapping[str, Any] | None = None,
        controls: Mapping[str, Collection[str]] | None = None,
        folds: bool = True,
    ) -> Made:
        """Make a function of nodes.

        Args:
            names: The nodes.
            given: The names of the tensors that it is to take.
            asked: The names of those that it is to return.
            specs: What they are that it takes.
            compiled: Whether XLA is to compile it, and not on the devices that nodes name.
            fixed: The values of other tensors that nodes take.
            controls: The nodes that each waits for besides; None for those that it says itself.
            folds: Whether results that are the same in each call are told, and not returned.

        Returns:
            The function.
        """
        reading = self._reading
        watches = [one for one in reading.watches if compiled and one.node in names]
        captures = self._captures_of(names)
        written = [name for name, _, is_written in captures if is_written and watches]
        results: list[str] = []
        values: dict[str, Any] = {}

        def run(*tensors: tf.Tensor) -> list[tf.Tensor]:
            known = dict(zip(given, tensors, strict=True))
            known.update({name: tf.constant(value) for name, value in (fixed or {}).items()})
            graph = tf.compat.v1.get_default_graph()
            known.update({name: graph.capture(outside) for name, outside, _ in captures})
            before = {name: _read(known[name], reading.variables[name].dtype) for name in written}
            looked_at = [name for watch in watches for name in watch.names]
            unknown = [one for one in dict.fromkeys([*asked, *looked_at]) if one not in known]
            self.take_in(names, known, unknown, controls, placed=not compiled)
            if folds:
                found = {name: tf.get_static_value(known[name]) for name in asked}
                values.update({name: value for name, value in found.items() if value is not None})
            results[:] = [name for name in asked if name not in values]
            returned = [known[name] for name in results]
            if not watches:
                return returned
            holding = [watch.check.holds(*[known[one] for one in watch.names]) for watch in watches]
            fine = tf.reduce_all([tf.reduce_all(one) for one in holding])
            for name, old in before.items():
                now = tf.where(fine, _read(known[name], old.dtype), old)
                tf.raw_ops.AssignVariableOp(resource=known[name], value=now)
            return [*returned, fine]

        made = tf.function(run, jit_compile=compiled or None, autograph=False)
        # whatever strategy or device is in force has no part in this
        with tf.init_scope():
            concrete = made.get_concrete_function(*specs)

        def require(device: str) -> None:
            with tf.init_scope(), tf.device(device):
                made.experimental_get_compiler_ir(*specs)(stage="hlo")

        return Made(concrete, results, values, bool(watches), require)

    def _captures_of(self, names: frozenset[str]) -> list[tuple[str, Any, bool]]:
        """Find what nodes take that is captured: its name, and whether it is written to.

        What XLA is called with has the variables last.
        """
        found = []
        for outside, name in self.captures:
            users = {self.by_name[user].type for user in self.users[name] & names}
            if users:
                is_written = outside.dtype == tf.resource and not users <= READING
                found.append((name, outside, is_written))
        return sorted(found, key=lambda one: one[1].dtype == tf.resource)

    def take_in(
        self,
        names: Collection[str],
        known: dict[str, Any],
        asked: Sequence[str],
        controls: Mapping[str, Collection[str]] | None = None,
        placed: bool = True,
    ) -> None:
        """Put nodes into the graph that is under way.

        Args:
            names: The nodes.
            known: The tensors that there are in that graph, by name; what is asked for is added. By
                the name of a node it is one that waits for it.
            asked: The names of tensors of these nodes, and of nodes.
            controls: The nodes that each waits for besides; None for those that it says itself.
            placed: Whether they run on the devices that they name.
        """
        reading = self._reading
        definition = tf.compat.v1.GraphDef(versions=reading.definition.versions)
        # constants are wherever they are needed
        ordered = [one.name for one in self.operations if one.name in names]
        waiting = [*ordered, *(name.partition(":")[0] for name in asked)]
        taken: set[str] = set()
        outside: dict[str, tf.Tensor] = {}
        while waiting:
            name = waiting.pop()
            if name in taken:
                continue
            taken.add(name)
            node = tf.compat.v1.NodeDef()
            node.CopyFrom(self._nodes[name])
            wanted = [one for one in node.input if not one.startswith("^")]
            if controls is None:
                waited = [one[1:] for one in node.input if one.startswith("^")]
            else:
                waited = sorted(controls.get(name, ()))
            node.ClearField("input")
            if node.op == "Const":
                waited = []
            for one in wanted:
                source, _, number = one.partition(":")
                tensor = f"{source}:{number or 0}"
                node.input.append(one)
                if source in names:
                    continue
                if self._nodes[source].op == "Const":
                    waiting.append(source)
                else:
                    outside[tensor] = known[tensor]
            # of several names for one node TensorFlow loses count
            before = {known[one].op.name: one for one in waited if one in known}
            outside.update({f"^{one}": known[one] for one in before.values()})
            waited = [one for one in waited if one in names and one not in known]
            node.input.extend(f"^{one}" for one in [*waited, *before.values()])
            node.attr.pop("_class", None)
            if not placed:
                node.device = ""
            small = node.op == "MatMul" and not placed
            loop = as_loop(node, self.by_name[name]) if small else None
            definition.node.extend(loop or [node])
        if any(calls_functions(node) for node in definition.node):
            definition.library.CopyFrom(reading.definition.library)
        found = tf.graph_util.import_graph_def(
            definition, input_map=outside, return_elements=list(asked), name=""
        )
        known.update(zip(asked, found or (), strict=True))


def _needed(graph: Any, ends: Sequence[tf.Operation]) -> list[tf.Operation]:
    """Find the nodes that a graph runs: those of use to a result or an effect."""
    waiting, found = [*ends, *graph.control_outputs], set[tf.Operation]()
    while waiting:
        operation = waiting.pop()
        if operation not in found:
            found.add(operation)
            waiting.extend([*operation.control_inputs, *(one.op for one in operation.inputs)])
    return [one for one in graph.get_operations() if one in found or one.type == "Placeholder"]


def _read(handle: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    return tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
