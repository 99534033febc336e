"""Weights of Keras models, from files."""

from __future__ import annotations

import os
import tempfile
import zipfile
from typing import IO, Any

__all__ = ["load_weights"]

_ENDINGS = (".h5", ".hdf5", ".keras")
# of files that name arrays by the model's structure; the older ones list layers, which Keras counts
_NAMED = (".weights.h5", ".keras")
_INSIDE = "model.weights.h5"
# what Keras saves along with a model; which of it depends on what the program had made of the model
_BESIDE = ("optimizer", "metric", "seed_generator")


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
    before = [variable.numpy() for variable in model.variables]
    try:
        unknown = _unknown_arrays(model, name) if name.endswith(_NAMED) else []
        if not unknown:
            model.load_weights(name)
    except Exception as error:  # what is wrong with a file shows in a dozen ways
        for variable, value in zip(model.variables, before, strict=True):
            variable.assign(value)
        reason = " ".join(str(error).split())
        own = [tuple(weight.shape) for weight in model.weights]
        raise ValueError(
            f"The weights file '{name}' is damaged, or of another model than "
            f"{type(model).__name__}, whose weights have the shapes {_some(own)}: "
            f"{type(error).__name__}: {reason[:400]}"
        ) from error
    if unknown:
        raise ValueError(
            f"The weights file '{name}' is of another model than {type(model).__name__}: it has "
            f"{_some(list(map(repr, unknown)))}, which the model has not. Load it into the model "
            "that it was saved from."
        )


def _unknown_arrays(model: Any, path: str) -> list[str]:
    """List what a file holds and the model does not; Keras itself would pass over it in silence."""
    if path.endswith(".keras"):
        with zipfile.ZipFile(path) as archive, archive.open(_INSIDE) as file:
            names = _array_names(file)
    else:
        names = _array_names(path)
    if len(names) <= len(model.weights):
        return []
    # it may be the layers of this model that keep more than their weights
    with tempfile.TemporaryDirectory() as folder:
        own_path = os.path.join(folder, _INSIDE)
        model.save_weights(own_path)
        own = set(_array_names(own_path))
    return [name for name in names if name not in own]


def _array_names(file: str | IO[bytes]) -> list[str]:
    import h5py

    names: list[str] = []

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and not any(word in name for word in _BESIDE):
            names.append(name)

    with h5py.File(file, "r") as opened:
        opened.visititems(visit)
    return names


def _some(things: list[Any]) -> str:
    shown = ", ".join(map(str, things[:4]))
    return shown if len(things) <= 4 else f"{shown} and {len(things) - 4} more"
