"""What ops share that mix the samples of a batch with each other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastnet.errors import shorten
from fastnet.op.checks import is_number
from fastnet.op.tensorop.tensorop import TensorOp


class Mixer(TensorOp):
    """An op that mixes each sample with the one before it. Derive from it, and define `forward`.

    Args:
        inputs: Two keys: samples and labels.
        outputs: Two keys: the mixed samples and the mixed labels.
        mode: Mode(s) to run in; "!mode" for all but one; None for all.
        ds_id: Dataset id(s) to run on; "!id" for all but one; None for all.
        alpha: Both parameters of the beta distribution that shares are drawn from, more than 0.

    Attributes:
        beta: What to draw shares from instead, by its `sample`; None for the beta distribution.

    Raises:
        AssertionError: If there are not two inputs and two outputs, or `alpha` is not positive.
    """

    def __init__(
        self,
        inputs: Iterable[str],
        outputs: Iterable[str],
        mode: str | Iterable[str] | None = "train",
        ds_id: str | Iterable[str] | None = None,
        alpha: float = 1.0,
    ) -> None:
        super().__init__(inputs=inputs, outputs=outputs, mode=mode, ds_id=ds_id)
        name = type(self).__name__
        if not is_number(alpha) or not alpha > 0:
            raise AssertionError(f"{name}'s alpha is more than 0, not {shorten(alpha)}.")
        if len(self.inputs) != 2 or len(self.outputs) != 2:
            raise AssertionError(
                f"{name} reads and writes two keys, samples and labels, but its inputs are "
                f"{self.inputs} and its outputs {self.outputs}."
            )
        self.alpha = alpha
        self.beta: Any = None
