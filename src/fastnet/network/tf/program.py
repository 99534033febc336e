"""Traced steps in TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import tensorflow as tf

from fastnet._trace import Signature
from fastnet.backend.tf.graph import KIND, caller
from fastnet.network.program_set import Program
from fastnet.network.tf.step_tracer import StepTracer, TracedGraph
from fastnet.network.tf.trace_guard import TraceGuard

# Takes the epoch and the tensors of a batch as a list, and returns the tensors of the outputs.
Call = Callable[[list[tf.Tensor]], Iterable[tf.Tensor]]


class GraphProgram(Program):
    """A step that was traced into a graph.

    Args:
        tracer: What the step was traced by, which names the ops in errors.
        traced: The graph.
        guard: The ops and models that it was traced from, for all programs of the same state.
        reason: Why it was traced.
        is_general: Whether axes are dynamic. A program for exact lengths is found before it.

    Attributes:
        guard: See above.
        reason: See above.
        fallback: Why XLA does not compile it although the network compiles; None otherwise.
    """

    def __init__(
        self,
        tracer: StepTracer,
        traced: TracedGraph,
        guard: TraceGuard,
        reason: str,
        is_general: bool = False,
    ) -> None:
        super().__init__(Signature(tracer.keys, KIND, traced.inputs, traced.outputs))
        self.is_general = is_general
        self.guard = guard
        self.reason = reason
        self.fallback: str | None = None
        self._call: Call = caller(traced.concrete, tracer.explain)

    def difference(self) -> str | None:
        """Return what has changed since the program was made; it is compared once in a session."""
        change = self.guard.change_in_session()
        return None if change is None else f"{change} has changed"

    def run(self, batch: Mapping[str, Any], inputs: list[Any]) -> dict[str, Any]:
        """Run a step; see `Program.run`."""
        return self.signature.merge(self._call(inputs), batch)

    def run_first(
        self, batch: Mapping[str, Any], inputs: list[Any]
    ) -> tuple[dict[str, Any], float]:
        """Run the first step; return the result, and the seconds that compiling took."""
        return self.run(batch, inputs), 0.0
