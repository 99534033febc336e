"""A traced function as several programs of XLA, where XLA cannot compile it as a whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import tensorflow as tf

from fastnet.backend.tf._internals import launch_call
from fastnet.backend.tf.graph import caller
from fastnet.network.tf.compiled.dividing import divide
from fastnet.network.tf.compiled.guarding import Made, Source
from fastnet.network.tf.compiled.reading import Reading, Uncompilable

__all__ = ["Call", "Failed", "Pieces"]

# Takes tensors as a list, and returns tensors.
Call = Callable[[list[tf.Tensor]], Sequence[tf.Tensor]]
# Told that a program has failed: the error, or None where it could not tell that it did the same.
Failed = Callable[[BaseException | None], None]


class Pieces:
    """The parts of a traced function that XLA can compile, and the graphs between them.

    They are called one after the other. (As functions within a graph programs of XLA take near
    twice as long, and small steps gain nothing.) Where a program cannot tell that it does what the
    graph would, its part runs once more, as a graph.

    Args:
        source: The traced function.
        reading: What it is made of.
        explain: Given an error of TensorFlow that a part raises, and the graph, adds to it.
        failed: Told when a program has failed, and its part ran as a graph.

    Raises:
        Uncompilable: If no part is worth it.
    """

    def __init__(
        self,
        source: Source,
        reading: Reading,
        explain: Callable[[BaseException, Any], None],
        failed: Failed,
    ) -> None:
        self._source = source
        self._failed = failed
        self._explain = lambda error, _: explain(error, source.graph)
        self._levels, self._controls = divide(source.operations, source.inputs, reading)
        if not any(level.programs for level in self._levels):
            raise Uncompilable(next(iter(reading.unfit.values())))

    def make(self, specs: Sequence[tf.TensorSpec]) -> tuple[Call, int]:
        """Make what runs steps with batches of one shape.

        Args:
            specs: What they are given.

        Returns:
            What runs them, and how many programs of XLA there are.

        Raises:
            Uncompilable: If the shapes of what programs take are not known.
            Exception: Whatever XLA raises where it cannot compile one of them.
        """
        source = self._source
        shapes = {one.name: one.shape for node in source.operations for one in node.outputs}
        values = _Values(dict(zip(source.arguments, specs, strict=True)), shapes)
        parts: list[_Part] = []
        count = 0
        for level in self._levels:
            names = level.rest
            for own in level.programs.values():
                program = self._program(own, values)
                if program is None:
                    names |= own
                else:
                    count += 1
                    parts.append(program)
            if names:
                parts.append(self._graph(names, values))
        if not count:
            raise Uncompilable("the shapes that its parts take are only known in each step")
        for name in source.outputs:
            if name not in values.places:
                values.add_constant(name, self._constant(name, values))
        outputs = [values.places[name] for name in source.outputs]
        return partial(_run, values.first[len(specs) :], parts, outputs), count

    def _program(self, names: frozenset[str], values: _Values) -> _Part | None:
        """Have XLA compile nodes; None where it is not told the shapes of what they take."""
        given, fixed = self._given(names, values)
        specs = [values.specs[name] for name in given]
        if not all(one.shape.is_fully_defined() for one in specs):
            return None
        make = partial(
            self._source.make, names, given, specs=specs, fixed=fixed, controls=self._controls
        )
        made = make(self._source.handed_on(names))
        made.require("CPU:0")
        graph = make(made.results, compiled=False, folds=False)
        call = _program_call(made, caller(graph.concrete, self._explain), self._failed)
        return values.part(call, given, made)

    def _graph(self, names: frozenset[str], values: _Values) -> _Part:
        """Run nodes as a graph."""
        given, fixed = self._given(names, values)
        specs = [values.specs[name] for name in given]
        made = self._source.make(
            names, given, self._source.handed_on(names), specs, False, fixed, self._controls
        )
        return values.part(caller(made.concrete, self._explain), given, made)

    def _given(self, names: frozenset[str], values: _Values) -> tuple[list[str], dict[str, Any]]:
        """Find what nodes take of others: the names, and the values of what is always the same."""
        taken = self._source.taken_by(names)
        fixed = {name: values.fixed[name] for name in taken & values.fixed.keys()}
        # what is captured is so by each part
        return sorted(name for name in taken - fixed.keys() if name in values.places), fixed

    def _constant(self, name: str, values: _Values) -> tf.Tensor:
        value = values.fixed.get(name)
        if value is None:
            node = self._source.by_name[name.partition(":")[0]]
            value = tf.get_static_value(node.outputs[0])
        with tf.init_scope():
            return tf.constant(value)


class _Part(NamedTuple):
    """What runs some of the nodes of a step.

    Attributes:
        call: Runs them.
        given: The places of what it takes, among all tensors of a step.
        results: The places of what it returns.
        held: What it is of; TensorFlow forgets a function that nobody has.
    """

    call: Call
    given: list[int]
    results: list[int]
    held: Any


class _Values:
    """The tensors that the parts of a step take and return.

    Args:
        arguments: What a step is given, by name.
        shapes: The shapes of all tensors as far as they were known when the step was traced.

    Attributes:
        specs: What they are, by name.
        places: Their places.
        fixed: The values of those that are the same in each step.
        first: What is at each place before the step; None where that is worked out in it.
    """

    def __init__(
        self, arguments: dict[str, tf.TensorSpec], shapes: Mapping[str, tf.TensorShape]
    ) -> None:
        self._shapes = shapes
        self.specs = dict(arguments)
        self.places = {name: place for place, name in enumerate(arguments)}
        self.fixed: dict[str, Any] = {}
        self.first: list[tf.Tensor | None] = [None] * len(arguments)

    def add_constant(self, name: str, tensor: tf.Tensor) -> None:
        """Add a tensor that is the same in each step.

        Args:
            name: Its name.
            tensor: The tensor.
        """
        self.places[name] = len(self.first)
        self.first.append(tensor)

    def part(self, call: Call, given: list[str], made: Made) -> _Part:
        """Add the tensors that a part returns.

        Args:
            call: Runs it.
            given: The names of those that it takes.
            made: What it was made of.

        Returns:
            The part.
        """
        for name, tensor in zip(made.results, made.concrete.outputs, strict=False):
            # what was said of a shape when it was traced is not in the nodes
            shape = tensor.shape.merge_with(self._shapes[name])
            self.specs[name] = tf.TensorSpec(shape, tensor.dtype)
            self.places[name] = len(self.first)
            self.first.append(None)
        self.fixed.update(made.fixed)
        places = self.places
        taken, returned = ([places[one] for one in names] for names in (given, made.results))
        return _Part(call, taken, returned, made.concrete)


def _program_call(made: Made, graph: Call, failed: Failed) -> Call:
    """Return what runs a program, or where that will not do its nodes as a graph."""
    concrete, checked = made.concrete, made.checked
    launch: Call = launch_call(concrete) or (lambda tensors: list(concrete(*tensors) or ()))

    def run(tensors: list[tf.Tensor]) -> Sequence[tf.Tensor]:
        try:
            found: Any = launch(tensors)
        except tf.errors.OpError as error:
            # nothing has run; what is wrong with the batch the graph says better
            again = graph(tensors)
            failed(error)
            return again
        if checked and not found.pop().numpy():
            again = graph(tensors)
            failed(None)
            return again
        results: Sequence[tf.Tensor] = found
        return results

    return run


def _run(
    first: list[tf.Tensor | None], parts: list[_Part], outputs: list[int], tensors: list[tf.Tensor]
) -> list[tf.Tensor]:
    values: list[Any] = tensors + first
    for part in parts:
        results = part.call([values[place] for place in part.given])
        for place, tensor in zip(part.results, results, strict=True):
            values[place] = tensor
    return [values[place] for place in outputs]
