"""Cross entropy, binary, categorical or sparse."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from fastnet.errors import shorten
from fastnet.op.checks import is_int, is_number, require_weights
from fastnet.op.tensorop.loss.class_axis import (
    class_axis,
    form_along,
    has_classes_last,
    lengths,
    shape_problem,
)
from fastnet.op.tensorop.loss.loss import LossOp
from fastnet.op.tensorop.of_framework import OfFramework, WithFramework
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
        axis: The axis of the classes, which may be counted from the end, for a truth of indices
            (of the predictions' shape without it) or a one-hot one. None for the second in torch
            and the last in TensorFlow, with `form` seen from the shapes as told there.
        ignore_index: The index of elements that are left out, of the mean too (sparse only).
        label_smoothing: How much of the truth is spread over all classes, from 0 to 1.

    Raises:
        AssertionError: If `class_weights` is no dict of int to float.
        ValueError: If `form` is none of the three, or it has no use for another setting; in a
            network also if there are not two inputs and one output.

    >>> import torch
    >>> op = CrossEntropy(("p", "t"), "loss", from_logits=True, axis=-1, ignore_index=-1)
    >>> scores = torch.zeros(2, 5, 4)  # (batch, time, classes)
    >>> op.forward([scores, torch.tensor([[0, 1, 2, -1, -1]] * 2)], {})
    tensor(1.3863)
    """

    _binary = OfFramework("losses.binary_crossentropy")
    _categorical = OfFramework("losses.categorical_crossentropy")
    _sparse = OfFramework("losses.sparse_categorical_crossentropy")
    _categorical_along = OfFramework("class_losses.categorical")
    _sparse_along = OfFramework("class_losses.sparse")
    _make_weights = OfFramework("losses.ClassWeights")
    _shape_of = OfFramework("shape_of")
    _has_classes_last = WithFramework(has_classes_last)

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
        mode: str | Iterable[str] | None = "!infer",
        ds_id: str | Iterable[str] | None = None,
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
        # a bare one even where a list of one key was given
        self.out_list = False
        if form is not None and form not in _FORMS:
            raise ValueError(f"CrossEntropy's form is one of {list(_FORMS)} or None, not {form!r}.")
        if class_weights is not None:
            require_weights(self, "class_weights", "class", class_weights)
        for name, value in (("axis", axis), ("ignore_index", ignore_index)):
            if value is not None and not is_int(value):
                raise ValueError(f"CrossEntropy's {name} is an int or None, not {shorten(value)}.")
            if value is not None and form == "binary":
                raise ValueError(_without_classes(name, value))
        if ignore_index is not None and form == "categorical":
            raise ValueError(_without_indices(ignore_index))
        if not is_number(label_smoothing) or not 0 <= label_smoothing <= 1:
            raise ValueError(
                f"CrossEntropy's label_smoothing is a number from 0 to 1, not "
                f"{shorten(label_smoothing)}."
            )
        self.from_logits = from_logits
        self.form = form
        self.class_weights = class_weights
        self.axis = axis
        self.ignore_index = ignore_index
        self.label_smoothing = label_smoothing
        self._weights: Any = class_weights

    def check_keys(self) -> None:
        """Refuse anything but two inputs and one output, when a network is made of the op.

        Raises:
            ValueError: If there are more or fewer.
        """
        self.require_pair()

    def build(self, framework: str, device: torch.device | None = None) -> None:
        """Make of the weights what the framework looks them up in.

        Args:
            framework: "torch" or "tf".
            device: The device that ops run on (torch only).
        """
        super().build(framework, device)
        if self.class_weights:
            self._weights = self._make_weights(self.class_weights)

    def forward(self, data: list[Tensor], state: State) -> Tensor:
        """Compute the loss.

        Args:
            data: Predictions and truth.
            state: The step's context, not used.

        Returns:
            The loss.
        """
        y_pred, y_true = data
        if self.axis is not None or self.ignore_index is not None or self.label_smoothing:
            return self._compare_along(y_pred, y_true)
        form = self.form or self._form_of(y_pred, y_true)
        settings = self.from_logits, self.average_loss, self._weights
        try:
            if form == "binary":
                return self._binary(y_pred, y_true, *settings)
            if form == "categorical":
                return self._categorical(y_pred, y_true, *settings)
            return self._sparse(y_pred, y_true, *settings)
        except Exception as error:
            shapes = lengths(y_pred), lengths(y_true)
            problem = shape_problem(form, *shapes, self.axis, self._has_classes_last(y_pred))
            if problem is None:
                raise
            raise ValueError(problem) from error

    def _compare_along(self, y_pred: Tensor, y_true: Tensor) -> Tensor:
        """Compute the loss by an axis, with labels left out or smoothed."""
        shapes = pred, true = lengths(y_pred), lengths(y_true)
        if pred is None or true is None:
            raise ValueError(
                "CrossEntropy needs to know how many axes predictions and truth have for its axis, "
                "ignore_index and label_smoothing."
            )
        last = self._has_classes_last(y_pred)
        form = self.form
        if form is None:
            form = self._form_of(y_pred, y_true)
            if self.axis is not None:
                form = form_along(pred, true, self.axis)
        problem = shape_problem(form, *shapes, self.axis, last)
        if problem is not None:
            raise ValueError(problem)
        settings = self.from_logits, self.average_loss, self._weights
        smoothing = float(self.label_smoothing)
        if form == "binary":
            if self.ignore_index is not None:
                raise ValueError(_without_classes("ignore_index", self.ignore_index))
            return self._binary(y_pred, y_true, *settings, smoothing)
        axis = class_axis(len(pred), self.axis, last)
        if form == "sparse":
            return self._sparse_along(y_pred, y_true, axis, *settings, self.ignore_index, smoothing)
        if self.ignore_index is not None:
            raise ValueError(_without_indices(self.ignore_index))
        return self._categorical_along(y_pred, y_true, axis, *settings, smoothing)

    def _form_of(self, y_pred: Tensor, y_true: Tensor) -> str:
        shape = self._shape_of(y_pred)
        if len(shape) != 2 or shape[1] <= 1:
            return "binary"
        shape = self._shape_of(y_true)
        return "categorical" if len(shape) == 2 and shape[1] > 1 else "sparse"


def _without_classes(name: str, value: object) -> str:
    return (
        f"CrossEntropy's {name} is of classes, of which the form 'binary' has none, but it is "
        f"{shorten(value)}."
    )


def _without_indices(ignore_index: object) -> str:
    return (
        "CrossEntropy's ignore_index is of a truth of indices, which the form 'categorical' has "
        f"not, but it is {shorten(ignore_index)}."
    )
