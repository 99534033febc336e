"""Values that gradients are taken by."""

from __future__ import annotations

from collections.abc import Iterable

from fastnet.op.tensorop.gradient.taker import GradientTaker
from fastnet.op.tensorop.of_framework import OfFramework
from fastnet.types import Forward, State, Tensor


class Watch(GradientTaker):
    """Makes gradients by values possible that are no weights, such as a batch's images.

    Args:
        inputs: Key(s) of the values.
        mode: Mode(s) to run in; "!mode" for all but one; None for all.
        ds_id: Dataset id(s) to run on; "!id" for all but one; None for all.

    Raises:
        ValueError: In a network, if there is no input.

    >>> import torch
    >>> Watch("x").forward([torch.ones(2)], {"tape": None})
    [tensor([1., 1.], requires_grad=True)]
    """

    _watch = OfFramework("gradients.watch")

    def __init__(
        self,
        inputs: str | Iterable[str] | None,
        mode: str | Iterable[str] | None = None,
        ds_id: str | Iterable[str] | None = None,
    ) -> None:
        super().__init__(inputs=inputs, outputs=inputs, mode=mode, ds_id=ds_id)
        self.in_list = self.out_list = True

    def check_keys(self) -> None:
        """Refuse no input, when a network is made of the op.

        Raises:
            ValueError: If those are what it has.
        """
        if not self.inputs:
            raise ValueError("Watch has nothing to watch: give it the key of a tensor.")

    def make_take(self, retain_graph: bool) -> Forward:
        """Return the function that watches the inputs.

        Args:
            retain_graph: Not used: nothing is differentiated here.

        Returns:
            What takes the values and the step's context, and gives the values to go on with.
        """
        watch = self._watch

        def take(data: list[Tensor], state: State) -> list[Tensor]:
            tape = state.get("tape")
            return [watch(tensor, tape) for tensor in data]

        return take
