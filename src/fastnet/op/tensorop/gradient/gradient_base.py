"""The base class of ops that compute gradients."""

from __future__ import annotations

from typing import Any

from fastnet.op.op import is_overridden
from fastnet.op.tensorop.tensorop import TensorOp
from fastnet.types import Forward, Keys, Names, State


class GradientBase(TensorOp):
    """An op that computes gradients, or prepares tensors for it. Define `make_compute`."""

    def __init__(
        self, inputs: Keys | None, outputs: Keys | None, mode: Names = None, ds_id: Names = None
    ) -> None:
        super().__init__(inputs=inputs, outputs=outputs, mode=mode, ds_id=ds_id)
        self.retain_graph = True

    def fe_retain_graph(self, retain: bool | None = None) -> bool | None:
        """Get or set whether the graph is retained for the gradients of a later op."""
        if retain is not None:
            self.retain_graph = retain
        return self.retain_graph

    def bind(self, defer: bool, retain_graph: bool) -> Forward | None:
        """Return the function to call instead of `forward`, or None if that is overridden.

        The network decides `retain_graph`; the op keeps its own setting.
        """
        return None if is_overridden(self, _FORWARD) else self.make_compute(retain_graph)

    def forward(self, data: Any, state: State) -> Any:
        """Return the outputs. In TensorFlow ``state["tape"]`` is the gradient tape."""
        return self.make_compute(self.retain_graph)(data, state)

    def make_compute(self, retain_graph: bool) -> Forward:
        """Return the function of the inputs and the state that does the op's work."""
        raise NotImplementedError(f"{type(self).__name__} must define make_compute.")


# Keep the original function, because users may replace GradientBase.forward.
_FORWARD = GradientBase.forward
