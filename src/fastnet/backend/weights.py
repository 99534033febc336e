"""Saving and loading of the weights of models of any framework."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from fastnet.backend.dispatch import model_framework
from fastnet.backend.files import check_path
from fastnet.backend.model_metadata import get_metadata, name_of, optimizers_of, require_built
from fastnet.types import Model

__all__ = ["load_model", "save_model"]


def save_model(
    model: Model,
    save_dir: str | os.PathLike[str],
    model_name: str | None = None,
    save_optimizer: bool = False,
    save_architecture: bool = False,
) -> str:
    """Save a model's weights. Each file is written atomically.

    Args:
        model: A model from `fastnet.build`.
        save_dir: The folder. It is made if it does not exist.
        model_name: The name of the files. None for the model's name.
        save_optimizer: Whether to save the state of the optimizer beside the weights: with that of
            its scaler (torch), and of every optimizer of a schedule.
        save_architecture: Whether to save the layers beside the weights (TensorFlow only): in a
            folder of the model's name with Keras 2, in a ``.keras`` file with Keras 3.

    Returns:
        The path of the weights file: ``.pt`` in torch, ``.h5`` with Keras 2, and ``.weights.h5``
        with Keras 3.

    Raises:
        AssertionError: If the model does not come from `fastnet.build`, or its optimizer is to be
            saved and it has none.
        ValueError: If the model is of no known framework, or its architecture or the state of its
            optimizer cannot be saved.
        OSError: If a file cannot be written.

    >>> import tempfile, torch, fastnet
    >>> model = fastnet.build(lambda: torch.nn.Linear(2, 1), optimizer_fn="adam", model_name="line")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = save_model(model, folder, save_optimizer=True)
    ...     os.path.basename(path), sorted(os.listdir(folder))
    ('line.pt', ['line.pt', 'line_opt.pt'])
    """
    framework = model_framework(model)
    require_built("save_model", model)
    folder = os.path.normpath(check_path(save_dir, "folder"))
    name = check_path(model_name or name_of(model), "model's file")
    if save_optimizer:
        _require_optimizer(model, "save_model", "save_optimizer")
    stem = os.path.join(folder, name)
    path: str = framework.save_model(model, stem, bool(save_optimizer), bool(save_architecture))
    return path


def load_model(
    model: Model, weights_path: str | os.PathLike[str], load_optimizer: bool = False
) -> None:
    """Load a model's weights. Nothing in the files is executed.

    If loading fails, nothing is changed. Weights of another dtype are converted. torch matches
    weights by name, Keras layers by position. Weights stay trainable or frozen.

    Args:
        model: The model. In torch it may be wrapped (compiled, DataParallel, DDP, FSDP2), and so
            may the model that was saved.
        weights_path: A file that `save_model` or the framework itself has written.
        load_optimizer: Whether to load the state of the optimizer, from the file that `save_model`
            has written beside the weights: for every optimizer of a schedule, if the file has them,
            else for the current one.

    Raises:
        AssertionError: If the state of the optimizer is to be loaded, and the model does not come
            from `fastnet.build`, has no optimizer, or there is no file of it.
        ValueError: If a file is missing or damaged, is of another model or optimizer, or contains
            objects that would have to be executed, or if the model is of no known framework.
        OSError: If a file cannot be read.

    >>> import tempfile, torch, fastnet
    >>> model = fastnet.build(lambda: torch.nn.Linear(2, 1), optimizer_fn="adam")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     load_model(model, save_model(model, folder, save_optimizer=True), load_optimizer=True)
    """
    framework = model_framework(model)
    if load_optimizer:
        require_built("load_model with load_optimizer=True", model)
        _require_optimizer(model, "load_model", "load_optimizer")
    framework.load_model(model, weights_path, bool(load_optimizer))


def _require_optimizer(model: Model, function: str, setting: str) -> None:
    if get_metadata(model, "current_optimizer") is None:
        raise AssertionError(
            f"{function} has {setting}=True, but model '{name_of(model)}' has no optimizer now."
        )


def current_optimizer_index(model: Model) -> int | None:
    """Return the index of the current optimizer in `optimizers_of`, or None."""
    current = get_metadata(model, "current_optimizer")
    for index, optimizer in enumerate(optimizers_of(model)):
        if optimizer is current:
            return index
    return None


def pair_optimizers(
    model: Model, state: Any, scheduled: Sequence[Any], source: str
) -> list[tuple[Any, Any]]:
    """Pair the optimizers of a model with the saved states of a schedule.

    The current one gets the saved current `state` if there is no schedule, or was none.
    """
    optimizers = optimizers_of(model)
    if len(scheduled) < 2 or len(optimizers) < 2:
        return [(get_metadata(model, "current_optimizer"), state)]
    if len(optimizers) != len(scheduled):
        raise ValueError(
            f"{source} is of a schedule of {len(scheduled)} optimizers, where the model's has "
            f"{len(optimizers)}. Use the schedule that was saved, or leave load_optimizer out."
        )
    return list(zip(optimizers, scheduled, strict=True))
