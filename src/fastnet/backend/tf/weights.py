"""Weights of Keras models, from files."""

from __future__ import annotations

import os
from typing import Any

__all__ = ["load_weights"]

_ENDINGS = (".h5", ".hdf5", ".keras")


def load_weights(model: Any, path: str | os.PathLike[str]) -> None:
    """Fill a model with the weights of a file.

    Args:
        model: The model. Its layers must have their variables: it has an input shape, or has run.
        path: A file of weights (``.weights.h5``, ``.h5``) or of a whole model (``.keras``, ``.h5``)
            that Keras has written. Only the numbers in it are read: no layer is made from it, and
            nothing in it is executed.

    Raises:
        ValueError: If the file does not exist, is not a weights file or is damaged, or holds the
            weights of another model, or if the model has no variables yet.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise ValueError(
            f"A weights path is a string, or None for no weights, not {path!r} of type "
            f"{type(path).__name__}."
        )
    name = os.fspath(path)
    if not os.path.isfile(name):
        raise ValueError(
            f"There is no weights file '{name}'. Check the path, or leave weights_path out."
        )
    if not name.endswith(_ENDINGS):
        raise ValueError(
            f"The weights file '{name}' ends with none of {list(_ENDINGS)}. Save it anew with "
            "model.save_weights('name.weights.h5')."
        )
    if not model.built:
        raise ValueError(
            f"The weights file '{name}' cannot be loaded: {type(model).__name__} has no variables "
            "before it knows the shape of its input. Give it an Input, or call its build(shape), "
            "in model_fn."
        )
    own = [tuple(weight.shape) for weight in model.weights]
    before = [weight.numpy() for weight in model.weights]
    try:
        model.load_weights(name)
    except Exception as error:  # what is wrong with a file shows in a dozen ways
        for weight, value in zip(model.weights, before, strict=True):
            weight.assign(value)
        first_line = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"The weights file '{name}' is damaged, or of another model than "
            f"{type(model).__name__}, whose weights have the shapes {_some(own)}: "
            f"{type(error).__name__}: {first_line}"
        ) from error


def _some(shapes: list[tuple[int, ...]]) -> str:
    shown = ", ".join(map(str, shapes[:4]))
    return shown if len(shapes) <= 4 else f"{shown} and {len(shapes) - 4} more"
