"""What of a Keras model is trained, and the shortest way to update it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from threading import current_thread
from typing import Any

import tensorflow as tf

from fastnet._resolve import same_items
from fastnet.backend.tf.generation import is_keras3, keras_of
from fastnet.backend.tf.gradients import agree_on_overflow, replica_count, trainable

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
        self._own_way = _own_way(optimizer)
        self._takes_its_own = _takes_its_own(optimizer, model, self._before)
        self._apply: Callable[..., Any] = (
            optimizer.apply if self._takes_its_own else optimizer.apply_gradients
        )

    def holds(self, optimizer: Any) -> bool:
        """Tell whether the next step can go by this.

        Layers may have been frozen, or added, and the optimizer made ready for other variables.

        Args:
            optimizer: The optimizer in force.
        """
        return (
            optimizer is self._optimizer
            and current_thread() is self._thread
            and _own_way(optimizer) == self._own_way
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


def _own_way(optimizer: Any) -> tuple[Any, ...]:
    """Tell what an optimizer itself has to say of how it updates, in things that are compared."""
    own = vars(optimizer)
    # another list each time that Keras 3 makes it ready for variables
    return id(own.get("_trainable_variables")), own.get("apply"), own.get("apply_gradients")


def _takes_its_own(optimizer: Any, model: Any, variables: tuple[Any, ...]) -> bool:
    """Tell whether an optimizer, given gradients only, updates just these variables.

    Keras 3's optimizers look up each variable that they are given, and take their own otherwise.
    One with a way of its own to an update is given the variables.
    """
    if not is_keras3(model):
        return False
    base = keras_of(model).optimizers.Optimizer
    kind: Any = type(optimizer)
    if (
        not isinstance(optimizer, base)
        or kind.apply is not base.apply
        or kind.apply_gradients is not base.apply_gradients
        or "apply_gradients" in vars(optimizer)
    ):
        return False
    if len(getattr(optimizer, "_trainable_variables_indices", variables)) != len(variables):
        return False  # made ready more than once: it counts those of before as well
    return same_items(list(getattr(optimizer, "_trainable_variables", ())), variables)
