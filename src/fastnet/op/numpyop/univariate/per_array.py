"""The base class of numpy ops that apply the same function to each input."""

from __future__ import annotations

from fastnet.op.numpyop.numpyop import NumpyOp
from fastnet.op.op import PerInput


class PerArray(PerInput, NumpyOp):
    """A numpy op that applies the same function to each input. Derive from it and define `apply`.

    Its `forward` takes and returns lists. See `NumpyOp` for `mode` and `ds_id`.

    Args:
        inputs: The key or keys to read.
        outputs: The key or keys to write, as many.

    Raises:
        ValueError: In a network, if there is no input, or the number of outputs differs.
    """
