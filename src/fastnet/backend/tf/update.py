"""Updates Keras models: backward, merge, clip, and step or defer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from fastnet.backend.model_metadata import name_of
from fastnet.backend.model_update import Clipping, Followers, ModelUpdate
from fastnet.backend.tf.gradients import (
    all_finite,
    apply_gradients,
    inner_scale_of,
    map_values,
    multiply_gradients,
    no_tape,
    paused,
    replica_count,
    scale_gradients,
    trainable,
)
from fastnet.backend.tf.optimizers import is_scaling
from fastnet.backend.tf.processes import strategy_of
from fastnet.backend.tf.setup import is_ready, prepare_optimizer
from fastnet.backend.tf.weights import named_weights
from fastnet.types import State
from fastnet.util.warnings import warn


class TFUpdate(ModelUpdate):
    """Updates a Keras model in the sequence that `UpdateOp` describes.

    Merged gradients are not scaled. Gradients are values of a step, so a step that fails leaves
    none. On several devices each merges its own gradients, and they communicate only once there
    are enough.
    """

    def __init__(self, op: Any, reports: Sequence[str] = ()) -> None:
        super().__init__(op, reports)
        if op.gradients is not None and op.model.losses:
            warn(
                f"The model '{name_of(op.model)}' has losses of its own, such as regularizers. "
                f"They are left out, because UpdateOp is given the gradients '{op.gradients}'.",
            )
        self._merged: Any = None  # A variable: the number of merged steps.
        self._sums: dict[int, _Sum] = {}

    def __call__(
        self, data: Any, state: State, defer: bool, retain_graph: bool, followers: Followers = ()
    ) -> list[Any] | None:
        """Run the sequence: backward, merge, clip, and step or defer."""
        if state["warmup"]:
            return self._values(_NO_UPDATE)
        optimizer = self.optimizer()
        variables = self._find_trainable(optimizer)
        tape: Any = state.get("tape")
        loss = None if self._given else self._scaled_loss(data, optimizer, tape)
        with paused(tape):  # Later gradients do not depend on what an update computes.
            gradients: Sequence[Any]
            if loss is None:
                gradients = self._check_given(data, optimizer, variables)
            else:
                gradients = self._differentiate(loss, optimizer, variables, tape)
            update: Callable[[], Any]
            if self.is_merging:
                update, values = self._merge_gradients(gradients, variables, followers)
            else:
                clipped = self._clip(gradients, followers)
                update = partial(self._apply, variables, followers, clipped)
                values = self._values(clipped)
            if defer:
                later = state["deferred"].setdefault(name_of(self._model), [])
                later.append(paused(tape)(update))
            else:
                update()
        return values

    def flush(self, followers: Followers) -> None:
        """Update with the average of the gradients merged since the last update, if any."""
        times = self._merged_times()
        if not times:
            return
        now = tf.constant(times, tf.int64)
        update = partial(self._apply_merged, trainable(self._model), followers, now)
        strategy = strategy_of(self._model)
        if strategy is not None and tf.distribute.in_cross_replica_context():
            strategy.run(update)
        else:
            update()

    def _find_trainable(self, optimizer: Any) -> list[Any]:
        """List the variables to update, and prepare the optimizer for them."""
        if not is_ready(optimizer):
            # The model had no variables before this step.
            with tf.init_scope():
                prepare_optimizer(optimizer, self._model)
        variables = trainable(self._model)
        if not variables:
            raise ValueError(
                f"Model '{name_of(self._model)}' is to be updated, but none of its layers is "
                "trainable. Unfreeze some of them, or take the UpdateOp out."
            )
        return variables

    def _scaled_loss(self, loss: Any, optimizer: Any, tape: tf.GradientTape | None) -> tf.Tensor:
        """Return the mean of the loss, with the model's own losses, scaled."""
        if tape is None:
            raise no_tape()
        if not tf.is_tensor(loss):
            raise self.not_a_loss(loss)
        own = self._model.losses
        if own:
            # In half precision they may be of several dtypes.
            wide = max([loss.dtype, *[one.dtype for one in own]], key=lambda dtype: dtype.size)
            loss = tf.cast(loss, wide) + sum(tf.reduce_sum(tf.cast(one, wide)) for one in own)
        loss = tf.reduce_mean(loss)
        # Keras 2 and Keras 3 name it differently.
        scale = getattr(optimizer, "get_scaled_loss", None) or getattr(
            optimizer, "scale_loss", None
        )
        if scale is not None:
            loss = scale(loss)
        replicas = replica_count()
        # The optimizer sums the gradients of the replicas.
        return loss / replicas if replicas > 1 else loss

    def _differentiate(
        self, loss: tf.Tensor, optimizer: Any, variables: Sequence[Any], tape: tf.GradientTape
    ) -> Sequence[Any]:
        """Return the gradients of a scaled loss as the optimizer expects them."""
        # The tape finds TensorFlow's variables sooner than those of Keras 3 around them.
        sources = [one if callable(one.value) else one.value for one in variables]
        gradients: Sequence[Any] = tape.gradient(loss, sources)
        if all(gradient is None for gradient in gradients):
            raise ValueError(
                f"The loss '{self._op.loss_name}' has no gradients for any variable of "
                f"'{name_of(self._model)}': it was not made from the output of a ModelOp "
                "of this model with gradients=True, in the same step."
            )
        unscale = getattr(optimizer, "get_unscaled_gradients", None)
        return gradients if unscale is None else unscale(gradients)

    def _check_given(
        self, gradients: Any, optimizer: Any, variables: Sequence[Any]
    ) -> Sequence[Any]:
        """Return given gradients as the optimizer expects them."""
        gradients, count = self.check_gradients(gradients, variables), replica_count()
        if count > 1:  # The optimizer sums the gradients of the replicas.
            gradients = [map_values(one, lambda value: value / count) for one in gradients]
        return scale_gradients(optimizer, gradients)

    def _merge_gradients(
        self, gradients: Sequence[Any], variables: Sequence[Any], followers: Followers
    ) -> tuple[Callable[[], Any], list[tf.Tensor] | None]:
        """Add gradients to the sums; return the update if there are enough, and its reports."""
        self._make_sums(variables, gradients)
        scale = inner_scale_of(self.optimizer())
        if scale is not None:
            # Until the update, the scale may change, and so may the optimizer.
            gradients = multiply_gradients(gradients, 1 / scale)
        for variable, gradient in zip(variables, gradients, strict=True):
            if gradient is not None:
                total = self._sums[id(variable)].total
                total.assign_add(tf.cast(tf.convert_to_tensor(gradient), total.dtype))
        self._merged.assign_add(1)
        times = self._merged.read_value()
        update = partial(self._apply_merged, variables, followers)

        def update_if_enough(strategy: tf.distribute.Strategy, each: Any) -> None:
            # A condition inside of one replica could not wait for the others.
            count = strategy.experimental_local_results(each)[0]

            def update_all() -> tf.Tensor:
                strategy.run(update, args=(each,))
                return tf.constant(True)

            tf.cond(count >= self.merges, update_all, lambda: tf.constant(False))

        def finish() -> None:
            if replica_count() > 1:
                tf.distribute.get_replica_context().merge_call(update_if_enough, args=(times,))
            else:
                tf.cond(times >= self.merges, lambda: update(times), lambda: tf.constant(False))

        return finish, self._merged_values(variables, times)

    def _apply_merged(
        self, variables: Sequence[Any], followers: Followers, times: tf.Tensor
    ) -> tf.Tensor:
        clipped = self._clip(self._averages(variables, times), followers)
        self._apply(variables, followers, clipped)
        for each in self._sums.values():
            each.total.assign(tf.zeros_like(each.total))
        self._merged.assign(0)
        return tf.constant(True)

    def _clip(self, gradients: Sequence[Any], followers: Followers = ()) -> _Clipped:
        """Return clipped gradients, with what is reported or followed."""
        if any(self._clipping) or self._reports or followers:
            return _clip_gradients(self.optimizer(), gradients, self._clipping)
        return _Clipped(gradients, None, True)

    def _apply(self, variables: Sequence[Any], followers: Followers, clipped: _Clipped) -> None:
        """Let the optimizer update the variables, and call the followers."""
        apply_gradients(self._model, clipped.gradients, variables)
        for follow in followers:
            follow(clipped.are_finite)

    def _values(self, clipped: _Clipped) -> list[tf.Tensor] | None:
        """Return the values of the reports, in order; None without reports."""
        if not self._reports:
            return None
        norm = tf.constant(float("nan")) if clipped.norm is None else clipped.norm
        stepped = tf.convert_to_tensor(clipped.are_finite)
        values = {"grad_norm": tf.cast(norm, tf.float32), "stepped": stepped}
        return [values[report] for report in self._reports]

    def _averages(self, variables: Sequence[Any], times: tf.Tensor) -> list[Any]:
        """Return the averages of the sums, scaled as the optimizer expects them."""
        # There are more steps than `merge_grad` if it was lowered, or if a step failed before its
        # update, and fewer if they are flushed.
        share = tf.cast(self.merges, tf.float32) / tf.cast(times, tf.float32)
        totals = [self._sums[id(one)].total if id(one) in self._sums else None for one in variables]
        averages = [
            None if one is None else one / self.merges * tf.cast(share, one.dtype) for one in totals
        ]
        return scale_gradients(self.optimizer(), averages)

    def _merged_values(self, variables: Sequence[Any], times: tf.Tensor) -> list[Any] | None:
        """Return the reports of an update that takes place only if there are enough gradients."""
        if not self._reports:
            return None
        if replica_count() > 1:
            raise ValueError(
                f"UpdateOp of '{name_of(self._model)}' merges gradients on several devices, where "
                "it cannot report updates within a step. Leave `outputs` out."
            )
        return tf.cond(  # type: ignore[no-any-return]
            times >= self.merges,
            lambda: self._values(self._clip(self._averages(variables, times))),
            lambda: self._values(_NO_UPDATE),
        )

    def _make_sums(self, variables: Sequence[Any], gradients: Sequence[Any]) -> None:
        with tf.init_scope():  # The sums outlive the step and its graph.
            if self._merged is None:
                self._merged = _variable_per_replica(
                    tf.constant(0, tf.int64), tf.VariableAggregation.ONLY_FIRST_REPLICA
                )
            for variable, gradient in zip(variables, gradients, strict=True):
                if gradient is not None and id(variable) not in self._sums:
                    self._sums[id(variable)] = _Sum(variable)

    def _merged_times(self) -> int:
        return 0 if self._merged is None else int(self._merged.numpy())

    def merged_parameters(self, names: Sequence[str] | None = None) -> list[Any]:
        """List the trainable variables, then frozen ones that have merged gradients."""
        trained = trainable(self._model)
        if names is None and not self._sums:
            return trained
        ids = set(map(id, trained))
        frozen = [
            (name, weight)
            for name, weight in named_weights(self._model).items()
            if id(weight) not in ids
        ]
        if names is None:
            return trained + [weight for _, weight in frozen if id(weight) in self._sums]
        return trained + [weight for name, weight in frozen if name in names[len(trained) :]]

    def merged(self) -> tuple[int, list[Any]]:
        """Return the number of merged steps, and the sums as arrays, in the order of variables."""
        sums = [self._sums.get(id(variable)) for variable in self.merged_parameters()]
        return self._merged_times(), [None if one is None else one.to_array() for one in sums]

    def set_merged(self, times: int, gradients: Sequence[Any], parameters: Sequence[Any]) -> None:
        """Continue from what `merged` returned, with the variables of the gradients."""
        if self._merged is None and not times:
            return  # A new variable would make traces invalid.
        self._make_sums(parameters, gradients)
        self._merged.assign(times)
        for variable, gradient in zip(parameters, gradients, strict=True):
            if id(variable) in self._sums:
                total = np.zeros(variable.shape) if gradient is None else gradient
                self._sums[id(variable)].put(total)

    def names_of(self, parameters: Sequence[Any]) -> list[str]:
        """Return the names of variables."""
        names = {id(weight): name for name, weight in named_weights(self._model).items()}
        return [names[id(variable)] for variable in parameters]

    def __getstate__(self) -> dict[str, Any]:
        times, gradients = self.merged()
        names = self.names_of(self.merged_parameters()) if times else []
        state = times, gradients, names
        return {**vars(self), "_merged": None, "_sums": {}, "state": state}

    def __setstate__(self, state: dict[str, Any]) -> None:
        times, gradients, names = state.pop("state")
        vars(self).update(state)
        if times:
            self.set_merged(times, gradients, self.merged_parameters(names))


