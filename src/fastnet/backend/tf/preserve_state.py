"""Saves the state of Keras models and their optimizers in memory, to restore it later."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

__all__ = ["PreservedState"]


class PreservedState:
    """The variables of models and optimizers, and the global generator, at the time of the call.

    A model without variables raises ValueError, because creating them could not be undone.
    """

    def __init__(self, models: Iterable[Any], optimizers: Iterable[Any]) -> None:
        for model in models:
            if not model.built:
                raise ValueError(
                    f"The model '{getattr(model, 'model_name', model.name)}' creates its "
                    "variables in its first call, which cannot be undone. Run it once beforehand."
                )
        owners = [*models, *optimizers]
        variables = {id(one): one for owner in owners for one in _variables(owner)}
        self._values = [(one, one.numpy()) for one in variables.values()]
        self._generator = tf.random.get_global_generator().state
        self._state = self._generator.numpy()

    def restore(self) -> None:
        """Restore all of it."""
        for variable, value in self._values:
            variable.assign(value)
        self._generator.assign(self._state)


def _variables(owner: Any) -> list[Any]:
    found = owner.variables
    return list(found() if callable(found) else found)
