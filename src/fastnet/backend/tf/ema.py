"""Exponential moving averages of the weights of Keras models."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from fastnet.backend.model_metadata import get_metadata, name_of, set_metadata
from fastnet.backend.tf.copying import copy_model
from fastnet.backend.tf.gradients import replica_count
from fastnet.backend.tf.models import all_layers, no_variables
from fastnet.backend.tf.weights import named_weights
from fastnet.errors import shorten


def copy_for_average(model: Any, name: str) -> Any:
    """Copy a model, without its optimizer, to hold an average of its weights."""
    if not model.built:
        raise no_variables(model, "and so none that EMA can average")
    memo: dict[int, Any] = {}
    kept = get_metadata(model, "optimizer"), get_metadata(model, "current_optimizer")
    set_metadata(model, "optimizer", None)
    set_metadata(model, "current_optimizer", None)
    try:
        copy_model(model, memo)
    finally:
        set_metadata(model, "optimizer", kept[0])
        set_metadata(model, "current_optimizer", kept[1])
    averaged = memo[id(model)]
    for one in all_layers(averaged):
        one.trainable = True
    set_metadata(averaged, "loss_name", None)
    set_metadata(averaged, "model_name", name)
    return averaged


class WeightAverager:
    """Updates averages of a model's weights, which a copy of it holds.

    Non-trainable floating-point weights are averaged if `use_buffers`, else copied.
    """

    def __init__(self, model: Any, averaged: Any, decay: float, use_buffers: bool) -> None:
        self._model = model
        self._averaged = averaged
        self._decay = decay
        self._use_buffers = use_buffers
        self.settings = decay, use_buffers
        self._begun: Any = None
        self._make(begun=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_begun": self.has_begun}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._make(begun=state["_begun"])

    def _make(self, begun: bool) -> None:
        with tf.init_scope():
            self._begun = tf.Variable(
                begun, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA
            )

    @property
    def has_begun(self) -> bool:
        """Whether there was an update."""
        return bool(self._begun.numpy())

    @has_begun.setter
    def has_begun(self, begun: bool) -> None:
        self._begun.assign(begun)

    def move(self, stepped: Any = True) -> None:
        """Update the averages if the model has `stepped`; the first time, copy the weights."""
        trained = {id(one) for one in self._model.trainable_variables}
        means, values = named_weights(self._averaged), named_weights(self._model)
        if means.keys() != values.keys():
            changed = sorted(means.keys() ^ values.keys())
            raise ValueError(
                f"EMA of '{name_of(self._model)}' was made before {shorten(changed)} of the model "
                "was added, removed or renamed. Make a new EMA."
            )
        pairs = []
        for name, mean in means.items():
            value = values[name]
            is_averaged = id(value) in trained or (self._use_buffers and _is_real(mean))
            pairs.append((mean, value, is_averaged))
        if replica_count() > 1:
            context = tf.distribute.get_replica_context()
            context.merge_call(self._move_on_each, args=(pairs, stepped))
        else:
            self._move_all(pairs, stepped)

    def _move_on_each(self, strategy: Any, pairs: Any, stepped: Any) -> None:
        local = strategy.experimental_local_results(stepped)[0]

        def assign(mean: Any, value: Any, keeps: tf.Tensor) -> Any:
            return mean.assign(_between(mean, value, keeps))

        averaged, copied = self._shares(local)
        for mean, value, is_averaged in pairs:
            share = averaged if is_averaged else copied
            strategy.extended.update(_inner(mean), assign, args=(_inner(value), share))
        begun = tf.logical_or(self._begun.read_value(), local)
        strategy.extended.update(self._begun, lambda one, now: one.assign(now), args=(begun,))

    def _move_all(self, pairs: Any, stepped: Any) -> None:
        averaged, copied = self._shares(stepped)
        for mean, value, is_averaged in pairs:
            mean.assign(_between(mean, value, averaged if is_averaged else copied))
        self._begun.assign(tf.logical_or(self._begun.read_value(), stepped))

    def _shares(self, stepped: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the weights of the old values in averages and in copies."""
        begun = tf.cast(self._begun.read_value(), tf.float32)
        return (
            tf.where(stepped, begun * self._decay, 1.0),
            tf.where(stepped, tf.zeros(()), tf.ones(())),
        )


def _inner(variable: Any) -> Any:
    """Return the TensorFlow variable inside of a variable of Keras 3."""
    return variable if callable(variable.value) else variable.value


def _between(mean: Any, value: Any, stays: tf.Tensor) -> tf.Tensor:
    mean, value = tf.convert_to_tensor(mean), tf.convert_to_tensor(value)
    if not mean.dtype.is_floating:
        return tf.where(tf.equal(stays, 1.0), mean, value)
    stays = tf.cast(stays, mean.dtype)
    # At 0 and 1 the other operand must not contribute, because it may not be finite.
    mixed = stays * mean + (1 - stays) * value
    return tf.where(tf.equal(stays, 0), value, tf.where(tf.equal(stays, 1), mean, mixed))


def _is_real(variable: Any) -> bool:
    return bool(tf.as_dtype(variable.dtype).is_floating)
