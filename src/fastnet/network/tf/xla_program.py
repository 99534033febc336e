"""Traced steps that XLA compiles as a whole, and that are verified when they first run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from threading import Lock
from time import perf_counter
from typing import Any

import tensorflow as tf

from fastnet.backend.tf._internals import can_detect_tapes
from fastnet.backend.tf.graph import Call, caller, is_recorded
from fastnet.errors import shorten
from fastnet.network.compile_options import CompileOptions
from fastnet.network.step_times import StepTimes
from fastnet.network.tf.forms import specs_of
from fastnet.network.tf.node_names import NodeNames
from fastnet.network.tf.program import GraphProgram
from fastnet.network.tf.random_numbers import nodes_with_other_random_numbers
from fastnet.network.tf.step_tracer import TracedGraph
from fastnet.network.tf.trace_guard import TraceGuard
from fastnet.network.tf.verification import Verifier
from fastnet.network.tf.xla_graph import XlaError, function_for_xla, nodes_of

# XLA drops these operations, so that nothing would be checked.
_CHECKS = frozenset({"Assert", "CheckNumerics", "CheckNumericsV2"})
_MAX_REASONS = 5  # Further reasons are only counted.
# These draw from generators that `tf.random.set_seed` seeds, which XLA ignores.
_RANDOM = ("Multinomial", "ParameterizedTruncatedNormal", "Random", "TruncatedNormal")


class XlaProgram(GraphProgram):
    """A traced step that XLA compiles when it first runs.

    Args:
        keys: See `GraphProgram`.
        names: See `GraphProgram`.
        traced: See `GraphProgram`.
        guard: See `GraphProgram`.
        reason: See `GraphProgram`.
        options: The options for compiling.
        on_times_complete: Called once with the times of its first steps.

    Attributes:
        awaits_compilation: True until it was compiled, or it was decided that it stays a graph.
    """

    is_compiled = True

    def __init__(
        self,
        keys: Sequence[str],
        names: NodeNames,
        traced: TracedGraph,
        guard: TraceGuard,
        reason: str,
        options: CompileOptions,
        on_times_complete: Callable[[StepTimes], None],
    ) -> None:
        super().__init__(keys, names, traced, guard, reason)
        self.awaits_compilation = True
        self._graph_call = self._call
        self._names = names
        self._traced = traced
        self._options = options
        self._on_times_complete = on_times_complete
        self._compile_lock = Lock()

    def run_first(
        self,
        batch: Mapping[str, Any],
        inputs: list[Any],
        refusal: str | None,
        report: AbstractContextManager[None],
    ) -> tuple[dict[str, Any], float]:
        """Compile the step and run it, as a graph as well if it is verified.

        Where it must not or cannot be compiled, or gives other results, it stays a graph, and
        `fallback` has the reason. It is compiled later if a tape or a function of the user records
        this step, if another thread is compiling it, or if the step raises.
        """
        if is_recorded() or not self._compile_lock.acquire(blocking=False):
            return self.signature.merge(self._graph_call(inputs), batch), 0.0
        try:
            if not self.awaits_compilation:  # Another thread has compiled it meanwhile.
                return self.run(batch, inputs), 0.0
            if refusal is not None:
                self._run_as_graph_from_now(refusal)
                return self.run(batch, inputs), 0.0
            started = perf_counter()
            try:
                with report:
                    results = self._compile_and_run(inputs)
            except XlaError as error:
                # If this raises, too, the step is to blame, and not XLA.
                results = self._graph_call(inputs)
                self._run_as_graph_from_now(_describe_error(str(error), self._names.describe))
            seconds = perf_counter() - started
        finally:
            self._compile_lock.release()
        return self.signature.merge(results, batch), seconds

    def _compile_and_run(self, inputs: list[tf.Tensor]) -> Iterable[tf.Tensor]:
        """Compile the step, run it, and let further steps run compiled unless it differs.

        Raises:
            XlaError: If XLA cannot compile it.
        """
        compiled = function_for_xla(self._traced)
        names, graph = self._names, self._traced.concrete.graph
        # The compiled operations do not know the lines that they come from.
        call_compiled = caller(
            compiled, lambda error, _: names.explain(error, graph), self._graph_call
        )
        output_keys = [key for key, form in self.signature.outputs.items() for _ in specs_of(form)]
        verifier = Verifier(self._traced, compiled, self._graph_call, output_keys)
        self.unverified = self._reason_not_to_verify(verifier)
        # XLA compiles in the first call.
        if self.unverified is not None:
            with _xla_errors():
                results = call_compiled(inputs)
        else:
            # XLA compiles before the graph changes the variables, so that an error of XLA is not
            # taken for a difference; and on copies, because another thread may use the variables.
            with _xla_errors():
                verifier.run_on_copies(inputs)
            results, difference = verifier.run(inputs)
            if difference is not None:
                self._run_as_graph_from_now(difference)
                return results
        self._run_compiled_from_now(call_compiled, verifier)
        return results

    def _reason_not_to_verify(self, verifier: Verifier) -> str | None:
        if self._options.verify is None:
            return "verify=None"
        definition = self._traced.concrete.graph.as_graph_def()
        node = next(nodes_with_other_random_numbers(definition), None)
        if node is not None:
            return f"it draws random numbers by '{node.op}', which differ in XLA"
        return verifier.reason_not_to_verify

    def _run_compiled_from_now(self, call_compiled: Call, verifier: Verifier) -> None:
        """Let further steps run compiled.

        Two of them run as graphs, to be timed; with `verify=N`, each N-th is verified.
        """
        verify, call = self._options.verify, self._timed(call_compiled)
        if isinstance(verify, int) and self.unverified is None:
            call = _verify_every(verify, verifier, call)
        self._call = call
        self.awaits_compilation = False

    def _run_as_graph_from_now(self, reason: str) -> None:
        """Run all further steps as a graph."""
        self.fallback = reason
        self.unverified = None
        self.is_compiled = False
        self.awaits_compilation = False

    def _timed(self, call_compiled: Call) -> Call:
        """Return a function that runs compiled steps; it times the first, and two as graphs."""
        times: StepTimes | None = StepTimes()

        def call(inputs: list[tf.Tensor]) -> Iterable[tf.Tensor]:
            nonlocal times
            current_times = times
            if current_times is None or is_recorded():
                return call_compiled(inputs)
            if current_times.awaits_uncompiled:
                return current_times.run_uncompiled(lambda: self._graph_call(inputs))
            started = perf_counter()
            results = call_compiled(inputs)
            current_times.add_compiled(perf_counter() - started)
            if current_times.is_complete:
                times = None
                self._on_times_complete(current_times)
            return results

        return call


def reason_not_to_compile(
    traced: TracedGraph, names: NodeNames, options: CompileOptions, is_replicated: bool
) -> str | None:
    """Return why a traced step cannot be compiled, or None.

    Args:
        traced: The traced step.
        names: Names the ops of nodes.
        options: The options for compiling.
        is_replicated: Whether a strategy runs the steps on several devices.
    """
    reasons = list(
        dict.fromkeys(_reasons_not_to_compile(traced.concrete, names, options, is_replicated))
    )
    if len(reasons) > _MAX_REASONS:
        reasons[_MAX_REASONS:] = [f"and {len(reasons) - _MAX_REASONS} more"]
    return "; ".join(reasons) or None


def _reasons_not_to_compile(
    concrete: Any, names: NodeNames, options: CompileOptions, is_replicated: bool
) -> Iterator[str]:
    if is_replicated:
        yield "a strategy runs the steps on several devices, and XLA compiles for one only"
    if tf.config.list_logical_devices("GPU"):
        yield "there is a GPU, and steps are compiled on the CPU only"
    if not can_detect_tapes():
        yield "this TensorFlow does not say whether a tape records a step, which must be a graph"
    if any(tensor.dtype == tf.string for tensor in concrete.inputs):
        yield "an op reads strings, which XLA does not have"

    def user_of(node: Any) -> str:
        return names.describe(node.name) or "the step"

    for node in nodes_of(concrete):
        if node.op in _CHECKS:
            yield f"{user_of(node)} uses '{node.op}', which XLA leaves out"
        if node.op.startswith(_RANDOM):
            yield f"{user_of(node)} draws random numbers by '{node.op}', whose seed XLA ignores"
    if options.fallback_random:
        for node in nodes_with_other_random_numbers(concrete.graph.as_graph_def()):
            yield (
                f"{user_of(node)} draws random numbers by '{node.op}', which differ in XLA, and "
                "fallback_random requires those of the graph"
            )


def _verify_every(number: int, verifier: Verifier, call_compiled: Call) -> Call:
    """Return a function that runs compiled steps, and verifies every `number`-th."""
    numbers = count(1)

    def call(inputs: list[tf.Tensor]) -> Iterable[tf.Tensor]:
        if is_recorded() or next(numbers) % number:
            return call_compiled(inputs)
        results, difference = verifier.run(inputs)
        if difference is not None:
            raise RuntimeError(f"Verification failed (verify={number}): {difference}.")
        return results

    return call


@contextmanager
def _xla_errors() -> Iterator[None]:
    """Raise errors of TensorFlow as an `XlaError`."""
    try:
        yield
    except tf.errors.OpError as error:
        raise XlaError(str(error)) from error


def _describe_error(text: str, describe: Callable[[str], str | None]) -> str:
    """Say what XLA cannot compile, by the nodes and kernels that its error names."""
    ops = [describe(node) for node in re.findall(r"\{\{node ([^}]*)\}\}", text)]
    where = next(filter(None, ops), "the step")
    kernels = sorted(set(re.findall(r"No registered '(\w+)' OpKernel", text)))
    if kernels:
        return f"XLA cannot compile {where}: it has no kernel for {', '.join(kernels)}"
    words = re.sub(r"\{\{[^}]*\}\}", "", text).split()
    return f"XLA cannot compile {where}: {shorten(' '.join(words))}"
