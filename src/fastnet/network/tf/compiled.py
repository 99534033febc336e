"""Traced steps that XLA compiles as a whole, and that are verified when they first run."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from threading import Lock
from typing import Any, TypeVar

import tensorflow as tf

from fastnet._trace import Trace
from fastnet.backend.tf._internals import could_record, shape_of_eager
from fastnet.backend.tf.graph import caller
from fastnet.errors import shorten
from fastnet.network.compile_options import CompileOptions
from fastnet.network.program_limits import MAX_COMPILATIONS
from fastnet.network.tf.input_signature import slots_of
from fastnet.network.tf.products import run_with_loops
from fastnet.network.tf.random_numbers import nodes_drawing_otherwise
from fastnet.network.tf.step_graph import StepGraph
from fastnet.network.tf.verification import Call, Verifier
from fastnet.network.trace_records import report_if_slow

_T = TypeVar("_T")

# Records why something was compiled, how many seconds that took, and why it is not used, or is
# used unverified.
Record = Callable[[str, float, str | None, str | None], None]

# XLA drops these operations, so that nothing would be checked.
_CHECKS = frozenset({"Assert", "CheckNumerics", "CheckNumericsV2"})
# These draw from generators that `tf.random.set_seed` seeds, which XLA ignores.
_RANDOM = ("Multinomial", "ParameterizedTruncatedNormal", "Random", "TruncatedNormal")


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
        if self.options.fallback_random:
            node = next(nodes_drawing_otherwise(concrete.graph.as_graph_def()), None)
            if node is not None:
                user = self.graph.describe(node.name) or "the step"
                return (
                    f"{user} draws random numbers by '{node.op}', which differ in XLA, and "
                    "fallback_random requires those of the graph"
                )
        return None

    def limit(self, signatures: Signatures) -> str | None:
        """Return why no further input signature is compiled, or None."""
        if signatures.count >= self.options.max_programs:
            return f"there are more than {self.options.max_programs} input signatures"
        if self.count >= MAX_COMPILATIONS:
            return f"{MAX_COMPILATIONS} programs were compiled for what runs in this mode"
        return None


class XlaProgram:
    """A traced step that XLA compiles for each input signature when that first comes."""

    def __init__(
        self, compiler: Compiler, concrete: Any, trace: Trace, signatures: Signatures
    ) -> None:
        self._compiler, self._concrete, self._signatures = compiler, concrete, signatures
        self._trace, self._graph_call = trace, trace.call
        self._calls: dict[Any, Call] = {}
        self._compiling = Lock()
        self._compiled: Any = None
        self._launch: Call | None = None
        # Why it was traced, once that is recorded; later compilations are recorded by themselves.
        self.reason: str | None = None
        self.seconds = 0.0
        # Why the latest program is not verified.
        self.unverified: str | None = None
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
        self.unverified, self.fallback = None, self._compiler.limit(self._signatures)
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
            self._compiler.record(reason, self.seconds, self.fallback, self.unverified)
        return self._graph_call(tensors) if results is None else results

    def _begin(self, tensors: list[tf.Tensor]) -> tuple[Call, Iterable[tf.Tensor]]:
        """Run a first step; return what runs the next one, and the results."""
        if self._launch is None:
            self._compiled = _compile(self._concrete)
            # The compiled operations do not know the lines that they come from.
            graph, source = self._compiler.graph, self._concrete.graph
            self._launch = caller(
                self._compiled, lambda error, _: graph.explain(error, source), self._graph_call
            )
        launch, verify = self._launch, self._compiler.options.verify
        if verify is None:
            results = _catch(lambda: launch(tensors))
            self.unverified = "verify=None"
            return launch, results
        keys = [key for key, form in self._trace.outputs.items() for _ in slots_of(form)]
        verifier = Verifier(self._concrete, self._compiled, self._graph_call, keys)
        obstacle = self._find_obstacle(verifier)
        if obstacle is not None:
            results = _catch(lambda: launch(tensors))
            self.unverified = obstacle
            return launch, results
        # XLA compiles in the first call. Another thread may use the variables meanwhile.
        _catch(lambda: verifier.compile(tensors))
        results, self.fallback = verifier.run(tensors)
        if self.fallback is not None:
            return self._graph_call, results
        return launch if verify == "first" else _verify_every(verify, verifier, launch), results

    def _find_obstacle(self, verifier: Verifier) -> str | None:
        node = next(nodes_drawing_otherwise(self._concrete.graph.as_graph_def()), None)
        if node is not None:
            return f"it draws random numbers by '{node.op}', which differ in XLA"
        return verifier.obstacle


def _verify_every(number: int, verifier: Verifier, launch: Call) -> Call:
    """Return a function that runs compiled steps, and verifies each one in a number of them."""
    numbers = itertools.count(1)

    def call(tensors: list[tf.Tensor]) -> Iterable[tf.Tensor]:
        if next(numbers) % number:
            return launch(tensors)
        results, difference = verifier.run(tensors)
        if difference is not None:
            raise RuntimeError(f"Verification failed (verify={number}): {difference}.")
        return results

    return call


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


def _catch(run: Callable[[], _T]) -> _T:
    try:
        return run()
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
