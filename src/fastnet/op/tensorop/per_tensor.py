"""What ops share that do the same to each of their inputs."""

from __future__ import annotations

from collections.abc import Iterable

from fastnet.op.tensorop.tensorop import TensorOp
from fastnet.types import State, Tensor


class PerTensor(TensorOp):
    """An op that writes one output for each input. Derive from it, and define `apply`.

    Args:
        inputs: Key(s) to read.
        outputs: Key(s) to write, as many.
        mode: Mode(s) to run in; "!mode" for all but one; None for all.
        ds_id: Dataset id(s) to run on; "!id" for all but one; None for all.

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

    def apply(self, tensor: Tensor) -> Tensor:
        """Do the op's work on one input.

        Args:
            tensor: The input's value.

        Returns:
            The output's value.
        """
        raise NotImplementedError(f"{type(self).__name__} must define apply.")

    def forward(self, data: list[Tensor], state: State) -> list[Tensor]:
        """Do the op's work on each input.

        Args:
            data: The values.
            state: The step's context, not used.

        Returns:
            A value for each output.
        """
        if len(data) == 1:
            return [self.apply(data[0])]
        return [self.apply(tensor) for tensor in data]
