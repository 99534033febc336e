"""Preserve the state of Keras models and optimizers, and restore it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastnet.backend.model_metadata import every_optimizer_of
from fastnet.backend.tf._keras_internals import seed_states, shared_seeds
from fastnet.backend.tf.held_state import global_generator
from fastnet.backend.tf.models import all_layers
from fastnet.backend.tf.optimizers import (
    optimizer_settings,
    set_optimizer_settings,
    variables_of,
)
from fastnet.backend.tf.setup import prepare_optimizer
from fastnet.backend.tf.weights import set_trainable_flags, trainable_flags
from fastnet.types import Model


class PreservedState:
    """A copy of the state that training changes; as a context, restored on errors."""

    def __init__(self, models: Iterable[Model]) -> None:
        models = [model for model in models if model.built]
        self._trainable = [(model, trainable_flags(model)) for model in models]
        optimizers: dict[int, Any] = {}
        for model in models:
            for optimizer in every_optimizer_of(model):
                # Variables that the block would create could not be restored.
                prepare_optimizer(optimizer, model)
                optimizers[id(optimizer)] = optimizer
        variables = [variable for model in models for variable in model.variables]
        for optimizer in optimizers.values():
            variables += variables_of(optimizer)
        variables += _generator_states(models)
        unique = {id(variable): variable for variable in variables}
        self._values = [(variable, variable.numpy()) for variable in unique.values()]
        self._settings = [
            (optimizer, optimizer_settings(optimizer)) for optimizer in optimizers.values()
        ]

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, *exc: object) -> None:
        if kind is not None:
            self.restore()

    def restore(self) -> None:
        """Restore the state."""
        for model, flags in self._trainable:
            set_trainable_flags(model, flags)
        for variable, value in self._values:
            variable.assign(value)
        for optimizer, settings in self._settings:
            set_optimizer_settings(optimizer, settings)


def _generator_states(models: Iterable[Model]) -> list[Any]:
    """List the states of the generators of TensorFlow, of layers and of Keras."""
    states = []
    generator = global_generator()
    if generator is not None:
        states.append(generator.state)
    for model in models:
        for layer in all_layers(model):
            states += seed_states(layer)
    shared = shared_seeds()
    if shared is not None:
        states.append(shared)
    return states
