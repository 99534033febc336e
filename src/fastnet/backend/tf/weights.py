"""Weights of Keras models, from files."""

from __future__ import annotations

import math
import os
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from fastnet.backend.files import no_weights_file
from fastnet.backend.tf._keras_internals import INSIDE, is_beside
from fastnet.backend.tf.claims import arrays_in, require_claims_of_weights
from fastnet.backend.tf.models import all_layers
from fastnet.errors import shorten

__all__ = ["kept_variables", "load_weights"]

_ENDINGS = (".h5", ".hdf5", ".keras")
# of files that name arrays by the model's structure; the older ones list layers, which Keras counts
_NAMED = (".weights.h5", ".keras")
# old files list layers, with a few names that Keras gives to the model itself
_NAMES_OF_A_PART = 8


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
            f"A weights path is a string, or None for no weights, not {shorten(path)} of type "
            f"{type(path).__name__}."
        )
    name = os.fspath(path)
    if not os.path.isfile(name):
        raise no_weights_file(name, "Check the path, or leave weights_path out.")
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
    largest = max((math.prod(one.shape) for one in model.weights), default=0)
    parts = len(all_layers(model)) + len(model.weights)
    try:
        require_claims_of_weights(name, INSIDE, largest, _NAMES_OF_A_PART * parts)
        unknown = _unknown_arrays(model, name) if name.endswith(_NAMED) else []
        if not unknown:
            with kept_variables(model.variables):
                model.load_weights(name)
    except Exception as error:  # a damaged file raises errors of many types
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


@contextmanager
def kept_variables(variables: Iterable[Any]) -> Iterator[None]:
    """Restore the values of variables if something fails meanwhile.

    Args:
        variables: The variables.
    """
    before = [(variable, variable.numpy()) for variable in variables]
    try:
        yield
    except BaseException:
        for variable, value in before:
            variable.assign(value)
        raise


def _unknown_arrays(model: Any, path: str) -> list[str]:
    """List what a file holds and the model does not; Keras itself would pass over it in silence."""
    if path.endswith(".keras"):
        with zipfile.ZipFile(path) as archive, archive.open(INSIDE) as file:
            names = arrays_in(file)
    else:
        names = arrays_in(path)
    names = [name for name in names if not is_beside(name)]
    if len(names) <= len(model.weights):
        return []
    # it may be the layers of this model that keep more than their weights
    with tempfile.TemporaryDirectory() as folder:
        own_path = os.path.join(folder, INSIDE)
        model.save_weights(own_path)
        own = set(arrays_in(own_path))
    return [name for name in names if name not in own]


def _some(things: list[Any]) -> str:
    shown = ", ".join(map(str, things[:4]))
    return shown if len(things) <= 4 else f"{shown} and {len(things) - 4} more"
