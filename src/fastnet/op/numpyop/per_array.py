"""What ops share that do the same to each of their inputs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastnet.op.numpyop.numpyop import NumpyOp
from fastnet.types import State

__all__ = ["PerArray"]


class PerArray(NumpyOp):
    """An op that writes one output for each input. Derive from it, and define `apply`.

    Args:
        inputs: The key or keys to read.
        outputs: The key or keys to write, as many.
        mode: The mode or modes to run in: "train", "eval", "test", "infer", or one of these with a
            leading "!" for all the others. None for every mode.
        ds_id: The dataset id or ids to run for, or ids with a leading "!" for all the others. None
            for every dataset.

    Raises:
        ValueError: In a network, if there are not as many outputs as inputs, or none.
    """

    def __init__(
        self,
        inputs: str | Iterable[str],
        outputs: str | Iterable[str],
        mode: str | Iterable[str] | None = None,
        ds_id: str | Iterable[str] | None = None,
    ) -> None:
        super().__init__(inputs=inputs, outputs=outputs, mode=mode, ds_id=ds_id)
        self.in_list = self.out_list = True

    def check_keys(self) -> None:
        """Refuse other than as many outputs as inputs, when a network is made of the op.

        Raises:
            ValueError: If those are what it has.
        """
        if not self.inputs or len(self.inputs) != len(self.outputs):
            raise ValueError(
                f"{type(self).__name__} writes one output for each input, but its inputs are "
                f"{self.inputs} and its outputs {self.outputs}."
            )

    def apply(self, data: Any) -> Any:
        """Do the op's work on one input of one sample.

        Args:
            data: The input's value.

        Returns:
            The output's value.
        """
        raise NotImplementedError(f"{type(self).__name__} must define apply.")

    def forward(self, data: list[Any], state: State) -> list[Any]:
        """Do the op's work on each input.

        Args:
            data: The values.
            state: The context, not used.

        Returns:
            A value for each output.
        """
        return [self.apply(each) for each in data]
