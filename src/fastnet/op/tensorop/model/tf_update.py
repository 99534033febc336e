"""An update of a Keras model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from fastnet.backend.facts import holder_of, name_of
from fastnet.backend.tf.gradients import (
    DeferredUpdate,
    apply_gradients,
    no_tape,
    paused,
    replica_count,
    scale_gradients,
)
from fastnet.backend.tf.setup import is_ready, prepare_optimizer
from fastnet.backend.tf.trained import Trained
from fastnet.op.tensorop.model.model_update import Extras, ModelUpdate, Updates
from fastnet.op.tensorop.model.tf_extras import ExtraUpdate
from fastnet.types import State
from fastnet.util.warnings import warn


class TFUpdate(ModelUpdate):
    """What an UpdateOp does with a Keras model.

    A step that failed leaves nothing here: gradients are values of the step, and what it has merged
    is put back by what it has deferred.

    On several devices each merges its own gradients, and nothing is communicated before there are
    enough of them.

    Args:
        op: The op.
    """

    trained = "variables"
    _extra = ExtraUpdate

    def __init__(self, op: Updates) -> None:
        super().__init__(op, 1)
        if op.gradients is not None and op.model.losses:
            warn(
                f"The model '{name_of(op.model)}' has losses of its own, such as regularizers. "
                f"They are left out, because UpdateOp is given the gradients '{op.gradients}'.",
            )
        self._merged: Any = None  # how many times gradients were added up
        self._sums: dict[int, _Sum] = {}

    def __getstate__(self) -> dict[str, Any]:
        # variables of a copy are found by their places
        places = {id(one): place for place, one in enumerate(self._model.weights)}
        sums = {places[key]: _array(each.total) for key, each in self._sums.items()}
        times = None if self._merged is None else int(self._merged.numpy())
        kept = {name: vars(self)[name] for name in ("_op", "_model", "_given", "_merge")}
        return {**kept, "times": times, "sums": sums}

    def __setstate__(self, state: dict[str, Any]) -> None:
        times, sums = state.pop("times"), state.pop("sums")
        vars(self).update(state)
        self._optimized = holder_of(self._model, "current_optimizer")
        self._merged, self._sums = None, {}
        if times is not None:
            weights = self._model.weights
            self._make_sums([weights[place] for place in sums], list(sums.values()))
            self._merged.assign(times)
            for place, total in sums.items():
                self._sums[id(weights[place])].put(total)

    def __call__(
        self,
        data: Any,
        state: State,
        op: Updates,
        defer: bool,
        retain_graph: bool,
        extra: ExtraUpdate | None = None,
    ) -> None:
        """Take gradients, and update or put the update off.

        Args:
            data: The loss, or a list of gradients.
            state: The step's context.
            op: The op, or a copy of it, with a `defer` of its own.
            defer: Whether to put the update off until after the last op, whatever the op says.
            retain_graph: Not used: the tape is there for the whole step.
            extra: What is done besides, or None.

        Raises:
            ValueError: If the model has no optimizer in this epoch, or nothing to train, or what
                is read is no loss, or are not its gradients.
        """
        if state["warmup"]:
            return
        optimizer = self._optimizer()
        trained = self._find_trained(optimizer, state)
        tape: Any = state.get("tape")
        gradients: Sequence[Any]
        target = None if self._given else self._target(data, trained, tape)
        # what an update computes is of no use to a later op's gradients
        with paused(tape):
            if target is not None:
                gradients = self._unscaled(tape.gradient(target, trained.sources), trained)
            else:
                gradients = self._shared(data, optimizer, trained)
            apply = apply_gradients
            if extra is not None:
                if self._merge == 1:
                    gradients = extra.prepare(gradients)
                apply = extra.apply
            if defer or op.defer or self._merge > 1:
                self._put_off(gradients, trained.variables, state, defer or op.defer, extra)
                return
            apply(self._model, gradients, trained.variables)

    def flush(self, extras: Extras) -> None:
        """Update with the average of what was merged since the last update, if anything was.

        Args:
            extras: What is done besides.
        """
        times = 0 if self._merged is None else int(self._merged.numpy())
        if not times:
            return
        trained = Trained(self._model, self._optimizer())
        extra = ExtraUpdate(extras, self._model)
        update = partial(
            self._update_merged, trained.variables, extra, tf.constant(times, tf.int64)
        )
        if tf.distribute.in_cross_replica_context() and tf.distribute.has_strategy():
            tf.distribute.get_strategy().run(update)
        else:
            update()

    def _find_trained(self, optimizer: Any, state: State) -> Trained:
        """Find what is to be updated, and get the optimizer ready for it."""
        known: dict[int, Trained] = state.get("trained", {})
        trained = known.get(id(self))
        if trained is not None and trained.holds(optimizer):
            return trained
        if not is_ready(optimizer):
            # the model only had its variables made in this step
            with tf.init_scope():
                prepare_optimizer(optimizer, self._model)
        trained = Trained(self._model, optimizer)
        if not trained.variables:
            raise ValueError(
                f"Model '{name_of(self._model)}' is to be updated, but none of its layers is "
                "trainable. Unfreeze some of them, or take the UpdateOp out."
            )
        known[id(self)] = trained
        return trained

    def _put_off(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        state: State,
        defer: bool,
        extra: ExtraUpdate | None,
    ) -> None:
        """Update after the last op, or once there are enough gradients."""
        if self._merge > 1:
            update = self._merge_gradients(gradients, variables, state, extra)
        else:
            apply = apply_gradients if extra is None else extra.apply
            update = DeferredUpdate(self._model, gradients, variables, apply)
        if defer:
            later = partial(_run_unrecorded, update, state.get("tape"))
            state["deferred"].setdefault(name_of(self._model), []).append(later)
        else:
            update()

    def _target(self, loss: Any, trained: Trained, tape: tf.GradientTape | None) -> tf.Tensor:
        """Return what is differentiated: the mean, with the model's own losses, scaled."""
        if tape is None:
            raise no_tape()
        if not tf.is_tensor(loss):
            raise self._no_loss(loss)
        own = self._model.losses
        if own:
            # in half precision they may be of several types
            wide = max([loss.dtype, *[one.dtype for one in own]], key=lambda kind: kind.size)
            loss = tf.cast(loss, wide) + sum(tf.reduce_sum(tf.cast(one, wide)) for one in own)
        loss = trained.scaled(tf.reduce_mean(loss))
        # the gradients of the replicas are added up
        return loss / trained.replicas if trained.replicas > 1 else loss

    def _unscaled(self, gradients: Sequence[Any], trained: Trained) -> list[Any]:
        """Return gradients of the loss as the optimizer wants them."""
        gradients = list(trained.unscaled(gradients))
        if all(gradient is None for gradient in gradients):
            raise ValueError(
                f"The loss '{self._op.loss_name}' has no gradients for any variable of "
                f"'{name_of(self._model)}': it was not made from the output of a ModelOp "
                "of this model with gradients=True, in the same step."
            )
        return gradients

    def _shared(self, gradients: Any, optimizer: Any, trained: Trained) -> Sequence[Any]:
        """Return gradients that were handed in as the optimizer wants them."""
        self._require_gradients(gradients, len(trained.variables))
        if trained.replicas > 1:
            # those of the replicas are added up
            gradients = [None if one is None else _share(one) for one in gradients]
        return scale_gradients(optimizer, gradients)

    def _merge_gradients(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        state: State,
        extra: ExtraUpdate | None,
    ) -> Callable[[], None]:
        """Add gradients up, and give what updates with their averages once there are enough."""
        self._make_sums(variables, gradients)
        undo = self._undo_in(state)
        for variable, gradient in zip(variables, gradients, strict=True):
            if gradient is not None:
                total = self._sums[id(variable)].total
                total.assign_add(tf.cast(tf.convert_to_tensor(gradient), total.dtype))
        self._merged.assign_add(1)
        times = self._merged.read_value()

        update = partial(self._update_merged, variables, extra)
        if extra is not None and extra.tells:
            self._measure(extra, variables, times)

        def update_if_enough(strategy: tf.distribute.Strategy, each: Any) -> None:
            # where the devices meet: a condition of one of them cannot wait for the others
            count = strategy.experimental_local_results(each)[0]

            def update_all() -> tf.Tensor:
                strategy.run(update, args=(each,))
                return tf.constant(True)

            tf.cond(count >= self._merge, update_all, lambda: tf.constant(False))

        def settle() -> None:
            if undo is not None:
                if times >= self._merge:
                    update(times)
                    undo()
            elif replica_count() > 1:
                tf.distribute.get_replica_context().merge_call(update_if_enough, args=(times,))
            else:
                enough = tf.greater_equal(times, self._merge)
                tf.cond(enough, lambda: update(times), lambda: tf.constant(False))

        return settle

    def _update_merged(
        self, variables: Sequence[Any], extra: ExtraUpdate | None, times: tf.Tensor
    ) -> tf.Tensor:
        averages = self._averages(variables, times)
        if extra is None:
            apply_gradients(self._model, averages, variables)
        else:
            extra.apply(self._model, extra.prepare(averages), variables)
        for each in self._sums.values():
            each.total.assign(tf.zeros_like(each.total))
        self._merged.assign(0)
        return tf.constant(True)

    def _averages(self, variables: Sequence[Any], times: tf.Tensor) -> list[Any]:
        # more times than `merge_grad` if a step failed before its update, fewer if they are flushed
        share = tf.cast(self._merge, tf.float32) / tf.cast(times, tf.float32)
        return [
            self._sums[id(one)].average(self._merge, share) if id(one) in self._sums else None
            for one in variables
        ]

    def _measure(self, extra: ExtraUpdate, variables: Sequence[Any], times: tf.Tensor) -> None:
        """Find out what is told of an update that may be made, or not, and later."""
        if replica_count() > 1:
            raise ValueError(
                f"UpdateOp of '{name_of(self._model)}' merges gradients on several devices, where "
                "it cannot tell of its updates in a step. Leave `outputs` out."
            )

        def measured() -> tuple[tf.Tensor, tf.Tensor]:
            return extra.measured(self._averages(variables, times))

        def nothing() -> tuple[tf.Tensor, tf.Tensor]:
            return tf.constant(float("nan")), tf.constant(False)

        extra.tell(*tf.cond(tf.greater_equal(times, self._merge), measured, nothing))

    def _make_sums(self, variables: Sequence[Any], gradients: Sequence[Any]) -> None:
        with tf.init_scope():  # what is added up outlives the step, and the graph
            if self._merged is None:
                self._merged = _variable_of_each(tf.constant(0, tf.int64), _FIRST)
            for variable, gradient in zip(variables, gradients, strict=True):
                if gradient is not None and id(variable) not in self._sums:
                    self._sums[id(variable)] = _Sum(variable)

    def merged(self) -> tuple[int, list[Any]]:
        """Return the gradients that were added up since the last update.

        Returns:
            Of how many steps, and the sum for each trainable variable: an array, or None.
        """
        sums = [self._sums.get(id(variable)) for variable in self._model.trainable_variables]
        times = 0 if self._merged is None else int(self._merged.numpy())
        return times, [None if one is None else _array(one.total) for one in sums]

    def complaint_about(self, times: int, gradients: Sequence[Any]) -> str | None:
        """Return why gradients cannot be gone on from.

        Args:
            times: Of how many steps they are said to be; a graph that fails may count too many.
            gradients: What is said to be the sums, one for each trainable variable.

        Returns:
            What is wrong, to stand behind "The state to load"; None if nothing is.
        """
        if times and self._merge == 1:
            return f"is of {times} merged steps, but the op has merge_grad=1"
        variables = self._model.trainable_variables
        for place, (variable, gradient) in enumerate(zip(variables, gradients, strict=True)):
            if gradient is None:
                continue
            given = np.asarray(gradient)
            if given.dtype.kind not in "iuf" or given.shape != tuple(variable.shape):
                return (
                    f"has gradient {place} of the shape {given.shape} and {given.dtype}, for a "
                    f"variable of the shape {tuple(variable.shape)}"
                )
        return None

    def set_merged(self, times: int, gradients: Sequence[Any]) -> None:
        """Go on from gradients that were added up before.

        Args:
            times: Of how many steps.
            gradients: What `merged` gave, one for each trainable variable.
        """
        variables = self._model.trainable_variables
        self._make_sums(variables, gradients)
        self._merged.assign(times)
        for variable, gradient in zip(variables, gradients, strict=True):
            if id(variable) in self._sums:
                each = self._sums[id(variable)]
                each.put(np.zeros(variable.shape) if gradient is None else gradient)

    def _undo_in(self, state: State) -> _Undo | None:
        """Let a step that fails forget what it has merged; what a graph has merged may count."""
        if not tf.executing_eagerly():
            return None
        key = f"merge_grad of {id(self)}"
        if key not in state["deferred"]:
            kept = [self._merged, *[each.total for each in self._sums.values()]]
            state["deferred"][key] = [_Undo(kept)]
        found: _Undo = state["deferred"][key][0]
        return found


