"""Programs whose runs are resumed, written once for both frameworks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fastnet
from fastnet.op.tensorop.loss import MeanSquaredError
from fastnet.op.tensorop.model import ModelOp, UpdateOp


class Resumable:
    """A network and its model, and what happens before each step of a run.

    Args:
        optimizer_fn: Makes the optimizer of the model.
        ops: Makes further ops, which run before the model.
        before: Called before each step with the model and the number of the step.
        settings: Settings of the UpdateOp.
    """

    def __init__(
        self,
        optimizer_fn: Any,
        ops: Callable[[], list[Any]] = list,
        before: Callable[[Any, int], object] = lambda model, step: None,
        **settings: Any,
    ) -> None:
        self.model = fastnet.build(self.make_model, optimizer_fn, model_name="line")
        self.before = before
        self.network = fastnet.Network(
            [
                *ops(),
                ModelOp(self.model, "x", "y"),
                MeanSquaredError(("y", "t"), "loss"),
                UpdateOp(self.model, "loss", **settings),
            ]
        )

    def make_model(self) -> Any:
        """Make a model of 4 inputs and 1 output."""
        raise NotImplementedError

    def make_inputs(self, step: int) -> Any:
        """Make inputs of shape (6, 4) that depend on the step only."""
        raise NotImplementedError

    def train(self, steps: range) -> None:
        """Run steps, each in a context of its own."""
        for step in steps:
            self.before(self.model, step)
            x = self.make_inputs(step)
            self.network.transform({"x": x, "t": x.sum(1, keepdims=True)}, "train")
