"""Save Keras models and their optimizers to files, and load them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

from fastnet.backend.archive import Block, open_archive, write_archive
from fastnet.backend.files import find_file, require_optimizer_file, write_atomically
from fastnet.backend.model_metadata import (
    current_place,
    get_metadata,
    optimizers_of,
    pair_optimizers,
    taken_names,
)
from fastnet.backend.tf import processes
from fastnet.backend.tf.keras_version import is_keras3
from fastnet.backend.tf.optimizer_state import load_optimizer_state, optimizer_state
from fastnet.backend.tf.preserve_state import PreservedState
from fastnet.backend.tf.weights import load_weights, save_weights
from fastnet.backend.tree import block_to_array, decode, encode
from fastnet.distributed import together

__all__ = ["load_model", "save_model", "without_optimizer"]

_NAMED = ".weights.h5"
_OPTIMIZERS = "_opt.safetensors"


def save_model(model: Any, stem: str, save_optimizer: bool, save_architecture: bool) -> str:
    """Save the weights of a model, and the state of its optimizers and its layers beside them.

    All workers call this together, and the first one writes.
    """
    ending = _NAMED if is_keras3(model) else ".h5"
    with _on_one_worker(stem) as own_stem:
        if save_optimizer:  # First, since its state may be invalid.
            write_atomically(own_stem + _OPTIMIZERS, partial(_write_optimizers, model))
        with without_optimizer(model):
            write_atomically(f"{own_stem}{ending}", partial(save_weights, model))
            if save_architecture and is_keras3(model):
                write_atomically(f"{own_stem}.keras", model.save)
            elif save_architecture:
                model.save(own_stem, include_optimizer=False)
    return f"{stem}{ending}"


def load_model(model: Any, path: str | os.PathLike[str], load_optimizer: bool) -> None:
    """Load what `save_model` has saved; if that fails nothing is changed."""
    name = find_file(path, "weights file")
    with PreservedState([model]):
        if load_optimizer:
            _load_optimizers(model, name)
        with without_optimizer(model):
            load_weights(model, name)


@contextmanager
def without_optimizer(model: Any) -> Iterator[None]:
    """Hide a model's optimizers from Keras, which would take them for a part of the model."""
    attributes = vars(model)
    hidden = {
        name: attributes.pop(name)
        for name in ("current_optimizer", "optimizer")
        # A model may have a part of its own under this name.
        if name in attributes
        and (name not in taken_names(model) or hasattr(attributes[name], "apply_gradients"))
    }
    if "optimizer" in hidden:
        # Keras 2 reads this when it saves layers.
        attributes["optimizer"] = None
    try:
        yield
    finally:
        attributes.update(hidden)


@contextmanager
def _on_one_worker(stem: str) -> Iterator[str]:
    """Let other workers write to a folder that is removed: all read synced buffers together."""
    if processes.world_size() == 1:
        yield stem
        return
    with together(processes, "Saving a model"), TemporaryDirectory() as elsewhere:
        yield os.path.join(elsewhere, os.path.basename(stem)) if processes.rank() else stem


def _write_optimizers(model: Any, path: str) -> None:
    """Write the state of the current optimizer, and of all optimizers of a schedule."""
    optimizers, current = optimizers_of(model), current_place(model)
    if len(optimizers) < 2 or current is None:
        optimizers, current = [get_metadata(model, "current_optimizer")], 0
    states = {"optimizers": [optimizer_state(one) for one in optimizers], "current": current}
    blocks: dict[str, Block] = {}
    write_archive(path, encode(states, "", blocks, lambda value: None), blocks)


def _load_optimizers(model: Any, weights_path: str) -> None:
    stem = weights_path.removesuffix(_NAMED)
    path = (os.path.splitext(stem)[0] if stem == weights_path else stem) + _OPTIMIZERS
    require_optimizer_file(path)
    source = f"The optimizer file '{path}'"

    with open_archive(path, source) as archive:
        saved = decode(archive.content, {"array": lambda key: block_to_array(archive.read(key))})
        states, current = saved["optimizers"], saved["current"]
    for optimizer, state in pair_optimizers(model, states[current], states, source):
        load_optimizer_state(optimizer, state, source)
