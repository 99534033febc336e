"""The base class of numpy ops that apply the same function to each input."""

from __future__ import annotations

from typing import Any

from fastnet.op.numpyop.numpyop import NumpyOp
from fastnet.types import Keys, Names

__all__ = ["PerArray"]


class PerArray(NumpyOp):
    """A numpy op that applies the same function to each input. Derive from it and define `apply`.

    Its `forward` takes and returns lists. See `NumpyOp` for `mode` and `ds_id`.

    Args:
        inputs: The key or keys to read.
        outputs: The key or keys to write, as many.

    Raises:
        ValueError: In a network, if there is no input, or the number of outputs differs.
    """

    n_inputs = "+"
    n_outputs = "same"

    def __init__(
        self, inputs: Keys, outputs: Keys, mode: Names = None, ds_id: Names = None
    ) -> None:
        super().__init__(inputs=inputs, outputs=outputs, mode=mode, ds_id=ds_id)
        self.in_list = self.out_list = True

    def apply(self, data: Any) -> Any:
        """Return the output for one input of one sample."""
        raise NotImplementedError(f"{type(self).__name__} must define apply.")

    def forward(self, data: list[Any], state: dict[str, Any]) -> list[Any]:
        """Apply the function to each input."""
        return [self.apply(each) for each in data]
