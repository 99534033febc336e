"""Models of any framework, to files and back."""

from __future__ import annotations

import os

from fastnet.backend.files import require_weights_file
from fastnet.backend.model_metadata import get_metadata, name_of
from fastnet.backend.models import module_for, require_built
from fastnet.types import Model

__all__ = ["load_model", "save_model"]


def save_model(
    model: Model,
    save_dir: str | os.PathLike[str],
    model_name: str | None = None,
    save_optimizer: bool = False,
    save_architecture: bool = False,
) -> str:
    """Save a model's weights.

    Each file is written whole, or stays as it was before.

    Args:
        model: A model from `fastnet.build`.
        save_dir: The folder to save into; it is made if it is not there.
        model_name: What the files are called. None for the model's name.
        save_optimizer: Whether to save the state of the current optimizer beside the weights, with
            that of its scaler (torch) and those of the other optimizers of a scheduled one.
        save_architecture: Whether to save the layers beside the weights (TensorFlow only): in a
            folder of the model's name with Keras 2, in a ``.keras`` file with Keras 3.

    Returns:
        The path of the weights file: ``.pt`` in torch, ``.h5`` with Keras 2, and ``.weights.h5``
        with Keras 3.

    Raises:
        AssertionError: If the model does not come from `fastnet.build`, or its optimizer is to be
            saved and it has none.
        ValueError: If the model is of no known framework, or its architecture cannot be saved.
        OSError: If a file cannot be written.

    >>> import tempfile, torch, fastnet
    >>> model = fastnet.build(lambda: torch.nn.Linear(2, 1), optimizer_fn="adam", model_name="line")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = save_model(model, folder, save_optimizer=True)
    ...     os.path.basename(path), sorted(os.listdir(folder))
    ('line.pt', ['line.pt', 'line_opt.pt'])
    """
    saving = module_for(model, "saving")
    require_built(model, "save_model")
    if save_optimizer:
        _require_optimizer(model, "save_model", "save_optimizer")
    stem = os.path.join(os.path.normpath(save_dir), model_name or name_of(model))
    path: str = saving.save_model(model, stem, bool(save_optimizer), bool(save_architecture))
    return path


def load_model(
    model: Model, weights_path: str | os.PathLike[str], load_optimizer: bool = False
) -> None:
    """Load a model's weights. Nothing in the files is executed.

    The files are checked whole before the first of them counts: names, shapes, types, settings that
    an optimizer can have, and sizes that a file really has. If loading fails, nothing is changed.

    Args:
        model: The model. In torch it may be wrapped (by `torch.compile`, or to be spread over
            devices), and so may that have been whose weights are in the file.
        weights_path: A file that `save_model` has written, or the framework itself.
        load_optimizer: Whether to load the state of the model's optimizer as well, from the file
            that `save_model` has put beside the weights: of a scheduled one each gets its own, if
            the file has them, and else the one that is current.

    Raises:
        AssertionError: If the state of the optimizer is to be loaded, and the model does not come
            from `fastnet.build`, has no optimizer, or there is no file of it.
        ValueError: If there is no weights file, if a file is damaged, is of another model or
            optimizer, or holds what would have to be executed, or if the model is of no known
            framework.

    >>> import tempfile, torch, fastnet
    >>> model = fastnet.build(lambda: torch.nn.Linear(2, 1), optimizer_fn="adam")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     load_model(model, save_model(model, folder, save_optimizer=True), load_optimizer=True)
    """
    saving = module_for(model, "saving")
    if load_optimizer:
        require_built(model, "load_model with load_optimizer=True")
        _require_optimizer(model, "load_model", "load_optimizer")
    saving.load_model(model, require_weights_file(weights_path), bool(load_optimizer))


def _require_optimizer(model: Model, function: str, setting: str) -> None:
    if get_metadata(model, "current_optimizer") is None:
        raise AssertionError(
            f"{function} has {setting}=True, but model '{name_of(model)}' has no optimizer now."
        )
