"""Cross-entropy: binary, categorical or sparse."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastnet.errors import shorten
from fastnet.op.checks import is_int, is_number, require_weights
from fastnet.op.tensorop.loss.class_axis import class_axis, form_along, shape_of, shape_problem
from fastnet.op.tensorop.loss.loss import PairLoss
from fastnet.types import Names, State, Tensor

if TYPE_CHECKING:
    import torch

_FORMS = ("binary", "categorical", "sparse")


class CrossEntropy(PairLoss):
    """Binary, categorical or sparse categorical cross-entropy: ``-sum(y_true * log(y_pred))``.

    The loss is computed in the dtype of the predictions, in torch's mixed precision in float32. See
    `TensorOp` for `mode` and `ds_id`.

    Args:
        inputs: Two keys: predictions, shape (batch, classes, ...) in torch and (batch, ...,
            classes) in TensorFlow, or (batch, 1); and targets: class indices of shape (batch, ...),
            one-hot targets of the predictions' shape, or binary targets. The order matters: where
            both have the same shape, swapped keys are not an error, but another loss.
        outputs: Key of the loss: a scalar. Without averaging, shape (batch,) in the binary form,
            otherwise the predictions' shape without the class axis.
        from_logits: Whether the predictions are logits rather than probabilities.
        average_loss: Whether to return the mean of all losses. If False, they are returned in the
            shape that `outputs` describes.
        form: "binary", "categorical" (one-hot targets) or "sparse" (class indices). None to decide
            by the shapes: for predictions of shape (batch, classes) with several classes it is
            "categorical" if the targets have such a shape too, otherwise "sparse"; for all other
            predictions "binary". A binary loss of class indices above 1 is an error only where
            shapes or `class_weights` show it: no step reads its targets.
        class_weights: Weights by class index; 1 for other classes. The loss of each element is
            multiplied by the weight of its class, and the mean is over the batch, as in
            FastEstimator; in torch it is divided by the sum of the weights.
        axis: The axis of the classes, which may be negative. None for axis 1 in torch and the last
            in TensorFlow, and to decide `form` as described there.
        ignore_index: The class index of elements that do not contribute to the loss, nor to its
            mean, as in torch (sparse only). If all elements are ignored, the mean is NaN in torch
            and 0 in TensorFlow. None to ignore no index: then -100, which torch ignores by
            default, is an error like any other index that no class has.
        label_smoothing: The share of the targets that is distributed over all classes, from 0 to 1,
            as in torch, except that `class_weights` weight the whole loss of an element.

    Raises:
        AssertionError: If `class_weights` is not a dict of int to a number.
        ValueError: If `form` is unknown, or does not support another argument.

    >>> import torch
    >>> op = CrossEntropy(("y_pred", "y"), "loss", from_logits=True, axis=-1, ignore_index=-1)
    >>> logits = torch.zeros(2, 5, 4)  # (batch, time, classes)
    >>> op.forward([logits, torch.tensor([[0, 1, 2, -1, -1]] * 2)], {})
    tensor(1.3863)
    """

    resolved_from = (
        "average_loss",
        "from_logits",
        "form",
        "class_weights",
        "axis",
        "ignore_index",
        "label_smoothing",
    )

    def __init__(
        self,
        inputs: tuple[str, str] | list[str],
        outputs: str,
        mode: Names = "!infer",
        ds_id: Names = None,
        from_logits: bool = False,
        average_loss: bool = True,
        form: str | None = None,
        class_weights: dict[int, float] | None = None,
        axis: int | None = None,
        ignore_index: int | None = None,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(
            inputs=inputs, outputs=outputs, mode=mode, ds_id=ds_id, average_loss=average_loss
        )
        if form is not None and form not in _FORMS:
            raise ValueError(
                f"CrossEntropy's form must be one of {list(_FORMS)} or None, not {form!r}."
            )
        if class_weights is not None:
            require_weights(self, "class_weights", "class", class_weights)
        for name, value in (("axis", axis), ("ignore_index", ignore_index)):
            if value is not None and not is_int(value):
                raise ValueError(
                    f"CrossEntropy's {name} must be an int or None, not {shorten(value)}."
                )
        if axis is not None and form == "binary":
            raise _unsupported("axis", axis, form)
        if ignore_index is not None and form in ("binary", "categorical"):
            raise _unsupported("ignore_index", ignore_index, form)
        if not is_number(label_smoothing) or not 0 <= label_smoothing <= 1:
            raise ValueError(
                f"CrossEntropy's label_smoothing must be a number from 0 to 1, not "
                f"{shorten(label_smoothing)}."
            )
        self.from_logits = from_logits
        self.form = form
        self.class_weights = class_weights
        self.axis = axis
        self.ignore_index = ignore_index
        self.label_smoothing = label_smoothing
        self._weights: Any = class_weights

    def build(self, framework: str, device: torch.device | None = None) -> None:
        """Prepare the class weights; see `TensorOp.build`."""
        super().build(framework, device)
        if self.class_weights:
            self._weights = self.backend.ClassWeights(self.class_weights)

    def forward(self, data: list[Tensor], state: State) -> Tensor:
        """Return the loss."""
        y_pred, y_true = data
        if self.axis is not None or self.ignore_index is not None or self.label_smoothing:
            return self._forward_along_axis(y_pred, y_true)
        form = self.form or self._infer_form(y_pred, y_true)
        options = self.from_logits, self.average_loss, self._weights
        try:
            if form == "binary":
                return self.backend.binary_crossentropy(y_pred, y_true, *options)
            if form == "categorical":
                return self.backend.categorical_crossentropy(y_pred, y_true, *options)
            return self.backend.sparse_categorical_crossentropy(y_pred, y_true, *options)
        except Exception as error:
            problem = shape_problem(
                form, shape_of(y_pred), shape_of(y_true), None, self._has_classes_last(y_pred)
            )
            if problem is None:
                raise
            raise ValueError(problem) from error

    def _forward_along_axis(self, y_pred: Tensor, y_true: Tensor) -> Tensor:
        """Return the loss along an axis, with ignored or smoothed targets."""
        pred, true = shape_of(y_pred), shape_of(y_true)
        if pred is None or true is None:
            raise ValueError(
                "CrossEntropy's axis, ignore_index and label_smoothing need predictions and "
                "targets of a known number of axes."
            )
        form = self.form
        if form is None:
            if self.axis is not None:
                form = form_along(pred, true, self.axis)
            else:
                form = self._infer_form(y_pred, y_true)
        # numpy has no such losses: an array raises an error here.
        classes_last = self._backend_of(y_pred, "ClassWeights").CHANNEL_AXIS == -1
        problem = shape_problem(form, pred, true, self.axis, classes_last)
        if problem is not None:
            raise ValueError(problem)
        if self.ignore_index is not None and form != "sparse":
            raise _unsupported("ignore_index", self.ignore_index, form)
        options = self.from_logits, self.average_loss, self._weights
        smoothing = float(self.label_smoothing)
        if form == "binary":
            return self.backend.binary_crossentropy(y_pred, y_true, *options, smoothing)
        axis = class_axis(len(pred), self.axis, classes_last)
        if form == "sparse":
            return self.backend.sparse_categorical_crossentropy(
                y_pred, y_true, *options, axis, self.ignore_index, smoothing
            )
        return self.backend.categorical_crossentropy(y_pred, y_true, *options, axis, smoothing)

    def _infer_form(self, y_pred: Tensor, y_true: Tensor) -> str:
        pred = self.backend.shape_of(y_pred)
        if len(pred) != 2 or pred[1] <= 1:
            return "binary"
        true = self.backend.shape_of(y_true)
        return "categorical" if len(true) == 2 and true[1] > 1 else "sparse"

    def _has_classes_last(self, y_pred: Tensor) -> bool:
        return bool(self._backend_of(y_pred, "CHANNEL_AXIS").CHANNEL_AXIS == -1)


def _unsupported(name: str, value: object, form: str) -> ValueError:
    return ValueError(
        f"CrossEntropy's {name} is {shorten(value)}, but the form {form!r} does not support it."
    )
