"""A traced function of several devices as one graph, with programs of XLA for each device in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import tensorflow as tf

from fastnet.backend.tf.graph import caller
from fastnet.network.tf.compiled.dividing import divide
from fastnet.network.tf.compiled.guarding import Source
from fastnet.network.tf.compiled.pieces import Call, Failed
from fastnet.network.tf.compiled.reading import Reading, Uncompilable

__all__ = ["Spread"]

# within a graph a program takes as long for each tensor as some operations do
_LEAST_PER_TENSOR = 4


class Spread:
    """What each device has to do by itself, as programs of XLA, in the graph that joins them.

    (Called from Python one after the other, as on one device, they would never meet.) Where a
    program cannot tell that it does what the graph would, its part runs once more, as a graph.

    Args:
        source: The traced function.
        reading: What it is made of.
        explain: Given an error of TensorFlow that a step raises, and the graph, adds to it.
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
        self._levels, self._controls = divide(
            source.operations, source.inputs, reading, _LEAST_PER_TENSOR
        )
        self._waited = frozenset[str]().union(*self._controls.values())
        if not any(level.programs for level in self._levels):
            raise Uncompilable(
                "the steps are spread over devices by a strategy, and between their meetings no "
                "device has enough to do for a program"
            )

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
        calls = [call for call, _ in source.called]
        numbers = [inside for _, inside in source.called]
        names = [*source.arguments, *(one.name for one in numbers)]
        programs: list[_Program] = []

        def run(*tensors: tf.Tensor) -> list[tf.Tensor]:
            graph = tf.compat.v1.get_default_graph()
            known: dict[str, Any] = dict(zip(names, tensors, strict=True))
            known.update({name: graph.capture(outside) for outside, name in source.captures})
            fine = []
            for level in self._levels:
                rest = level.rest
                for device, own in level.programs.items():
                    program = self._program(device, own, known)
                    if program is None:
                        rest |= own
                        continue
                    programs.append(program)
                    done = self._put_program(program, own, known)
                    if program.checked:
                        fine.append(done)
                self._put_graph(rest, known)
            source.take_in((), known, [one for one in source.outputs if one not in known])
            results = [known[name] for name in source.outputs]
            return [*results, tf.reduce_all(tf.stack(fine))] if fine else results

        made = tf.function(run, autograph=False)
        with tf.init_scope():
            concrete = made.get_concrete_function(
                *specs, *(tf.TensorSpec(one.shape, one.dtype) for one in numbers)
            )
        if not programs:
            raise Uncompilable("the shapes that its parts take are only known in each step")
        call = caller(concrete, self._explain)
        failed = self._failed if any(one.checked for one in programs) else None
        # TensorFlow forgets a function that nobody has
        return partial(_run, call, calls, failed, programs), len(programs)

    def _program(
        self, device: str, names: frozenset[str], known: Mapping[str, Any]
    ) -> _Program | None:
        """Have XLA compile nodes; None where it is not told the shapes of what they take."""
        source = self._source
        captured = {name for _, name in source.captures}
        taken = source.taken_by(names) - captured
        values = {name: tf.get_static_value(known[name]) for name in taken}
        fixed = {name: value for name, value in values.items() if value is not None}
        given = sorted(taken - fixed.keys())
        specs = [tf.TensorSpec(known[name].shape, known[name].dtype) for name in given]
        if not all(one.shape.is_fully_defined() for one in specs):
            return None
        make = partial(source.make, names, given, specs=specs, fixed=fixed, controls=self._controls)
        made = make(source.handed_on(names))
        made.require(device)
        graph = make(made.results, compiled=False, folds=False).concrete if made.checked else None

        def run(*tensors: tf.Tensor) -> list[tf.Tensor]:
            results = list(made.concrete(*tensors))
            if graph is None:
                return [*results, tf.constant(True)]
            fine = results[-1]
            # (what fails in tf.raw_ops.If, which costs less, may be told as a step cut short)
            return list(tf.cond(fine, lambda: results, lambda: [*graph(*tensors), fine]))

        with tf.init_scope(), tf.device(device):
            concrete = tf.function(run, autograph=False).get_concrete_function(*specs)
        return _Program(device, concrete, given, made.results, made.fixed, made.checked)

    def _put_program(
        self, program: _Program, names: frozenset[str], known: dict[str, Any]
    ) -> tf.Tensor:
        """Put a program into the graph that is under way.

        Args:
            program: The program.
            names: Its nodes.
            known: The tensors that there are in the graph; what it returns is added.

        Returns:
            Whether it did what the graph would, once it has run.
        """
        waited = frozenset[str]().union(*(self._controls[name] for name in names)) - names
        waits = tf.control_dependencies([known[name] for name in sorted(waited)])
        with waits, tf.device(program.device):
            *results, fine = program.concrete(*(known[name] for name in program.given))
        known.update(zip(program.results, results, strict=True))
        known.update({name: tf.constant(value) for name, value in program.fixed.items()})
        known.update(dict.fromkeys(names & self._waited, fine))
        return fine

    def _put_graph(self, names: frozenset[str], known: dict[str, Any]) -> None:
        """Put nodes into the graph that is under way.

        Args:
            names: The nodes.
            known: The tensors that there are in the graph; those of the nodes are added.
        """
        source, waited = self._source, sorted(names & self._waited)
        handed_on = source.handed_on(names)
        source.take_in(names, known, [*handed_on, *waited], self._controls)
        for name in handed_on:
            # what was said of a shape when it was traced is not in the nodes
            known[name].set_shape(source.graph.get_tensor_by_name(name).shape)
        for name in waited:
            operation = known[name]
            if operation.outputs:
                known[name] = operation.outputs[0]
                continue
            with tf.control_dependencies([operation]):
                known[name] = tf.constant(True)


class _Program(NamedTuple):
    """A program of XLA for one device.

    Attributes:
        device: The device.
        concrete: Runs it, or where that will not do its nodes as a graph; returns one more tensor:
            whether it did.
        given: The names of the tensors that it takes.
        results: The names of those that it returns.
        fixed: The values of those that are the same in each step.
        checked: Whether it may have to run as a graph.
    """

    device: str
    concrete: Any
    given: list[str]
    results: list[str]
    fixed: dict[str, Any]
    checked: bool


def _run(
    call: Call,
    calls: Sequence[Callable[[], tf.Tensor]],
    failed: Failed | None,
    held: Any,
    tensors: list[tf.Tensor],
) -> Sequence[tf.Tensor]:
    results = call([*tensors, *(one() for one in calls)])
    if failed is None:
        return results
    *results, fine = results
    if not fine.numpy():
        failed(None)
    return results