class _Sum:
    """The sum of a variable's gradients. It keeps the variable, so that its id stays unique."""

    def __init__(self, variable: Any) -> None:
        self.variable = variable
        self._strategy = tf.distribute.get_strategy() if replica_count() > 1 else None
        zeros = tf.zeros(variable.shape, variable.dtype)
        self.total = _variable_per_replica(zeros, tf.VariableAggregation.SUM)

    def put(self, total: Any) -> None:
        """Set the sum, of which each replica gets an equal share."""
        total = tf.cast(total, self.total.dtype)
        if self._strategy is None:
            self.total.assign(total)
            return
        share = total / self._strategy.num_replicas_in_sync
        self._strategy.run(lambda: self.total.assign(share))

    def to_array(self) -> np.ndarray[Any, Any]:
        """Return the sum as an array, of float32 for bfloat16, which numpy can only pickle."""
        array: np.ndarray[Any, Any] = np.array(self.total.numpy())
        return array.astype("float32") if array.dtype.name == "bfloat16" else array


def _variable_per_replica(value: tf.Tensor, aggregation: tf.VariableAggregation) -> tf.Variable:
    """Make a variable per replica; read outside of a step it is aggregated."""
    on_read = tf.VariableSynchronization.ON_READ
    return tf.Variable(value, trainable=False, synchronization=on_read, aggregation=aggregation)


