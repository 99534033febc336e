"""L2 regularization of a model's weights."""

from __future__ import annotations

from fastnet.backend.dispatch import framework_of
from fastnet.errors import shorten
from fastnet.op.checks import is_number
from fastnet.op.tensorop.model.held_model import HoldsModel
from fastnet.types import Model, Names, State, Tensor


class L2Regularization(HoldsModel):
    """Add ``beta / 2`` times the sum of the squared trainable weights of a model to a loss.

    See `TensorOp` for `mode`.

    Args:
        inputs: Key of the loss.
        outputs: Key of the sum, of the wider dtype of the loss and the weights.
        model: The model.
        beta: The coefficient.

    Raises:
        ValueError: If `model` is not a model, or `beta` is not a number.

    >>> import torch
    >>> model = torch.nn.Linear(1, 2, bias=False)
    >>> _ = torch.nn.init.ones_(model.weight)
    >>> op = L2Regularization("loss", "total", model, beta=0.5)
    >>> op.forward(torch.tensor(1.0), {}).item()
    1.5
    """

    n_inputs = 1
    n_outputs = 1
    resolved_from = ("model", "beta")

    def __init__(
        self, inputs: str, outputs: str, model: Model, mode: Names = None, beta: float = 0.01
    ) -> None:
        super().__init__(inputs=inputs, outputs=outputs, mode=mode)
        name = type(self).__name__
        if framework_of(model) is None:
            raise ValueError(
                f"{name}'s model must be a torch.nn.Module or a Keras model, not "
                f"{type(model).__name__}."
            )
        if not is_number(beta):
            raise ValueError(f"{name}'s beta must be a number, not {shorten(beta)}.")
        self.in_list = self.out_list = False
        self.model = model
        self.beta = beta

    def get_fe_models(self) -> set[Model]:
        """Return no model: the op only reads the weights of its model."""
        return set()

    def forward(self, data: Tensor, state: State) -> Tensor:
        """Return the regularized loss."""
        return self.backend.add_l2_regularization(data, self.model, self.beta)


class L2Regularizaton(L2Regularization):
    """`L2Regularization` in FastEstimator's spelling."""
