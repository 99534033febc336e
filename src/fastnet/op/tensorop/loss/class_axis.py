"""Which axis is of classes, and what shapes go together along it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from fastnet.types import Tensor

__all__ = ["class_axis", "form_along", "has_classes_last", "lengths", "shape_problem"]

# of each axis the length, None where a graph leaves it open
Shape: TypeAlias = "Sequence[int | None]"


def lengths(tensor: Tensor) -> Shape | None:
    """Read a tensor's shape.

    Args:
        tensor: A tensor of any framework.

    Returns:
        The length of each axis, None for one that a graph leaves open; None altogether if it leaves
        open how many there are, or this is no tensor.
    """
    shape = getattr(tensor, "shape", None)
    return None if shape is None or getattr(shape, "rank", 0) is None else tuple(shape)


def has_classes_last(functions: Any, tensor: Tensor) -> bool:
    """Return whether a framework has its classes last.

    Args:
        functions: The package of its functions.
        tensor: A tensor of it, not used.

    Returns:
        True for the last axis, False for the second one, as in torch.
    """
    return bool(functions.CHANNEL_AXIS == -1)


def class_axis(rank: int, axis: int | None, classes_last: bool) -> int:
    """Count an axis of classes from the front.

    Args:
        rank: How many axes predictions have.
        axis: The axis, None for the framework's own.
        classes_last: Whether that is the last one.

    Returns:
        The axis, which may be none that there is.
    """
    if axis is None:
        return rank - 1 if classes_last else 1
    return axis + rank if axis < 0 else axis


def form_along(pred: Shape, true: Shape, axis: int) -> str:
    """See from shapes whether the truth is one-hot.

    Args:
        pred: The shape of the predictions.
        true: The shape of the truth.
        axis: The axis of the classes.

    Returns:
        "categorical" or "sparse".
    """
    along = class_axis(len(pred), axis, True)
    if len(true) != len(pred) or not 0 < along < len(pred):
        return "sparse"
    return "sparse" if true[along] == 1 != pred[along] else "categorical"


def shape_problem(
    form: str, pred: Shape | None, true: Shape | None, axis: int | None, classes_last: bool
) -> str | None:
    """Word what is wrong with shapes.

    Args:
        form: The form of the cross entropy.
        pred: The shape of the predictions, None if it is not known.
        true: The shape of the truth, likewise.
        axis: The axis of the classes as it was given, None for the framework's own.
        classes_last: Whether that is the last one.

    Returns:
        The text of an error, None if they go together as far as they are known.
    """
    if pred is None or true is None:
        return None
    along = class_axis(len(pred), axis, classes_last)
    if form == "binary":
        wanted = "a truth of as many elements, or the axis of classes as CrossEntropy's axis"
        fits = None in (*pred, *true) or _product(pred) == _product(true)
    elif not 0 < along < len(pred):
        wanted = "an axis of classes behind that of the batch"
        fits = False
    elif form == "categorical":
        wanted = "a truth of the same shape"
        fits = _go_together(pred, true)
    else:
        places = (*pred[:along], *pred[along + 1 :])
        wanted = f"class indices of shape {_text(places)}"
        fits = any(
            _go_together(each, true) for each in (places, (*pred[:along], 1, *pred[along + 1 :]))
        )
    if fits:
        return None
    return (
        f"CrossEntropy cannot compare predictions of shape {_text(pred)} with a truth of shape "
        f"{_text(true)} in the form {form!r} by axis={axis}: it needs {wanted}."
    )


def _go_together(one: Shape, other: Shape) -> bool:
    return len(one) == len(other) and all(
        a == b or a is None or b is None for a, b in zip(one, other, strict=True)
    )


def _product(shape: Shape) -> int:
    product = 1
    for length in shape:
        product *= length or 0
    return product


def _text(shape: Shape) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
