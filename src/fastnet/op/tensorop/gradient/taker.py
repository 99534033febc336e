"""What ops share that take gradients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastnet.op.op import is_overridden
from fastnet.op.tensorop.of_framework import OfFramework
from fastnet.op.tensorop.tensorop import TensorOp
from fastnet.types import Forward, State


class GradientTaker(TensorOp):
    """An op that takes gradients, or makes that possible. Derive from it; define `make_take`.

    Args:
        inputs: Key(s) to read.
        outputs: Key(s) to write.
        mode: Mode(s) to run in; "!mode" for all but one; None for all.
        ds_id: Dataset id(s) to run on; "!id" for all but one; None for all.
    """

    _gradient = OfFramework("taking.take")

    def __init__(
        self,
        inputs: str | Iterable[str] | None,
        outputs: str | Iterable[str] | None,
        mode: str | Iterable[str] | None = None,
        ds_id: str | Iterable[str] | None = None,
    ) -> None:
        super().__init__(inputs=inputs, outputs=outputs, mode=mode, ds_id=ds_id)
        self.retain_graph = True

    def fe_retain_graph(self, retain: bool | None = None) -> bool | None:
        """Read, or set, whether the graph is kept for a later op's gradients.

        Args:
            retain: The new setting, or None to leave it.

        Returns:
            The setting.
        """
        if retain is not None:
            self.retain_graph = retain
        return self.retain_graph

    def bind(self, defer: bool, retain_graph: bool) -> Forward | None:
        """Return a forward with the settings that a network has for the op, which keeps its own.

        Args:
            defer: Not used: the op updates nothing.
            retain_graph: Whether a later op takes gradients of the same graph.

        Returns:
            What to call instead of `forward`, or None where that was overridden, be it by a derived
            class, in the class itself, or on this op.
        """
        if is_overridden(self, _FORWARD):
            return None
        return self.make_take(retain_graph)

    def forward(self, data: Any, state: State) -> Any:
        """Do the op's work.

        Args:
            data: The value of the input, or a list of values.
            state: The step's context; in TensorFlow with the tape.

        Returns:
            The value of the output, or a list of values.
        """
        return self.make_take(self.retain_graph)(data, state)

    def make_take(self, retain_graph: bool) -> Forward:
        """Settle what does the op's work.

        Args:
            retain_graph: Whether a later op takes gradients of the same graph.

        Returns:
            Like `forward`, it takes the values of the inputs and the step's context, and returns
            the values of the outputs.
        """
        raise NotImplementedError(f"{type(self).__name__} must define make_take.")


# as it is here, whatever is put into its place
_FORWARD = GradientTaker.forward