class _Clipped(NamedTuple):
    gradients: Sequence[Any]
    norm: tf.Tensor | None
    """The norm before clipping, unscaled, if it is needed."""
    are_finite: tf.Tensor | bool
    """Whether the optimizer applies the gradients: it skips overflows if it scales the loss."""


_NO_UPDATE = _Clipped((), None, False)


def _clip_gradients(optimizer: Any, gradients: Sequence[Any], clipping: Clipping) -> _Clipped:
    """Clip as `tf.clip_by_global_norm`; on several devices clip the sums of their gradients.

    The rows of an embedding's gradient count one by one, as there, even if a row occurs twice.
    """
    max_norm, max_value, measure = clipping
    plain = list(gradients)
    held = [one for one in plain if one is not None]
    replicas = replica_count()
    if replicas > 1 and held:
        context = tf.distribute.get_replica_context()
        dense = [tf.convert_to_tensor(one) for one in held]
        sums = iter(context.all_reduce(tf.distribute.ReduceOp.SUM, dense))
        plain = [None if one is None else next(sums) for one in plain]
    scale = inner_scale_of(optimizer)
    if scale is not None:
        plain = multiply_gradients(plain, 1 / scale)
    are_finite: tf.Tensor | bool = True
    skips_overflow = is_scaling(optimizer)
    if skips_overflow and held:
        are_finite = all_finite(plain)
    norm = None
    if measure or max_norm is not None:
        norm = tf.linalg.global_norm(plain) if held else tf.constant(0.0)
    if max_norm is None and max_value is None:
        return _Clipped(gradients, norm, are_finite)
    if max_norm is not None and held:
        plain, _ = tf.clip_by_global_norm(plain, max_norm, use_norm=norm)
    elif max_value is not None:
        plain = [
            map_values(one, lambda value: tf.clip_by_value(value, -max_value, max_value))
            for one in plain
        ]
    if scale is not None or skips_overflow or replicas > 1:
        share = (1.0 if scale is None else scale) / replicas
        # The optimizer must still see the overflow in clipped gradients.
        plain = multiply_gradients(plain, tf.where(are_finite, share, float("nan")))
    return _Clipped(plain, norm, are_finite)
