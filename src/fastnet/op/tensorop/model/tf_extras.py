"""An update of a Keras model with gradients clipped before it, and what is told of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from fastnet.backend.scheduled import optimizer_of
from fastnet.backend.tf.clipping import Clipped, clip
from fastnet.backend.tf.gradients import apply_gradients
from fastnet.op.tensorop.model.model_update import Extras

__all__ = ["ExtraUpdate"]


class ExtraUpdate:
    """What makes one update, or puts it off, and tells of it.

    Args:
        extras: What is to be done besides.
        model: The model that is updated.

    Attributes:
        tells: Whether anything is told of the update.
    """

    def __init__(self, extras: Extras, model: Any) -> None:
        self._extras = extras
        self._model = model
        self.tells = bool(extras.reports)
        self._norm: Any = tf.constant(float("nan"))
        self._stepped: Any = tf.constant(False)
        self._are_told = False
        self._follows: Any = True

    def prepare(self, gradients: Sequence[Any]) -> list[Any]:
        """Clip gradients, and find out what is told of their update.

        Args:
            gradients: A gradient for each variable, scaled as the optimizer wants it; None for
                none.

        Returns:
            Those for the optimizer.
        """
        clipped = self._clip(gradients)
        self._follows = clipped.are_finite
        if self.tells and not self._are_told:
            self.tell(*_told(clipped))
        return clipped.gradients

    def measured(self, gradients: Sequence[Any]) -> tuple[tf.Tensor, tf.Tensor]:
        """Find out what is to be told of an update with some gradients.

        Args:
            gradients: As for `prepare`.

        Returns:
            Their norm, and whether the optimizer will apply them.
        """
        return _told(self._clip(gradients))

    def tell(self, norm: tf.Tensor, stepped: tf.Tensor) -> None:
        """Take down what is told.

        Args:
            norm: The norm of the gradients.
            stepped: Whether the optimizer takes a step.
        """
        self._norm, self._stepped = norm, stepped
        self._are_told = True

    def apply(self, model: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Let the model's optimizer update variables, and call what follows.

        Args:
            model: The model.
            gradients: What `prepare` gave.
            variables: The variables.
        """
        apply_gradients(model, gradients, variables)
        for follow in self._extras.followers:
            follow(self._follows)

    def reports(self) -> list[tf.Tensor] | None:
        """Return what is asked for, in order; None where nothing is."""
        told = {"grad_norm": self._norm, "stepped": self._stepped}
        reports = self._extras.reports
        return [told[one] for one in reports] if reports else None

    def _clip(self, gradients: Sequence[Any]) -> Clipped:
        extras = self._extras
        return clip(
            optimizer_of(self._model),
            gradients,
            extras.clip_norm,
            extras.clip_value,
            "grad_norm" in extras.reports,
        )


def _told(clipped: Clipped) -> tuple[tf.Tensor, tf.Tensor]:
    norm = tf.constant(float("nan")) if clipped.norm is None else clipped.norm
    return tf.cast(norm, tf.float32), tf.convert_to_tensor(clipped.are_finite)
