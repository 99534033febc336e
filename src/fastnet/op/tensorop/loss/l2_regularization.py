"""The size of a model's weights, as a loss."""

from __future__ import annotations

from collections.abc import Iterable

from fastnet import backend
from fastnet.backend.framework import framework_of
from fastnet.op.tensorop.tensorop import TensorOp
from fastnet.types import Model, State, Tensor


class L2Regularization(TensorOp):
    """Adds half the squares of a model's trained weights to a loss.

    Args:
        inputs: The key of the loss.
        outputs: The key for the sum.
        model: The model.
        mode: Mode(s) to run in; "!mode" for all but one; None for all.
        beta: What to multiply the squares by.

    Raises:
        ValueError: If there are not one input and one output, or `model` is no model.
    """

    def __init__(
        self,
        inputs: str,
        outputs: str,
        model: Model,
        mode: str | Iterable[str] | None = None,
        beta: float = 0.01,
    ) -> None:
        super().__init__(inputs=inputs, outputs=outputs, mode=mode)
        name = type(self).__name__
        if len(self.inputs) != 1 or len(self.outputs) != 1:
            raise ValueError(
                f"{name} reads one loss and writes one, but its inputs are {self.inputs} and its "
                f"outputs {self.outputs}."
            )
        if framework_of(model) is None:
            raise ValueError(
                f"{name}'s model is a torch.nn.Module or a Keras model, not {type(model).__name__}."
            )
        self.in_list = self.out_list = False
        self.model = model
        self.beta = beta

    def forward(self, data: Tensor, state: State) -> Tensor:
        """Add the squares.

        Args:
            data: The loss.
            state: The step's context, not used.

        Returns:
            The loss and the squares.
        """
        return backend.l2_regularization(self.model, self.beta) + data


class L2Regularizaton(L2Regularization):
    """The same, in FastEstimator's spelling."""
