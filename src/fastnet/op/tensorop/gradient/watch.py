"""Values that gradients are taken by."""

from __future__ import annotations

from collections.abc import Iterable

from fastnet import backend
from fastnet.op.tensorop.gradient.taker import GradientTaker
from fastnet.types import State, Tensor


class Watch(GradientTaker):
    """Makes gradients by values possible that are no weights, such as a batch's images.

    Args:
        inputs: Key(s) of the values.
        mode: Mode(s) to run in; "!mode" for all but one; None for all.
        ds_id: Dataset id(s) to run on; "!id" for all but one; None for all.

    Raises:
        ValueError: If there is no input.

    >>> import torch
    >>> Watch("x").forward([torch.ones(2)], {"tape": None})
    [tensor([1., 1.], requires_grad=True)]
    """

    def __init__(
        self,
        inputs: str | Iterable[str] | None,
        mode: str | Iterable[str] | None = None,
        ds_id: str | Iterable[str] | None = None,
    ) -> None:
        super().__init__(inputs=inputs, outputs=inputs, mode=mode, ds_id=ds_id)
        if not self.inputs:
            raise ValueError("Watch has nothing to watch: give it the key of a tensor.")
        self.in_list = self.out_list = True

    def take(self, data: list[Tensor], state: State, retain_graph: bool) -> list[Tensor]:
        """Watch.

        Args:
            data: The values.
            state: The step's context; in TensorFlow with the tape.
            retain_graph: Not used: nothing is differentiated here.

        Returns:
            The values to go on with.
        """
        return [backend.watch(tensor, tape=state.get("tape")) for tensor in data]
