"""The size of a model's weights, as a loss."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastnet.backend.framework import framework_of
from fastnet.errors import shorten
from fastnet.frameworks import part_of
from fastnet.op.checks import is_number
from fastnet.op.tensorop.model.held_model import HoldsModel
from fastnet.types import Model, State, Tensor


class L2Regularization(HoldsModel):
    """Adds half the squares of a model's trained weights to a loss.

    Args:
        inputs: The key of the loss.
        outputs: The key for the sum, of the wider type of the loss and the weights.
        model: The model.
        mode: Mode(s) to run in; "!mode" for all but one; None for all.
        beta: What to multiply the squares by.

    Raises:
        ValueError: If `model` is no model; in a network also if there are not one input and one
            output.
    """

    resolved_from = ("model", "beta")

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
        framework = framework_of(model)
        if framework is None:
            raise ValueError(
                f"{name}'s model is a torch.nn.Module or a Keras model, not {type(model).__name__}."
            )
        if not is_number(beta):
            raise ValueError(f"{name}'s beta is a number, not {shorten(beta)}.")
        self.in_list = self.out_list = False
        self.model = model
        self.beta = beta
        self._add_squares: Any = part_of(framework, "models.SquaredWeights", name)(model)

    def check_keys(self) -> None:
        """Refuse other than one input and one output, when a network is made of the op.

        Raises:
            ValueError: If those are what it has.
        """
        if len(self.inputs) != 1 or len(self.outputs) != 1:
            raise ValueError(
                f"{type(self).__name__} reads one loss and writes one, but its inputs are "
                f"{self.inputs} and its outputs {self.outputs}."
            )

    def forward(self, data: Tensor, state: State) -> Tensor:
        """Add the squares.

        Args:
            data: The loss.
            state: The step's context.

        Returns:
            The loss and the squares.
        """
        return self._add_squares(data, self.beta, state)


class L2Regularizaton(L2Regularization):
    """The same, in FastEstimator's spelling."""
