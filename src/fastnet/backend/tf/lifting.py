"""Variables that are made while a graph is traced."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from fastnet.backend.tf._keras_internals import settings_in_variables

__all__ = ["Lifted"]


class Lifted:
    """Makes the variables that a trace asks for at once, outside of its graph.

    `tf.function` traces a function that makes variables a second time, to see that it makes none in
    later calls. The weights of a model that is built when it first runs, and what its optimizer
    keeps, are known to be made once: with these one trace will do.

    Attributes:
        made: The variables that were made.
    """

    def __init__(self) -> None:
        self.made: list[tf.Variable] = []

    def scope(self) -> Any:
        """Return the context to trace in."""
        return tf.variable_creator_scope(self._make)

    def are_of(self, models: Iterable[Any], optimizers: Iterable[Any]) -> bool:
        """Return whether all that were made belong to models, or their optimizers.

        Args:
            models: The models.
            optimizers: The optimizers; None among them counts for nothing.
        """
        if not self.made:
            return True
        known = {id(one) for model in models for one in _plain(model.variables)}
        for optimizer in optimizers:
            variables = getattr(optimizer, "variables", ())
            known |= set(map(id, _plain(variables() if callable(variables) else variables)))
            # what Keras 2's older ones were given, the learning rate among it
            known |= set(map(id, settings_in_variables(optimizer)))
        return all(id(one) in known for one in self.made)

    def _make(self, next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        value = kwargs.get("initial_value")
        if not callable(value) and tf.is_tensor(value) and not hasattr(value, "numpy"):
            # of the graph itself: there is no value outside
            return next_creator(**kwargs)
        with tf.init_scope():
            variable = next_creator(**{**kwargs, "experimental_enable_variable_lifting": False})
        self.made.append(variable)
        return variable


def _plain(variables: Iterable[Any]) -> list[Any]:
    # Keras 3 has variables of its own around those of TensorFlow
    return [one if isinstance(one, tf.Variable) else one.value for one in variables]
