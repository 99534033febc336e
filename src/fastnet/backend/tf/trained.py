"""What of a Keras model is trained."""

from __future__ import annotations

from collections.abc import Sequence
from threading import current_thread
from typing import Any

import tensorflow as tf

from fastnet._resolve import same_items
from fastnet.backend.tf.gradients import replica_count, trainable

__all__ = ["Trained"]


class Trained:
    """What of a model an optimizer updates, and how: the same in one step after the other.

    Args:
        model: The model.
        optimizer: The optimizer, with its variables made.

    Attributes:
        variables: The variables that are trained, in order.
        sources: The same as TensorFlow's own variables, which a tape finds sooner than those of
            Keras 3 around them.
        replicas: How many replicas the step runs on.
    """

    def __init__(self, model: Any, optimizer: Any) -> None:
        self._model = model
        self._optimizer = optimizer
        # each replica of a step runs in a thread of its own
        self._thread = current_thread()
        self.variables = trainable(model)
        self._before = tuple(self.variables)
        self.sources = [one if callable(one.value) else one.value for one in self.variables]
        self.replicas = replica_count()
        scales = getattr(optimizer, "get_scaled_loss", None)
        self._scale = scales or getattr(optimizer, "scale_loss", None)
        self._unscale = getattr(optimizer, "get_unscaled_gradients", None)

    def holds(self, optimizer: Any) -> bool:
        """Return whether the next step can go by this.

        Layers may have been frozen, or added.

        Args:
            optimizer: The optimizer in force.
        """
        return (
            optimizer is self._optimizer
            and current_thread() is self._thread
            and same_items(trainable(self._model), self._before)
        )

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
