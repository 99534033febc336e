"""An update of a Keras model."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from fastnet.backend.tf.gradients import (
    apply_gradients,
    get_gradient,
    is_scaling,
    optimizer_of,
    replica_count,
    scale_loss,
    unscale_gradients,
    update_model,
)
from fastnet.types import State

if TYPE_CHECKING:
    from fastnet.op.tensorop.model.update import UpdateOp


class TFUpdate:
    """What an UpdateOp does with a Keras model.

    Args:
        op: The op.

    Raises:
        ValueError: If `merge_grad` is more than 1 on several devices.
    """

    def __init__(self, op: UpdateOp) -> None:
        if op.merge_grad > 1 and replica_count() > 1:
            raise ValueError(
                f"UpdateOp of '{op.model.model_name}' has merge_grad={op.merge_grad}, which is not "
                "supported on several devices. Use merge_grad=1."
            )
        if op.gradients is not None and op.model.losses:
            warnings.warn(
                f"The model '{op.model.model_name}' has losses of its own, such as regularizers. "
                f"They are left out, because UpdateOp is given the gradients '{op.gradients}'.",
                stacklevel=4,
            )
        self._op = op
        self._model = op.model
        self._given = op.gradients is not None
        self._merge = op.merge_grad
        self._merged: Any = None  # how many times gradients were added up
        self._sums: dict[int, Any] = {}

    def __call__(self, data: Any, state: State, defer: bool, retain_graph: bool) -> None:
        """Take gradients, and update or put the update off.

        Args:
            data: The loss, or a list of gradients.
            state: The step's context.
            defer: Whether to put the update off until after the last op.
            retain_graph: Not used: the tape is there for the whole step.

        Raises:
            ValueError: If the model has no optimizer in this epoch, or nothing to train, or what
                is read is no loss, or are not its gradients.
        """
        if state["warmup"]:
            return
        optimizer = optimizer_of(self._model)
        variables = self._model.trainable_variables
        if not variables:
            raise ValueError(
                f"Model '{self._model.model_name}' is to be updated, but none of its layers is "
                "trainable. Unfreeze some of them, or take the UpdateOp out."
            )
        if self._given:
            gradients = self._checked(data, variables)
            if replica_count() > 1:
                # those of the replicas are added up
                gradients = [None if g is None else g / replica_count() for g in gradients]
        else:
            gradients = self._gradients_of(data, optimizer, variables, state["tape"])
            if all(gradient is None for gradient in gradients):
                raise ValueError(
                    f"The loss '{self._op.loss_name}' has no gradients for any variable of "
                    f"'{self._model.model_name}': it was not made from the output of a ModelOp "
                    "of this model with gradients=True, in the same step."
                )
        if self._merge > 1:
            self._merge_gradients(gradients, variables, state["deferred"] if defer else None)
        else:
            update_model(self._model, gradients, defer=defer, deferred=state["deferred"])

    def _gradients_of(
        self, loss: Any, optimizer: Any, variables: Sequence[Any], tape: Any
    ) -> list[Any]:
        if not tf.is_tensor(loss):
            raise ValueError(
                f"UpdateOp of '{self._model.model_name}' reads a tensor as its loss "
                f"'{self._op.loss_name}', but got {type(loss).__name__}."
            )
        own = self._model.losses
        if own:
            loss = loss + tf.cast(tf.reduce_sum(own), loss.dtype)
        loss = tf.reduce_mean(loss)
        scaling = is_scaling(optimizer)
        if scaling:
            loss = scale_loss(optimizer, loss)
        if replica_count() > 1:
            # the gradients of the replicas are added up
            loss = loss / replica_count()
        gradients = get_gradient(loss, variables, tape=tape)
        if scaling:
            gradients = unscale_gradients(optimizer, gradients)
        return list(gradients)

    def _merge_gradients(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        deferred: dict[str, Any] | None,
    ) -> None:
        """Add gradients up; once there are enough, update with their averages."""
        with tf.init_scope():  # what is added up outlives the step, and the graph
            if self._merged is None:
                self._merged = tf.Variable(0, trainable=False, dtype=tf.int64)
            for variable in variables:
                if id(variable) not in self._sums:
                    zeros = tf.zeros(variable.shape, variable.dtype)
                    self._sums[id(variable)] = tf.Variable(zeros, trainable=False)
        sums = [self._sums[id(variable)] for variable in variables]
        for total, gradient in zip(sums, gradients, strict=True):
            if gradient is not None:
                total.assign_add(tf.cast(tf.convert_to_tensor(gradient), total.dtype))
        times = self._merged.assign_add(1, read_value=True)

        def update() -> tf.Tensor:
            averages = [
                None if gradient is None else total / self._merge
                for total, gradient in zip(sums, gradients, strict=True)
            ]
            apply_gradients(self._model, averages)
            for total in sums:
                total.assign(tf.zeros_like(total))
            return tf.constant(True)

        def settle() -> None:
            tf.cond(tf.equal(times % self._merge, 0), update, lambda: tf.constant(False))

        if deferred is None:
            settle()
        else:
            deferred.setdefault(self._model.model_name, []).append(settle)

    def _checked(self, gradients: Any, variables: Sequence[Any]) -> Sequence[Any]:
        if not isinstance(gradients, (list, tuple)) or len(gradients) != len(variables):
            got = (
                f"{len(gradients)} of them"
                if isinstance(gradients, (list, tuple))
                else type(gradients).__name__
            )
            raise ValueError(
                f"UpdateOp of '{self._model.model_name}' reads gradients from "
                f"'{self._op.gradients}', a list with one for each of the model's "
                f"{len(variables)} trainable variables, but got {got}."
            )
        return gradients
