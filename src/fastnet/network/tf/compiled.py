"""Traced steps that XLA compiles as a whole, and that are verified when they first run."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from threading import Lock
from typing import Any, TypeVar

import tensorflow as tf

from fastnet.backend.tf.graph import caller, is_recorded
from fastnet.errors import shorten
from fastnet.network.compile_options import CompileOptions
from fastnet.network.step_times import StepTimes
from fastnet.network.tf.input_signature import slots_of
from fastnet.network.tf.products import run_with_loops
from fastnet.network.tf.program import Call, GraphProgram
from fastnet.network.tf.random_numbers import nodes_drawing_otherwise
from fastnet.network.tf.step_tracer import StepTracer, TracedGraph
from fastnet.network.tf.trace_guard import TraceGuard
from fastnet.network.tf.verification import Verifier

_T = TypeVar("_T")

# XLA drops these operations, so that nothing would be checked.
_CHECKS = frozenset({"Assert", "CheckNumerics", "CheckNumericsV2"})
# As many reasons are given at the most.
_MAX_REASONS = 5
# These draw from generators that `tf.random.set_seed` seeds, which XLA ignores.
_RANDOM = ("Multinomial", "ParameterizedTruncatedNormal", "Random", "TruncatedNormal")


def reason_not_to_compile(
    traced: TracedGraph, tracer: StepTracer, options: CompileOptions
) -> str | None:
    """Return why a traced step cannot be compiled, or None.

    Args:
        traced: The traced step.
        tracer: What it was traced by, which names the ops of nodes.
        options: The options for compiling.
    """
    reasons = list(dict.fromkeys(_reasons_not_to_compile(traced.concrete, tracer, options)))
    if len(reasons) > _MAX_REASONS:
        reasons[_MAX_REASONS:] = [f"and {len(reasons) - _MAX_REASONS} more"]
    return "; ".join(reasons) or None


def _reasons_not_to_compile(
    concrete: Any, tracer: StepTracer, options: CompileOptions
) -> Iterator[str]:
    if tracer.is_replicated:
        yield "a strategy runs the steps on several devices, and XLA compiles for one only"
    if tf.config.list_logical_devices("GPU"):
        yield "there is a GPU, and steps are compiled on the CPU only"
    if any(one.dtype == tf.string for one in concrete.inputs):
        yield "an op reads strings, which XLA does not have"

    def user_of(node: Any) -> str:
        return tracer.describe(node.name) or "the step"

    for node in _nodes_of(concrete):
        if node.op in _CHECKS:
            yield f"{user_of(node)} uses '{node.op}', which XLA leaves out"
        if node.op.startswith(_RANDOM):
            yield f"{user_of(node)} draws random numbers by '{node.op}', whose seed XLA ignores"
    if options.fallback_random:
        for node in nodes_drawing_otherwise(concrete.graph.as_graph_def()):
            yield (
                f"{user_of(node)} draws random numbers by '{node.op}', which differ in XLA, and "
                "fallback_random requires those of the graph"
            )


class XlaProgram(GraphProgram):
    """A traced step that XLA compiles when it first runs.

    Args:
        tracer: See `GraphProgram`.
        traced: See `GraphProgram`.
        guard: See `GraphProgram`.
        reason: See `GraphProgram`.
        options: The options for compiling.

    Attributes:
        is_settled: Whether it was compiled, or found not to be compilable.
    """

    def __init__(
        self,
        tracer: StepTracer,
        traced: TracedGraph,
        guard: TraceGuard,
        reason: str,
        options: CompileOptions,
    ) -> None:
        super().__init__(tracer, traced, guard, reason)
        self.is_settled = False
        self._graph_call = self._call
        self._traced = traced
        self._tracer = tracer
        self._options = options
        self._compiling = Lock()

    def run_as_graph(self, batch: Mapping[str, Any], inputs: list[Any]) -> dict[str, Any]:
        """Run a step that is not compiled; see `run`."""
        return self.signature.merge(self._graph_call(inputs), batch)

    def run_first(
        self, batch: Mapping[str, Any], inputs: list[Any]
    ) -> tuple[dict[str, Any], float]:
        """Compile the step and run it, as a graph as well if it is verified.

        Where it cannot be compiled, or gives other results, it stays a graph, and `fallback` has
        the reason. It is compiled later if a tape or a function of the user records this step, if
        another thread is compiling it, or if the step raises.
        """
        if is_recorded() or not self._compiling.acquire(blocking=False):
            return self.run_as_graph(batch, inputs), 0.0
        started = time.perf_counter()
        try:
            results = self._compile_and_call(inputs)
        except _XLAError as error:
            # If this raises, too, the step is to blame, and not XLA.
            results = self._graph_call(inputs)
            self.fallback = _describe_error(str(error), self._tracer.describe)
        finally:
            self._compiling.release()
        self.is_settled = True
        seconds = time.perf_counter() - started
        return self.signature.merge(results, batch), seconds

    def _compile_and_call(self, inputs: list[tf.Tensor]) -> Iterable[tf.Tensor]:
        """Compile the step, and return the results of its first run."""
        compiled = _function_for_xla(self._traced)
        # The compiled operations do not know the lines that they come from.
        tracer, graph = self._tracer, self._traced.concrete.graph
        launch = caller(compiled, lambda error, _: tracer.explain(error, graph), self._graph_call)
        keys = [key for key, form in self.signature.outputs.items() for _ in slots_of(form)]
        verifier = Verifier(self._traced, compiled, self._graph_call, keys)
        verify = self._options.verify
        self.unverified = self._reason_not_to_verify(verifier)
        if self.unverified is not None:
            results = _catch(lambda: launch(inputs))
            self._call = launch
            return results

        # XLA compiles in the first call. Another thread may use the variables meanwhile.
        _catch(lambda: verifier.run_on_copies(inputs))
        results, self.fallback = verifier.run(inputs)
        if self.fallback is not None:
            return results
        if isinstance(verify, int):
            self._call = _verify_every(verify, verifier, launch)
        else:
            self._call = launch
            self.times = StepTimes()
        return results

    def _reason_not_to_verify(self, verifier: Verifier) -> str | None:
        if self._options.verify is None:
            return "verify=None"
        node = next(nodes_drawing_otherwise(self._traced.concrete.graph.as_graph_def()), None)
        if node is not None:
            return f"it draws random numbers by '{node.op}', which differ in XLA"
        return verifier.obstacle


def _verify_every(number: int, verifier: Verifier, launch: Call) -> Call:
    """Return a function that runs compiled steps, and verifies each one in a number of them."""
    numbers = itertools.count(1)

    def call(inputs: list[tf.Tensor]) -> Iterable[tf.Tensor]:
        if is_recorded() or next(numbers) % number:
            return launch(inputs)
        results, difference = verifier.run(inputs)
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


def _function_for_xla(traced: TracedGraph) -> Any:
    """Return a traced step as a function that XLA compiles when it is first called."""
    concrete = traced.concrete
    inputs = concrete.inputs[: len(concrete.inputs) - len(concrete.captured_inputs)]
    specs = [tf.TensorSpec(one.shape, one.dtype) for one in inputs]
    try:
        # The strategy or device of the caller has no part in this.
        with tf.init_scope():
            add_operations = partial(run_with_loops, concrete, traced.results)
            run = tf.function(add_operations, jit_compile=True, autograph=False)
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
