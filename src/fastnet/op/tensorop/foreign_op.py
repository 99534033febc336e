"""An adapter that gives ops of other libraries the interface of `TensorOp`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastnet.op.op import inner_ops_of
from fastnet.op.tensorop.tensorop import TensorOp
from fastnet.types import Forward, Model, State

if TYPE_CHECKING:
    import torch


class ForeignOp(TensorOp):
    """An op of another library, such as one of FastEstimator's, with the interface of `TensorOp`.

    Args:
        op: The op.
    """

    def __init__(self, op: Any) -> None:
        self.op = op
        self.defer = getattr(op, "defer", None)
        self.merge_grad = getattr(op, "merge_grad", 1)

    def build(self, framework: str, device: torch.device | None = None) -> None:
        """Build the op."""
        if hasattr(self.op, "build"):
            self.op.build(framework=framework, device=device)

    def forward(self, data: Any, state: State) -> Any:
        """Run the op."""
        return self.op.forward(data, state)

    def inner_ops(self) -> list[Any]:
        """List the ops that the op runs."""
        return inner_ops_of(self.op)

    def get_fe_models(self) -> set[Model]:
        """Return the models that the op holds."""
        return self.op.get_fe_models() if hasattr(self.op, "get_fe_models") else set()

    def get_fe_loss_keys(self) -> set[str]:
        """Return the keys of the losses that the op minimizes."""
        return self.op.get_fe_loss_keys() if hasattr(self.op, "get_fe_loss_keys") else set()

    def fe_retain_graph(self, retain: bool | None = None) -> bool | None:
        """Get or set whether the op retains the graph that it differentiates."""
        return self.op.fe_retain_graph(retain) if hasattr(self.op, "fe_retain_graph") else None


def as_tensor_op(op: Any) -> TensorOp:
    """Return an op, in an adapter if it is not derived from `TensorOp`."""
    return op if isinstance(op, TensorOp) else ForeignOp(op)


def takes_gradients(op: Any) -> bool:
    """Return whether an op takes gradients, and so may keep a graph for a later op."""
    return as_tensor_op(op).fe_retain_graph() is not None


def models_and_gradients(op: Any) -> tuple[tuple[Model, ...], bool]:
    """Return the models that an op holds, and whether it takes gradients."""
    return tuple(as_tensor_op(op).get_fe_models()), takes_gradients(op)


def bind_forward(op: Any, defer: bool, retain_graph: bool) -> Forward:
    """Return an op's forward bound to a network's settings; the op's own stay unchanged."""
    adapted = as_tensor_op(op)
    bound = adapted.bind(defer, retain_graph)
    if bound is not None:
        return bound
    sets_defer = defer and adapted.defer is not None

    def forward(data: Any, state: State) -> Any:
        # A forward that a user has defined reads the settings from the op: set them for this call.
        previous_defer = op.defer if sets_defer else None
        previous_retain = adapted.fe_retain_graph()
        try:
            if sets_defer:
                op.defer = True
            if previous_retain is not None:
                adapted.fe_retain_graph(retain_graph)
            return op.forward(data, state)
        finally:
            if sets_defer:
                op.defer = previous_defer
            if previous_retain is not None:
                adapted.fe_retain_graph(previous_retain)

    return forward
