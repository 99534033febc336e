"""Keras models and their optimizers, to files and back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

from fastnet.backend.files import write_whole
from fastnet.backend.model_metadata import get_metadata, optimizers_of, taken_names
from fastnet.backend.tf import processes
from fastnet.backend.tf.keras_version import is_keras3
from fastnet.backend.tf.optimizer_files import (
    kept_optimizer,
    load_state,
    read_states,
    write_states,
)
from fastnet.backend.tf.weights import load_weights

__all__ = ["load_model", "save_model"]

_NAMED = ".weights.h5"


def save_model(model: Any, stem: str, save_optimizer: bool, save_architecture: bool) -> str:
    """Save a model's weights, and its optimizer's state and its layers beside them.

    Of several workers the first one writes; all of them call this, and find the files there.

    Args:
        model: The model.
        stem: The path of the files, without what they end with.
        save_optimizer: Whether to save the optimizer's state.
        save_architecture: Whether to save the layers.

    Returns:
        The path of the weights file.
    """
    ending = _NAMED if is_keras3(model) else ".h5"
    with _by_one_worker(stem) as place:
        with without_optimizer(model):
            write_whole(f"{place}{ending}", model.save_weights)
            if save_architecture:
                _save_architecture(model, place)
        if save_optimizer:
            write = partial(
                write_states, get_metadata(model, "current_optimizer"), optimizers_of(model)
            )
            write_whole(f"{place}_opt.npz", write)
    return f"{stem}{ending}"


def load_model(model: Any, path: str, load_optimizer: bool) -> None:
    """Load a model's weights, and its optimizers' state. If that fails nothing is changed.

    Args:
        model: The model.
        path: The weights file, which is there.
        load_optimizer: Whether to load the optimizer's state.

    Raises:
        AssertionError: If there is no file of the optimizer's state.
        ValueError: If a file is damaged, of another model or optimizer, or would have to be
            executed.
    """
    # read and checked before anything is changed
    states = _states_beside(model, path) if load_optimizer else []
    with ExitStack() as kept:
        for optimizer, state in states:
            kept.enter_context(kept_optimizer(optimizer))
            load_state(optimizer, state)
        with without_optimizer(model):
            load_weights(model, path)


@contextmanager
def without_optimizer(model: Any) -> Iterator[None]:
    """Hide a model's optimizers from Keras, which would take them for a part of the model.

    Args:
        model: The model.
    """
    attributes = vars(model)
    hidden = {
        name: attributes.pop(name)
        for name in ("current_optimizer", "optimizer")
        # what else a model has under these names is a part of it
        if name in attributes
        and (name not in taken_names(model) or hasattr(attributes[name], "apply_gradients"))
    }
    if "optimizer" in hidden:
        # Keras 2 asks for it when it saves layers
        attributes["optimizer"] = None
    try:
        yield
    finally:
        attributes.update(hidden)


@contextmanager
def _by_one_worker(stem: str) -> Iterator[str]:
    """Let the first of several workers write files.

    The others write copies that are thrown away: what of a model each worker has for itself, as
    Keras 2 has the buffers of BatchNormalization, is read by all of them together.
    """
    if processes.rank() == 0:
        with processes.together("Saving a model"):
            yield stem
        return
    with processes.together("Saving a model"), TemporaryDirectory() as elsewhere:
        yield os.path.join(elsewhere, os.path.basename(stem))


def _save_architecture(model: Any, stem: str) -> None:
    if is_keras3(model):
        write_whole(f"{stem}.keras", model.save)
    else:
        model.save(stem, include_optimizer=False)


def _states_beside(model: Any, path: str) -> list[tuple[Any, Any]]:
    stem = path.removesuffix(_NAMED) if path.endswith(_NAMED) else os.path.splitext(path)[0]
    beside = f"{stem}_opt.npz"
    if os.path.isfile(beside):
        return read_states(
            get_metadata(model, "current_optimizer"), optimizers_of(model), model, beside
        )
    pickled = f"{stem}_opt.pkl"
    if os.path.isfile(pickled):
        raise ValueError(
            f"The optimizer file '{pickled}' is a pickle, as FastEstimator writes it. To read one "
            "can execute anything that is in it, so fastnet does not. Load the weights alone, with "
            "load_optimizer=False, and save both anew with save_optimizer=True."
        )
    raise AssertionError(
        f"There is no optimizer file '{beside}' beside the weights. Leave load_optimizer out, or "
        "save the model with save_optimizer=True."
    )
