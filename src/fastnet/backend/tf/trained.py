"""What of a Keras model is trained, and the shortest way to update it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from fastnet._resolve import same_items
from fastnet.backend.tf.generation import is_keras3, keras_of
from fastnet.backend.tf.gradients import agree_on_overflow, replica_count, trainable
from fastnet.backend.tf.models import all_layers

__all__ = ["Trained"]


class Trained:
    """What of a model an optimizer updates, which is the same from step to step of an opening.

    Args:
        model: The model.
        optimizer: The optimizer, with its variables made.
        opened: Something of which each opening has its own, or None where that is not known, so
            that this holds for one step.

    Attributes:
        variables: The variables that are trained, in order.
        sources: The same as TensorFlow's own variables, which a tape finds sooner than those of
            Keras 3 around them.
        replicas: How many replicas a step runs on.
    """

    def __init__(self, model: Any, optimizer: Any, opened: object) -> None:
        self._optimizer = optimizer
        self._opened = opened if _leaves_it_to_keras(model) else None
        layers = all_layers(model)
        self._unbuilt = [layer for layer in layers if not layer.built]
        # what says whether it is trained: in Keras 2 the layers
        self._switches = [model, *model.variables] if is_keras3(model) else layers
        self._switched = [one.trainable for one in self._switches]
        self.variables = trainable(model)
        self.sources = [one if callable(one.value) else one.value for one in self.variables]
        self.replicas = replica_count()
        scales = getattr(optimizer, "get_scaled_loss", None)
        self._scale = scales or getattr(optimizer, "scale_loss", None)
        self._unscale = getattr(optimizer, "get_unscaled_gradients", None)
        self._apply: Callable[..., Any] = optimizer.apply_gradients
        self._takes_its_own = _takes_its_own(optimizer, self.variables)
        if self._takes_its_own:
            self._apply = optimizer.apply

    def holds(self, optimizer: Any, opened: object) -> bool:
        """Tell whether this still is what is trained: layers may have been frozen meanwhile.

        Args:
            optimizer: The optimizer in force.
            opened: As when this was made.
        """
        if opened is None or opened is not self._opened or optimizer is not self._optimizer:
            return False
        for layer in self._unbuilt:
            if layer.built:
                return False
        return [one.trainable for one in self._switches] == self._switched

    def scaled(self, loss: tf.Tensor) -> tf.Tensor:
        """Scale a loss up as the optimizer wants it, lest small gradients vanish.

        Args:
            loss: The loss.
        """
        return loss if self._scale is None else self._scale(loss)

    def unscaled(self, gradients: Sequence[tf.Tensor | None]) -> Sequence[tf.Tensor | None]:
        """Scale gradients of a scaled loss down, where the optimizer does not do so itself.

        Args:
            gradients: The gradients.
        """
        return gradients if self._unscale is None else self._unscale(gradients)

    def update_with(self, gradients: Sequence[tf.Tensor | None]) -> Callable[[], Any]:
        """Find the shortest way to an update.

        TensorFlow notes with each of its ops the Python functions that have called it, so that
        those on the way to the optimizer count in every op of an update.

        Args:
            gradients: A gradient for each of the variables, scaled as the optimizer wants it; None
                for none.

        Returns:
            What updates the variables when it is called.
        """
        if self.replicas > 1:
            gradients = agree_on_overflow(self._optimizer, gradients)
        if self._takes_its_own:
            return partial(self._apply, gradients)
        return partial(self._apply, zip(gradients, self.variables, strict=False))


def _leaves_it_to_keras(model: Any) -> bool:
    """Tell whether a model's class lists what is trained as Keras's models do."""
    kind: Any = type(model)
    base = keras_of(model).Model
    return (
        kind.trainable_variables is base.trainable_variables
        and kind.trainable_weights is base.trainable_weights
    )


def _takes_its_own(optimizer: Any, variables: list[Any]) -> bool:
    """Tell whether an optimizer, given gradients only, updates just these variables.

    Keras 3's optimizers look up each variable that they are given, and take their own otherwise. A
    class with a way of its own to an update is given the variables.
    """
    if not hasattr(optimizer, "apply") or not is_keras3(optimizer):
        return False
    kind: Any = type(optimizer)
    base = keras_of(optimizer).optimizers.Optimizer
    if kind.apply is not base.apply or kind.apply_gradients is not base.apply_gradients:
        return False
    return same_items(list(getattr(optimizer, "_trainable_variables", ())), tuple(variables))
