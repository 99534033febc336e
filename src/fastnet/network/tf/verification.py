"""The verification of compiled steps: they also run as graphs, and what both change is compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from fastnet.backend.tf._internals import direct_call, variable_spec
from fastnet.backend.tf.graph import Call
from fastnet.errors import shorten
from fastnet.network.deviations import (
    Deviation,
    DisturbedStep,
    Mismatch,
    excesses,
    require_same_type,
)
from fastnet.network.tf.deviations import deviation_of, disturb
from fastnet.network.tf.step_tracer import TracedGraph
from fastnet.network.verification_limits import EPSILONS, TENSORFLOW
from fastnet.util.memory import free_memory

# Operations that do not change the variable that they use.
_READS = frozenset({"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape"})
_numbers = count()


class _Variable(NamedTuple):
    handle: tf.Tensor
    name: str
    # TensorFlow never frees a shared name, so the copies of a variable reuse one.
    copy_name: str
    spec: tf.TensorSpec
    is_written: bool

    def read(self) -> Any:
        """Return a copy of the value."""
        return _read(self.handle, self.spec)

    @property
    def nbytes(self) -> int:
        size: int = self.spec.shape.num_elements() * self.spec.dtype.size
        return size


class _Outcome(NamedTuple):
    """The variables before a step, its results, and the handles of the variables after it."""

    before: Iterable[Any]
    results: Sequence[tf.Tensor]
    variables: Sequence[tf.Tensor]


class Verifier:
    """Runs a compiled step on copies of the variables that it writes, and compares with the graph.

    Args:
        traced: The traced step.
        compiled: The compiled step.
        graph_call: Runs the traced step.
        keys: The key of each of its results.

    Attributes:
        reason_not_to_verify: Why steps cannot be verified; None if they can be.
    """

    def __init__(
        self, traced: TracedGraph, compiled: Any, graph_call: Call, keys: Sequence[str]
    ) -> None:
        concrete = traced.concrete
        self._concrete, self._compiled, self._graph_call = concrete, compiled, graph_call
        self._results = traced.results
        # Copies have fixed names, so two threads would write to the same ones.
        self._lock = Lock()
        self._precision = _lowest_precision(concrete)
        self._variables = _variables_of(concrete)
        self.reason_not_to_verify = self._find_reason()
        variables = self._variables or ()
        self._written = [variable for variable in variables if variable.is_written]
        self._constant = [variable for variable in variables if not variable.is_written]
        self._names = [f"'{key}'" for key in keys]
        self._names += [f"variable '{variable.name}'" for variable in self._written]

    def _find_reason(self) -> str | None:
        if self._variables is None:
            return "it has state that is not in variables"
        functions = self._concrete, self._compiled
        if any(direct_call(function, self._results) is None for function in functions):
            return "TensorFlow cannot call it with copies of its variables"
        needed = sum(
            variable.nbytes * (2 if variable.is_written else 1) for variable in self._variables
        )
        free = free_memory()
        if free is not None and needed > free:
            return f"copies of its variables have {needed >> 20} MB, and {free >> 20} MB are free"
        return None

    def run_on_copies(self, inputs: list[tf.Tensor]) -> None:
        """Run the compiled step on copies, so that XLA compiles it."""
        with self._lock, _empty_variables_like(self._written) as copies:
            for variable, copy in zip(self._written, copies, strict=True):
                _assign(copy, variable.read())
            self._call_on_copies(self._compiled, inputs, copies)

    def run(self, inputs: list[tf.Tensor]) -> tuple[list[tf.Tensor], str | None]:
        """Run the step as a graph; return its results, and how the compiled one differs if so."""
        with self._lock, _empty_variables_like(self._written) as copies:
            before = [variable.read() for variable in self._written]
            results = list(self._graph_call(inputs))
            reference = _Outcome(before, results, [variable.handle for variable in self._written])
            for copy, array in zip(copies, before, strict=True):
                _assign(copy, array)
            try:
                compiled = _Outcome(
                    before, self._call_on_copies(self._compiled, inputs, copies), copies
                )
            except tf.errors.OpError as error:
                return results, f"the compiled step failed: {shorten(str(error))}"
            return results, self._describe_excesses(inputs, reference, compiled)

    def _describe_excesses(
        self, inputs: list[tf.Tensor], reference: _Outcome, compiled: _Outcome
    ) -> str | None:
        """Describe the differences that disturbed steps do not explain, or return None."""
        try:
            deviations = self._deviations(reference, compiled)
        except Mismatch as mismatch:
            return f"the compiled step computes other values than the graph: {mismatch}"

        tolerance = TENSORFLOW.program_tolerances[self._precision]
        is_low = self._precision in ("float16", "bfloat16")
        sizes = TENSORFLOW.low_disturbances if is_low else TENSORFLOW.disturbances
        disturbed: list[DisturbedStep] = []
        while excess := list(excesses(deviations, disturbed, tolerance, TENSORFLOW)):
            number = len(disturbed)
            step = None
            if number < len(sizes):
                size = sizes[number] * EPSILONS[self._precision]
                # The copies that the compiled step changed are compared, and can be overwritten.
                step = self._disturbed_step(number, size, inputs, reference, compiled.variables)
            if step is None:
                names = ", ".join(self._names[deviation.index] for deviation in excess[:3])
                first = excess[0].index
                is_change = first >= len(reference.results)
                text = deviations[first].describe(self._names[first], is_change)
                return f"the compiled step computes other values of {names} than the graph: {text}"
            disturbed.append(step)
        return None

    def _deviations(self, reference: _Outcome, outcome: _Outcome) -> list[Deviation]:
        """Compare a step on copies of the variables with that on the variables themselves."""
        result_count = len(reference.results)
        # Values are read one after the other, because copies of all may not fit into memory.
        deviations = [
            self._deviation(name, actual.numpy(), expected.numpy())
            for name, actual, expected in zip(
                self._names[:result_count], outcome.results, reference.results, strict=True
            )
        ]
        for name, variable, expected, expected_before, actual, actual_before in zip(
            self._names[result_count:],
            self._written,
            reference.variables,
            reference.before,
            outcome.variables,
            outcome.before,
            strict=True,
        ):
            deviations.append(
                self._deviation(
                    name,
                    _read(actual, variable.spec),
                    _read(expected, variable.spec),
                    actual_before,
                    expected_before,
                )
            )
        return deviations

    def _deviation(
        self,
        name: str,
        actual: Any,
        expected: Any,
        actual_before: Any = None,
        expected_before: Any = None,
    ) -> Deviation:
        require_same_type(name, actual.dtype, actual.shape, expected)
        return deviation_of(actual, expected, self._precision, actual_before, expected_before)

    def _disturbed_step(
        self,
        number: int,
        size: float,
        inputs: list[tf.Tensor],
        reference: _Outcome,
        copies: Sequence[tf.Tensor],
    ) -> DisturbedStep | None:
        """Run the graph with disturbed inputs, and compare it; return None if that fails.

        Args:
            number: The number of the disturbed step, from which its disturbances are drawn.
            size: The relative size of the disturbances.
            inputs: The inputs of the step.
            reference: The undisturbed step.
            copies: Copies of the variables that the step writes; their values are overwritten.
        """

        def disturbed(array: Any, *place: int) -> Any:
            return disturb(array, size, np.random.default_rng((number, *place)))

        disturbed_inputs = [
            tf.constant(disturbed(tensor.numpy(), 0, index), tensor.dtype)
            for index, tensor in enumerate(inputs)
        ]
        with _empty_variables_like(self._constant) as constant_copies:
            for index, (variable, copy) in enumerate(
                zip(self._constant, constant_copies, strict=True)
            ):
                _assign(copy, disturbed(variable.read(), 1, index))
            for index, (copy, array) in enumerate(zip(copies, reference.before, strict=True)):
                _assign(copy, disturbed(array, 2, index))
            # Drawn again for each variable, because a third copy of all may not fit into memory.
            before = (disturbed(array, 2, index) for index, array in enumerate(reference.before))
            try:
                results = self._call_on_copies(
                    self._concrete, disturbed_inputs, copies, constant_copies
                )
                return DisturbedStep(self._deviations(reference, _Outcome(before, results, copies)))
            except (tf.errors.OpError, Mismatch):
                return None

    def _call_on_copies(
        self,
        concrete: Any,
        inputs: list[tf.Tensor],
        copies: Sequence[tf.Tensor],
        constant_copies: Sequence[tf.Tensor] = (),
    ) -> list[tf.Tensor]:
        """Call a function on copies of the variables that it writes, and perhaps of the others."""
        written = zip(self._written, copies, strict=True)
        replaced = {id(variable.handle): copy for variable, copy in written}
        if constant_copies:
            constant = zip(self._constant, constant_copies, strict=True)
            replaced |= {id(variable.handle): copy for variable, copy in constant}
        captured = [replaced.get(id(tensor), tensor) for tensor in concrete.captured_inputs]
        call = direct_call(concrete, self._results, captured)
        assert call is not None
        return list(call(inputs) or ())


def _variables_of(concrete: Any) -> list[_Variable] | None:
    """Return the variables that a traced step uses; None if it has other state."""
    names = {id(variable.handle): str(variable.name) for variable in concrete.graph.variables}
    variables = []
    for handle, inside in concrete.graph.captures:
        if handle.dtype != tf.resource:
            continue
        spec = variable_spec(handle)
        if spec is None or not spec.shape.is_fully_defined():
            return None
        is_written = any(user.type not in _READS for user in inside.consumers())
        name = names.get(id(handle), "a variable")
        copy_name = f"fastnet_copy_{next(_numbers)}"
        variables.append(_Variable(handle, name, copy_name, spec, is_written))
    return variables


@contextmanager
def _empty_variables_like(variables: Sequence[_Variable]) -> Iterator[list[tf.Tensor]]:
    """Make variables of the same shapes and dtypes, without values, and delete them at the end."""
    handles: list[tf.Tensor] = []
    try:
        for variable in variables:
            with tf.device(variable.handle.device):
                handles.append(
                    tf.raw_ops.VarHandleOp(
                        dtype=variable.spec.dtype,
                        shape=variable.spec.shape,
                        shared_name=variable.copy_name,
                    )
                )
        yield handles
    finally:
        for handle in handles:
            tf.raw_ops.DestroyResourceOp(resource=handle)


def _read(handle: tf.Tensor, spec: tf.TensorSpec) -> Any:
    return tf.raw_ops.ReadVariableOp(resource=handle, dtype=spec.dtype).numpy()


def _assign(handle: tf.Tensor, array: Any) -> None:
    # A tensor may use the memory of an array, and a step may write to that of a variable.
    tf.raw_ops.AssignVariableOp(resource=handle, value=tf.constant(np.array(array)))


def _lowest_precision(concrete: Any) -> str:
    operations = concrete.graph.get_operations()
    names = {tensor.dtype.name for operation in operations for tensor in operation.outputs}
    tolerances = TENSORFLOW.program_tolerances
    precisions = [name for name in names if name in tolerances]
    return max(precisions, key=lambda name: tolerances[name], default="float32")
