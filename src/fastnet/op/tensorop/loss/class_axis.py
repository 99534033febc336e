"""The axis of the classes, and which shapes of predictions and targets fit together.

The form of a loss is "binary", "sparse" or "categorical"; it is not the form of a value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

# The length of each axis, or None where a graph does not know it.
Shape: TypeAlias = "Sequence[int | None]"


def shape_of(tensor: Any) -> Shape | None:
    """Return the static shape of a tensor, or None for an unknown rank or a value without shape."""
    shape = getattr(tensor, "shape", None)
    # A tf.TensorShape of unknown rank cannot be iterated over.
    if shape is None or getattr(shape, "rank", 0) is None:
        return None
    return tuple(shape)


def class_axis(rank: int, axis: int | None, classes_last: bool) -> int:
    """Return the axis of the classes counted from the front; None is the framework's default."""
    if axis is None:
        return rank - 1 if classes_last else 1
    return axis + rank if axis < 0 else axis


def form_along(pred: Shape, true: Shape, axis: int) -> str:
    """Return "categorical" if targets are one-hot along an axis by their shape, else "sparse"."""
    class_dim = class_axis(len(pred), axis, True)
    if len(true) != len(pred) or not 0 < class_dim < len(pred):
        return "sparse"
    # An axis of length 1 has class indices, except where there is only one class.
    has_indices = true[class_dim] == 1 and pred[class_dim] != 1
    return "sparse" if has_indices else "categorical"


def shape_problem(
    form: str, pred: Shape | None, true: Shape | None, axis: int | None, classes_last: bool
) -> str | None:
    """Return an error text for shapes that do not fit together, or None."""
    if pred is None or true is None:
        return None
    class_dim = class_axis(len(pred), axis, classes_last)
    if form == "binary":
        needed = "targets with as many elements"
        fits = None in (*pred, *true) or math.prod(pred) == math.prod(true)  # type: ignore[arg-type]
        axes = [] if fits else _possible_class_axes(pred, true)
        if axes:
            shown = [str(-1 if index == len(pred) - 1 else index) for index in axes]
            needed += (
                ", or, for class indices, the axis of the classes and no form: "
                f"CrossEntropy(..., axis={shown[0]})"
            )
            needed += "".join(f", or axis={index}" for index in shown[1:])
    elif not 0 < class_dim < len(pred):
        needed = "an axis of classes after the batch axis"
        fits = False
    elif form == "categorical":
        needed = "targets of the same shape"
        fits = _are_compatible(pred, true)
    else:
        before, after = pred[:class_dim], pred[class_dim + 1 :]
        without_classes, with_one_class = (*before, *after), (*before, 1, *after)
        needed = f"class indices of shape {_format(without_classes)}"
        fits = _are_compatible(without_classes, true) or _are_compatible(with_one_class, true)
    if fits:
        return None
    hint = " Its inputs are the predictions, then the targets." if len(true) > len(pred) else ""
    return (
        f"CrossEntropy cannot compare predictions of shape {_format(pred)} with targets of shape "
        f"{_format(true)} in the form {form!r} along axis={axis}: it needs {needed}.{hint}"
    )


def _possible_class_axes(pred: Shape, true: Shape) -> list[int]:
    """List the axes of predictions that targets do not have, or have with length 1."""
    axes = []
    for axis in range(1, len(pred)):
        before, after = pred[:axis], pred[axis + 1 :]
        if tuple(true) in ((*before, *after), (*before, 1, *after)):
            axes.append(axis)
    return axes


def _are_compatible(shape: Shape, other: Shape) -> bool:
    return len(shape) == len(other) and all(
        a == b or a is None or b is None for a, b in zip(shape, other, strict=True)
    )


def _format(shape: Shape) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