def _run_unrecorded(update: Callable[[], None], tape: tf.GradientTape | None) -> None:
    """Update, of which a tape is to record nothing."""
    with paused(tape):
        update()


class _Sum:
    """The gradients of a variable, added up; the variable is kept, so that its id stays its own."""

    def __init__(self, variable: Any) -> None:
        self.variable = variable
        self._strategy = tf.distribute.get_strategy() if replica_count() > 1 else None
        self.total = _variable_of_each(tf.zeros(variable.shape, variable.dtype), _SUM)

    def put(self, total: Any) -> None:
        """Let devices have a sum between them."""
        total = tf.cast(total, self.total.dtype)
        if self._strategy is None:
            self.total.assign(total)
            return
        share = total / self._strategy.num_replicas_in_sync
        self._strategy.run(lambda: self.total.assign(share))

    def average(self, times: int, share: tf.Tensor) -> tf.Tensor:
        return self.total / times * tf.cast(share, self.total.dtype)


class _Undo:
    """Puts variables back, unless the step ends first."""

    def __init__(self, variables: list[tf.Variable]) -> None:
        self._before = [(variable, variable.read_value()) for variable in variables]

    def __call__(self) -> None:
        self._before = []

    def discard(self) -> None:
        for variable, value in self._before:
            variable.assign(value)


_FIRST = tf.VariableAggregation.ONLY_FIRST_REPLICA
_SUM = tf.VariableAggregation.SUM


def _variable_of_each(value: tf.Tensor, aggregation: tf.VariableAggregation) -> tf.Variable:
    """Make a variable that each device has for itself; read outside of a step it is all of them."""
    if replica_count() == 1:
        return tf.Variable(value, trainable=False)
    on_read = tf.VariableSynchronization.ON_READ
    return tf.Variable(value, trainable=False, synchronization=on_read, aggregation=aggregation)


def _array(variable: tf.Variable) -> np.ndarray[Any, Any]:
    array: np.ndarray[Any, Any] = np.array(variable.numpy())
    # numpy itself has no bfloat16, and could only pickle it
    return array.astype("float32") if array.dtype.name == "bfloat16" else array


def _share(gradient: Any) -> Any:
    """Return one replica's share of a gradient."""
    if isinstance(gradient, tf.IndexedSlices):
        values = gradient.values / replica_count()
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient / replica_count()
