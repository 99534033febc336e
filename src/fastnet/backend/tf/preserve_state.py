"""Preserve the state of Keras models and optimizers, and restore it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

__all__ = ["PreservedState"]


class PreservedState:
    """A copy of the state that training changes.

    Args:
        models: The models: of each all variables, those of seed generators among them.
        optimizers: The optimizers, with their variables made.

    Raises:
        ValueError: If a model or an optimizer has no variables yet, which could not be taken back.
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
        """Restore the state."""
        for variable, value in self._values:
            variable.assign(value)
        self._generator.assign(self._state)


def _variables(owner: Any) -> list[Any]:
    found = owner.variables
    return list(found() if callable(found) else found)
