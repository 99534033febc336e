"""Cross entropy, binary, categorical or sparse."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from fastnet import backend
from fastnet.op.checks import require_weights
from fastnet.op.tensorop.loss.loss import LossOp
from fastnet.types import State, Tensor

if TYPE_CHECKING:
    import torch

_FORMS = ("binary", "categorical", "sparse")


class CrossEntropy(LossOp):
    """Compares predictions with truth, the more surprising the costlier.

    Args:
        inputs: Two keys: predictions, shape (batch, classes, ...) in torch, (batch, ..., classes)
            in TensorFlow, or (batch, 1), and truth, class indices of shape (batch, ...), one-hot of
            the predictions' shape, or yes and no.
        outputs: The key to write the loss under: a scalar, or shape (batch,) without averaging.
        mode: Mode(s) to run in; "!mode" for all but one; None for all.
        ds_id: Dataset id(s) to run on; "!id" for all but one; None for all.
        from_logits: Whether the predictions are logits rather than probabilities.
        average_loss: Whether to write the mean, rather than a loss for each sample.
        form: "binary", "categorical" (truth is one-hot) or "sparse" (truth is indices). None to
            see it from the shapes: predictions of rank 2 with several columns make it categorical
            if the truth is likewise, else sparse; all else is binary.
        class_weights: Weights by class index; a class without one weighs 1.

    Raises:
        AssertionError: If `class_weights` is no dict of int to float.
        ValueError: If there are not two inputs and one output, or `form` is none of the three.
    """

    def __init__(
        self,
        inputs: tuple[str, str] | list[str],
        outputs: str,
        mode: str | Iterable[str] | None = "!infer",
        ds_id: str | Iterable[str] | None = None,
        from_logits: bool = False,
        average_loss: bool = True,
        form: str | None = None,
        class_weights: dict[int, float] | None = None,
    ) -> None:
        super().__init__(
            inputs=inputs, outputs=outputs, mode=mode, ds_id=ds_id, average_loss=average_loss
        )
        self.require_pair()
        if form is not None and form not in _FORMS:
            raise ValueError(f"CrossEntropy's form is one of {list(_FORMS)} or None, not {form!r}.")
        if class_weights is not None:
            require_weights(self, "class_weights", "class", class_weights)
        self.from_logits = from_logits
        self.form = form
        self.class_weights = class_weights
        self._losses: dict[str, Callable[..., Tensor]] = {
            "binary": backend.binary_crossentropy,
            "categorical": backend.categorical_crossentropy,
            "sparse": backend.sparse_categorical_crossentropy,
        }
        self._weights: Any = class_weights
        self._shape_of: Callable[[Tensor], Any] = attrgetter("shape")

    def build(self, framework: str, device: torch.device | None = None) -> None:
        """Pick the framework's functions.

        Args:
            framework: "torch" or "tf".
            device: The device that ops run on (torch only).
        """
        functions = import_module(f"fastnet.backend.{framework}")
        losses = functions.losses
        self._shape_of = functions.shape_of
        self._losses = {
            "binary": losses.binary_crossentropy,
            "categorical": losses.categorical_crossentropy,
            "sparse": losses.sparse_categorical_crossentropy,
        }
        if self.class_weights:
            self._weights = losses.ClassWeights(self.class_weights)

    def forward(self, data: list[Tensor], state: State) -> Tensor:
        """Compute the loss.

        Args:
            data: Predictions and truth.
            state: The step's context, not used.

        Returns:
            The loss.
        """
        y_pred, y_true = data
        compare = self._losses[self.form or self._form_of(y_pred, y_true)]
        return compare(y_pred, y_true, self.from_logits, self.average_loss, self._weights)

    def _form_of(self, y_pred: Tensor, y_true: Tensor) -> str:
        shape = self._shape_of(y_pred)
        if len(shape) != 2 or shape[1] <= 1:
            return "binary"
        shape = self._shape_of(y_true)
        return "categorical" if len(shape) == 2 and shape[1] > 1 else "sparse"
