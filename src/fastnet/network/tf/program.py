"""Traced steps in TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from fastnet._trace import Signature
from fastnet.backend.tf.graph import KIND
from fastnet.network.program_set import Program
from fastnet.network.tf.step_tracer import TracedGraph
from fastnet.network.tf.trace_guard import TraceGuard

# Takes the epoch and the tensors of a batch as a list, and returns the tensors of the outputs.
Call = Callable[[list[tf.Tensor]], Iterable[tf.Tensor]]


class GraphProgram(Program):
    """A step that was traced into a graph.

    Args:
        keys: The keys that ops read from the batch, in the order of the graph's inputs.
        traced: The graph.
        call: Runs the graph.
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
        keys: Sequence[str],
        traced: TracedGraph,
        call: Call,
        guard: TraceGuard,
        reason: str,
        is_general: bool = False,
    ) -> None:
        super().__init__(Signature(keys, KIND, traced.inputs, traced.outputs))
        self.is_general = is_general
        self.guard = guard
        self.reason = reason
        self.fallback: str | None = None
        self._call = call

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
