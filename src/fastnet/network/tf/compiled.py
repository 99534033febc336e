"""Traced steps that XLA compiles as a whole, and that are verified when they first run."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from threading import Lock
from typing import Any

import numpy as np
import tensorflow as tf

from fastnet._trace import Trace
from fastnet.backend.tf._internals import could_record, shape_of_eager, variable_spec
from fastnet.backend.tf.graph import caller
from fastnet.errors import shorten
from fastnet.network.compile_options import CompileOptions
from fastnet.network.tf.input_signature import slots_of
from fastnet.network.tf.products import run_with_loops
from fastnet.network.tf.step_graph import StepGraph
from fastnet.network.trace_records import report_if_slow

# Takes tensors as a list, and returns tensors.
Call = Callable[[list[tf.Tensor]], Iterable[tf.Tensor]]
# Records why something was compiled, how many seconds that took, and why it is not used, or None.
Record = Callable[[str, float, str | None], None]

# TensorFlow keeps all that XLA has compiled, so a network whose ops change forever needs a limit.
_MAX_PROGRAMS = 64
# Verifying copies the state of a step.
_MAX_STATE_BYTES = 1 << 28
# XLA drops these operations, so that nothing would be checked.
_CHECKS = frozenset({"Assert", "CheckNumerics", "CheckNumericsV2"})
# These draw from generators that `tf.random.set_seed` seeds, which XLA ignores.
_RANDOM = ("Multinomial", "ParameterizedTruncatedNormal", "Random", "TruncatedNormal")
_SEEDED = ("StatelessMultinomial", "StatelessRandom", "StatelessTruncatedNormal")
# How far results may differ, relative to the largest value of a tensor, by the coarsest type.
_TOLERANCES = {"float64": 1e-8, "float32": 1e-3, "float16": 0.01, "bfloat16": 0.05}
_SMALLEST = 1e-6


class Signatures:
    """Counts the input signatures that were compiled for the ops and models as they are now."""

    count = 0


class Compiler:
    """Compiles the traced steps of one program, and counts how many."""

    def __init__(self, options: CompileOptions, record: Record, graph: StepGraph) -> None:
        self.options, self.record, self.graph = options, record, graph
        self.count = 0

    def find_reason(self, concrete: Any) -> str | None:
        """Return why a traced step cannot be compiled, or None."""
        if self.graph.is_replicated:
            return "a strategy runs the steps on several devices, and XLA compiles for one only"
        if tf.config.list_logical_devices("GPU"):
            return "there is a GPU, and steps are compiled on the CPU only"
        if any(one.dtype == tf.string for one in concrete.inputs):
            return "an op reads strings, which XLA does not have"
        for node in _nodes_of(concrete):
            user = self.graph.describe(node.name) or "the step"
            if node.op in _CHECKS:
                return f"{user} uses '{node.op}', which XLA leaves out"
            if node.op.startswith(_RANDOM):
                return f"{user} draws random numbers by '{node.op}', whose seed XLA ignores"
            if node.op.startswith(_SEEDED) and self.options.fallback_random:
                return (
                    f"{user} draws random numbers by '{node.op}', which differ in XLA, and "
                    "fallback_random requires those of the graph"
                )
        return None

    def limit(self, signatures: Signatures) -> str | None:
        """Return why no further input signature is compiled, or None."""
        if signatures.count >= self.options.most_kinds:
            return f"there are more than {self.options.most_kinds} input signatures"
        if self.count >= _MAX_PROGRAMS:
            return f"{_MAX_PROGRAMS} programs were compiled for what runs in this mode"
        return None


class CompiledStep:
    """A traced step that XLA compiles for each input signature when that first comes."""

    def __init__(
        self, compiler: Compiler, concrete: Any, trace: Trace, signatures: Signatures
    ) -> None:
        self._compiler, self._concrete, self._signatures = compiler, concrete, signatures
        self._trace, self._graph_call = trace, trace.call
        self._calls: dict[Any, Call] = {}
        self._compiling = Lock()
        self._launch: Call | None = None
        # Why it was traced, once that is recorded; later compilations are recorded by themselves.
        self.reason: str | None = None
        self.seconds, self.note = 0.0, ""
        self.fallback = compiler.limit(signatures) or compiler.find_reason(concrete)
        if self.fallback is None:
            trace.call = self._call_by_shapes

    def _call_by_shapes(self, tensors: list[tf.Tensor]) -> Iterable[tf.Tensor]:
        # A tape, or a function of the user that is traced, records the operations of the graph.
        if could_record() or not tf.executing_eagerly():
            return self._graph_call(tensors)
        shapes = tuple(map(shape_of_eager, tensors))
        if (call := self._calls.get(shapes)) is not None:
            return call(tensors)
        # A step of another thread does not wait for the compiler.
        if not self._compiling.acquire(blocking=False):
            return self._graph_call(tensors)
        try:
            return self._compile(tensors, shapes)
        finally:
            self._compiling.release()

    def _compile(self, tensors: list[tf.Tensor], shapes: tuple[Any, ...]) -> Iterable[tf.Tensor]:
        """Compile for an input signature, and run the first step of it."""
        call = self._graph_call
        results: Iterable[tf.Tensor] | None = None
        started = time.perf_counter()
        self.note, self.fallback = "", self._compiler.limit(self._signatures)
        if self.fallback is None:
            try:
                with report_if_slow("compiling a step with XLA"):
                    call, results = self._begin(tensors)
            except _XLAError as error:
                self.fallback = _describe_error(str(error), self._compiler.graph.describe)
            else:
                self._signatures.count += 1
                self._compiler.count += 1
        self.seconds = time.perf_counter() - started
        self._calls[shapes] = call
        if not self._trace.wide:
            self._trace.call = call
        if self.reason is not None:
            text = ", ".join(map(str, shapes[1:]))  # without the epoch
            reason = f"a batch has the shapes {text}" if len(self._calls) > 1 else self.reason
            self._compiler.record(reason + self.note, self.seconds, self.fallback)
        return self._graph_call(tensors) if results is None else results

    def _begin(self, tensors: list[tf.Tensor]) -> tuple[Call, Iterable[tf.Tensor]]:
        """Run a first step; return what runs the next one, and the results."""
        if self._launch is None:
            # The compiled operations do not know the lines that they come from.
            graph, source = self._compiler.graph, self._concrete.graph
            self._launch = caller(
                _compile(self._concrete),
                lambda error, _: graph.explain(error, source),
                self._graph_call,
            )
        launch, verify = self._launch, self._compiler.options.verify
        if verify is None:
            return launch, _run(launch, tensors)
        state = _State(self._concrete)
        skipped = self._unverifiable(state)
        if skipped is not None:
            self.note = f"; not verified, since {skipped}"
            return launch, _run(launch, tensors)
        names = [f"'{key}'" for key, form in self._trace.outputs.items() for _ in slots_of(form)]
        names += [f"variable '{name}'" for name in state.names]
        verifier = _Verifier(self._graph_call, launch, state, names, _tolerance(self._concrete))
        results, self.fallback = verifier.run(tensors)
        if self.fallback is not None:
            return self._graph_call, results
        return launch if verify == "first" else verifier.every(int(verify)), results

    def _unverifiable(self, state: _State) -> str | None:
        if any(node.op.startswith(_SEEDED) for node in _nodes_of(self._concrete)):
            return "it draws random numbers"
        if state.size is None:
            return "it has state that is not in variables"
        if state.size > _MAX_STATE_BYTES and self._compiler.options.verify == "first":
            return f"its variables have {state.size >> 20} MB"
        return None


class _XLAError(Exception):
    """XLA cannot compile a step."""


def _nodes_of(concrete: Any) -> Iterator[Any]:
    definition = concrete.graph.as_graph_def()
    yield from definition.node
    for function in definition.library.function:
        yield from function.node_def


def _compile(concrete: Any) -> Any:
    """Return a traced step as a function that XLA compiles when it is first called."""
    inputs = concrete.inputs[: len(concrete.inputs) - len(concrete.captured_inputs)]
    specs = [tf.TensorSpec(one.shape, one.dtype) for one in inputs]
    try:
        # The strategy or device of the caller has no part in this.
        with tf.init_scope():
            run = tf.function(partial(run_with_loops, concrete), jit_compile=True, autograph=False)
            return run.get_concrete_function(specs)
    except Exception as error:
        raise _XLAError(f"{type(error).__name__}: {error}") from error


def _run(call: Call, tensors: list[tf.Tensor]) -> Iterable[tf.Tensor]:
    try:
        return call(tensors)
    except tf.errors.OpError as error:
        raise _XLAError(str(error)) from error


def _describe_error(text: str, describe: Callable[[str], str | None]) -> str:
    """Say what XLA cannot compile, by the nodes and kernels that its error names."""
    ops = [describe(node) for node in re.findall(r"\{\{node ([^}]*)\}\}", text)]
    where = next(filter(None, ops), "the step")
    kernels = sorted(set(re.findall(r"No registered '(\w+)' OpKernel", text)))
    if kernels:
        return f"XLA cannot compile {where}: it has no kernel for {', '.join(kernels)}"
    words = re.sub(r"\{\{[^}]*\}\}", "", text).split()
    return f"XLA cannot compile {where}: {shorten(' '.join(words))}"


class _State:
    """The variables that a traced step uses."""

    def __init__(self, concrete: Any) -> None:
        known = {id(one.handle): str(one.name) for one in concrete.graph.variables}
        handles = [one for one, _ in concrete.graph.captures if one.dtype == tf.resource]
        found = map(variable_spec, handles)
        specs = [one for one in found if one is not None and one.shape.is_fully_defined()]
        self.size: int | None = None
        if len(specs) < len(handles):
            return
        self.size = sum(one.shape.num_elements() * one.dtype.size for one in specs)
        self._variables = [(one, spec.dtype) for one, spec in zip(handles, specs, strict=True)]
        self.names = [known.get(id(one), "a variable") for one in handles]

    def read(self) -> list[Any]:
        """Return copies of their values."""
        return [
            np.array(tf.raw_ops.ReadVariableOp(resource=one, dtype=dtype).numpy())
            for one, dtype in self._variables
        ]

    def write(self, values: list[Any]) -> None:
        """Assign values."""
        for (handle, dtype), value in zip(self._variables, values, strict=True):
            tf.raw_ops.AssignVariableOp(resource=handle, value=tf.constant(value, dtype))


class _Verifier:
    """Runs steps both as the graph and compiled, from the same state, and compares."""

    def __init__(
        self, graph_call: Call, launch: Call, state: _State, names: list[str], tolerance: float
    ) -> None:
        self._graph_call, self._launch, self._state = graph_call, launch, state
        self._names, self._tolerance = names, tolerance

    def run(self, tensors: list[tf.Tensor]) -> tuple[Iterable[tf.Tensor], str | None]:
        """Return the results of the graph, whose state stays, and the difference, or None."""
        before = self._state.read()
        _, compiled = self._step(partial(_run, self._launch), tensors)
        self._state.write(before)
        results, graph = self._step(self._graph_call, tensors)
        found = self._compare(compiled, graph, graph)
        if found:
            # An optimizer such as Adam divides a gradient by its size, so that rounding errors
            # decide on the update where a gradient is 0. Such results change with the input, too.
            after = self._state.read()
            noise = np.random.default_rng(0)
            size = self._tolerance / 1000
            self._state.write([_disturb(one, size, noise) for one in before])
            inputs = [tf.constant(_disturb(one.numpy(), size, noise), one.dtype) for one in tensors]
            _, disturbed = self._step(self._graph_call, inputs)
            self._state.write(after)
            found = self._compare(compiled, graph, disturbed)
        if not found:
            return results, None
        names = ", ".join(self._names[index] for index in found[:3])
        return results, f"the compiled step computes other values of {names} than the graph"

    def every(self, count: int) -> Call:
        """Return what runs compiled steps, of which each one in `count` is verified."""
        numbers = itertools.count(1)

        def call(tensors: list[tf.Tensor]) -> Iterable[tf.Tensor]:
            if next(numbers) % count:
                return self._launch(tensors)
            results, difference = self.run(tensors)
            if difference is not None:
                raise RuntimeError(f"Verifying each step in {count}: {difference}.")
            return results

        return call

    def _compare(self, compiled: list[Any], graph: list[Any], disturbed: list[Any]) -> list[int]:
        """Return the indices of values that differ by more than those of a disturbed step."""
        values = zip(compiled, graph, disturbed, strict=True)
        return [i for i, each in enumerate(values) if _differs(*each, self._tolerance)]

    def _step(self, call: Call, tensors: list[tf.Tensor]) -> tuple[list[tf.Tensor], list[Any]]:
        """Run a step; return its results, and the values of these and of the variables after it."""
        results = list(call(tensors))
        return results, [one.numpy() for one in results] + self._state.read()


def _differs(found: Any, wanted: Any, disturbed: Any, tolerance: float) -> bool:
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return True
    if not _is_inexact(wanted):
        return not np.array_equal(found, wanted)
    found, wanted, disturbed = _wide(found), _wide(wanted), _wide(disturbed)
    finite = np.isfinite(wanted)
    if not np.array_equal(found[~finite], wanted[~finite], equal_nan=True):
        return True
    slack = np.abs(disturbed[finite] - wanted[finite])
    allowed = tolerance * np.max(np.abs(wanted[finite]), initial=0.0) + _SMALLEST
    allowed += 4 * np.max(slack[np.isfinite(slack)], initial=0.0)
    return not np.all(np.abs(found[finite] - wanted[finite]) <= allowed)


def _disturb(value: Any, size: float, noise: np.random.Generator) -> Any:
    """Return a floating-point value with relative errors of the size of rounding errors."""
    if not _is_inexact(value):
        return value
    return (_wide(value) * (1 + size * noise.standard_normal(value.shape))).astype(value.dtype)


def _tolerance(concrete: Any) -> float:
    operations = concrete.graph.get_operations()
    types = {one.dtype.name for operation in operations for one in operation.outputs}
    return max((_TOLERANCES[name] for name in types if name in _TOLERANCES), default=1e-3)


def _is_inexact(value: Any) -> bool:
    return bool(tf.dtypes.as_dtype(value.dtype).is_floating or value.dtype.kind == "c")


def _wide(value: Any) -> Any:
    return value.astype("complex128" if value.dtype.kind == "c" else "float64")
