"""Exponential moving averages of the weights of Keras models."""

from __future__ import annotations

from typing import Any, ClassVar

import tensorflow as tf

from fastnet.backend.ema import Decay, decay_after
from fastnet.backend.model_metadata import get_metadata, name_of, set_metadata
from fastnet.backend.tf.copying import copy_model
from fastnet.backend.tf.gradients import replica_count
from fastnet.backend.tf.models import all_layers, no_variables
from fastnet.backend.tf.weights import named_weights
from fastnet.errors import add_note, shorten
from fastnet.types import Model


def copy_for_average(model: Model, name: str) -> Model:
    """Copy a model, without its optimizer, to hold an average of its weights."""
    if not model.built:
        raise no_variables(model, "and so none that EMA can average")
    memo: dict[int, Any] = {}
    optimizer = get_metadata(model, "optimizer")
    current_optimizer = get_metadata(model, "current_optimizer")
    set_metadata(model, "optimizer", None)
    set_metadata(model, "current_optimizer", None)
    try:
        copy_model(model, memo)
    finally:
        set_metadata(model, "optimizer", optimizer)
        set_metadata(model, "current_optimizer", current_optimizer)
    averaged = memo[id(model)]
    for layer in all_layers(averaged):
        layer.trainable = True
    set_metadata(averaged, "loss_name", None)
    set_metadata(averaged, "model_name", name)
    return averaged


class WeightAverager:
    """Updates averages of a model's weights, which a copy of it holds.

    Non-trainable floating-point weights are averaged if `use_buffers`, else copied.
    """

    state: ClassVar[dict[str, Any]] = {}  # Variables hold what updates change.

    def __init__(self, model: Model, averaged: Model, decay: Decay, use_buffers: bool) -> None:
        self._model = model
        self._averaged = averaged
        self._updates: Any = None
        self._make(0)
        self.configure(decay, use_buffers)

    def configure(self, decay: Decay, use_buffers: bool) -> None:
        """Apply settings."""
        if callable(decay):
            with tf.init_scope():
                decay_after(decay, tf.ones((), tf.float64), self._model)
        self._decay = decay
        self._use_buffers = use_buffers

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_updates": self.updates}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._make(state["_updates"])

    def _make(self, updates: int) -> None:
        with tf.init_scope():
            self._updates = tf.Variable(
                updates,
                trainable=False,
                dtype=tf.int64,
                aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            )

    @property
    def updates(self) -> int:
        """The number of updates."""
        return int(self._updates.numpy())

    @updates.setter
    def updates(self, updates: int) -> None:
        self._updates.assign(updates)

    def advance(self) -> None:
        """Do nothing: `move` counts the updates."""

    def move(self, stepped: Any = True) -> None:
        """Update the averages if the model has `stepped`; the first time, copy the weights."""
        trained = {id(variable) for variable in self._model.trainable_variables}
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
            is_averaged = id(value) in trained or (self._use_buffers and _is_floating(mean))
            pairs.append((mean, value, is_averaged))
        if replica_count() > 1:
            context = tf.distribute.get_replica_context()
            context.merge_call(self._move_on_each, args=(pairs, stepped))
        else:
            self._move_all(pairs, stepped)

    def _move_on_each(self, strategy: Any, pairs: Any, stepped: Any) -> None:
        local = strategy.experimental_local_results(stepped)[0]

        def assign(mean: Any, value: Any, old_share: tf.Tensor) -> Any:
            return mean.assign(_between(mean, value, old_share))

        averaged, copied = self._shares(local)
        for mean, value, is_averaged in pairs:
            share = averaged if is_averaged else copied
            strategy.extended.update(_inner(mean), assign, args=(_inner(value), share))
        updates = self._updates.read_value() + tf.cast(local, tf.int64)
        strategy.extended.update(
            self._updates, lambda variable, value: variable.assign(value), args=(updates,)
        )

    def _move_all(self, pairs: Any, stepped: Any) -> None:
        averaged, copied = self._shares(stepped)
        for mean, value, is_averaged in pairs:
            mean.assign(_between(mean, value, averaged if is_averaged else copied))
        self._updates.assign_add(tf.cast(stepped, tf.int64))

    def _shares(self, stepped: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the shares of the old values in averages and in copies."""
        updates = self._updates.read_value()
        zero, one = tf.zeros((), tf.float64), tf.ones((), tf.float64)
        decay = self._decay_after(tf.cast(updates, tf.float64))
        return (
            tf.where(stepped, tf.where(updates > 0, decay, zero), one),
            tf.where(stepped, zero, one),
        )

    def _decay_after(self, updates: tf.Tensor) -> tf.Tensor:
        decay = self._decay
        if not callable(decay):
            return tf.constant(decay, tf.float64)
        try:
            rate = decay(updates)
            # `tf.cast` would make a Python number float32 first.
            make = tf.cast if tf.is_tensor(rate) else tf.constant
            return make(rate, tf.float64)
        except Exception as error:
            add_note(
                error,
                f"Raised by the decay of the EMA of '{name_of(self._model)}'. In TensorFlow it is "
                "a part of the graph, and the number of updates a tensor: use functions of tf.",
            )
            raise


def _inner(variable: Any) -> Any:
    """Return the TensorFlow variable inside of a variable of Keras 3."""
    return variable if callable(variable.value) else variable.value


def _between(mean: Any, value: Any, old_share: tf.Tensor) -> tf.Tensor:
    mean, value = tf.convert_to_tensor(mean), tf.convert_to_tensor(value)
    is_copied, is_kept = tf.equal(old_share, 0.0), tf.equal(old_share, 1.0)
    if not mean.dtype.is_floating:
        return tf.where(is_kept, mean, value)
    # In half precision 0.999 would be rounded to a decay that is 2 % slower.
    wide = mean.dtype if mean.dtype.size > 2 else tf.float32
    old, new = tf.cast(old_share, wide), tf.cast(1.0 - old_share, wide)
    mixed = tf.cast(old * tf.cast(mean, wide) + new * tf.cast(value, wide), mean.dtype)
    # At 0 and 1 the other operand must not contribute, because it may not be finite.
    return tf.where(is_copied, value, tf.where(is_kept, mean, mixed))


def _is_floating(variable: Any) -> bool:
    return bool(tf.as_dtype(variable.dtype).is_floating)
