"""Traced steps in TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fastnet._trace import Signature
from fastnet.backend.tf.graph import Call, caller
from fastnet.backend.tf.tensor_adapter import TENSOR_ADAPTER
from fastnet.network.program_set import Program
from fastnet.network.tf.node_names import NodeNames
from fastnet.network.tf.step_tracer import TracedGraph
from fastnet.network.tf.trace_guard import TraceGuard


class GraphProgram(Program):
    """A step that was traced into a graph.

    Args:
        keys: The keys that it reads from a batch, in the order of the forms of its inputs.
        names: Names the ops in errors.
        traced: The graph.
        guard: The ops and models that it was traced from, for all programs of the same state.
        reason: Why it was traced.
        fallback: Why XLA does not compile it although the network compiles; None otherwise.
        has_dynamic_axes: Whether axes are dynamic. A program for static axes is found before it.

    Attributes:
        guard: See above.
        reason: See above.
        awaits_compilation: Whether XLA is still to compile it; False for one that stays a graph.
        fallback: See above.
    """

    is_compiled = False

    def __init__(
        self,
        keys: Sequence[str],
        names: NodeNames,
        traced: TracedGraph,
        guard: TraceGuard,
        reason: str,
        fallback: str | None = None,
        has_dynamic_axes: bool = False,
    ) -> None:
        super().__init__(Signature(keys, TENSOR_ADAPTER, traced.inputs, traced.outputs))
        self.has_dynamic_axes = has_dynamic_axes
        self.guard = guard
        self.reason = reason
        self.awaits_compilation = False
        self.fallback = fallback
        self._call: Call = caller(traced.concrete, names.explain)

    def difference(self) -> str | None:
        """Return what has changed since the program was made, as last compared; see the guard."""
        change = self.guard.cached_change()
        return None if change is None else change.description

    def run(self, batch: Mapping[str, Any], inputs: list[Any]) -> dict[str, Any]:
        """Run a step; see `Program.run`."""
        return self.signature.merge(self._call(inputs), batch)

    def run_first(
        self,
        batch: Mapping[str, Any],
        inputs: list[Any],
        refusal: str | None,
        report: AbstractContextManager[None],
    ) -> tuple[dict[str, Any], float]:
        """Run the first step.

        Args:
            batch: The batch.
            inputs: The epoch and the tensors that `match` has returned for the batch.
            refusal: Why XLA must not compile it; None if it may.
            report: A context around compiling, which reports that it takes long.

        Returns:
            The result, and the seconds that compiling took.
        """
        return self.run(batch, inputs), 0.0
