"""Updates Keras models: backward, merge, clip and step, now or after the last op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from fastnet.backend.model_metadata import name_of
from fastnet.backend.tf._keras_internals import next_call_updates_weights
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
    trainable_parameters,
)
from fastnet.backend.tf.optimizers import is_scaling
from fastnet.backend.tf.processes import strategy_of
from fastnet.backend.tf.setup import is_ready, prepare_optimizer
from fastnet.backend.tf.weights import named_weights
from fastnet.backend.update import Followers, OptimizerStepSettings, SavedWindow, Update
from fastnet.errors import SECOND_ORDER_ADVICE
from fastnet.types import State
from fastnet.util.warnings import warn


class TFUpdate(Update):
    """Updates a Keras model in the sequence that `UpdateOp` describes.

    Merged gradients are not scaled. What was merged before a step failed stays: a graph cannot undo
    it. On several devices each merges its own gradients, and they communicate only once there
    are enough.
    """

    joins_deferred = False

    def __init__(self, op: Any, reports: Sequence[str] = ()) -> None:
        super().__init__(op, reports)
        self._adds_losses: bool = op.model_losses
        if op.gradients is not None and op.model_losses and op.model.losses:
            warn(
                f"The model '{name_of(op.model)}' has losses of its own, such as regularizers. "
                f"They are left out, because UpdateOp is given the gradients '{op.gradients}'.",
            )
        # Variables: the number of merged steps, and the sum of their weights.
        self._window_count: Any = None
        self._weight_sum: Any = None
        self._sums: dict[int, _Sum] = {}

    @property
    def is_merging(self) -> bool:
        """Whether gradients are added to the sums of earlier steps."""
        # A graph cannot depend on the number of merged steps.
        return self._always_merges or self._window_count is not None

    def _report_warmup(self, loss_or_gradients: Any) -> list[Any] | None:
        minimized = None
        if "total" in self._reports and not self._gradients_are_given:
            minimized = self._minimized(loss_or_gradients)
        return self._report_values(_NO_UPDATE, minimized)

    def _run(
        self,
        data: Any,
        weight: Any,
        state: State,
        defer: bool,
        retain_graph: bool,
        followers: Followers,
    ) -> list[Any] | None:
        optimizer = self.optimizer()
        variables = self._find_trainable(optimizer)
        tape: Any = state.get("tape")
        minimized = loss = None
        if not self._gradients_are_given:
            if tape is None:
                raise no_tape()
            minimized = self._minimized(data)
            loss = self._scaled(minimized, optimizer)
        with paused(tape):  # Later gradients do not depend on what an update computes.
            gradients: Sequence[Any]
            if loss is None:
                gradients = self._check_given(data, optimizer, variables)
            else:
                gradients = self._differentiate(loss, optimizer, variables, tape)
            deferred = state["deferred"].setdefault(name_of(self._model), []) if defer else []
            pending = self._pending_calls(deferred)
            if self.is_merging:
                self._freeze_deferred_averages(state)
                update = self._make_merging_update(
                    gradients, weight, variables, followers, minimized, pending
                )
            else:
                update = self._make_direct_update(
                    gradients, variables, followers, minimized, pending, defer
                )
            if defer:
                deferred.append(update._replace(run=paused(tape)(update.run)))
            else:
                update.run()
        return update.reports

    def _make_direct_update(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        followers: Followers,
        minimized: tf.Tensor | None,
        pending: Any,
        defer: bool,
    ) -> _Update:
        """Return the update by the gradients of this step alone."""
        clipped = self._clip(gradients, followers)
        scale = inner_scale_of(self.optimizer()) if defer else None
        return _Update(
            owner=self,
            run=partial(self._apply, variables, followers, clipped, scale),
            reports=self._report_values(clipped, minimized, pending),
            counts_as_call=clipped.reaches_optimizer,
        )

    def _make_merging_update(
        self,
        gradients: Sequence[Any],
        weight: Any,
        variables: Sequence[Any],
        followers: Followers,
        minimized: tf.Tensor | None,
        pending: Any,
    ) -> _Update:
        """Add gradients to the sums, and return the update by them if there are enough."""
        merged_steps = self._merge_gradients(gradients, weight, variables)
        is_due = merged_steps >= self.window_length
        counts_as_call: Any = True
        if self._counts_calls():
            counts_as_call = tf.cond(
                is_due,
                lambda: tf.convert_to_tensor(
                    self._clip_averages(variables, merged_steps).reaches_optimizer
                ),
                lambda: tf.constant(False),
            )
        apply = partial(self._apply_merged, variables, followers)
        return _Update(
            owner=self,
            run=partial(_run_if, is_due, apply, [merged_steps]),
            reports=self._report_merged_values(variables, merged_steps, minimized, pending),
            counts_as_call=counts_as_call,
            freeze_averages=partial(
                self._freeze_averages, variables, followers, merged_steps, is_due
            ),
        )

    def _freeze_deferred_averages(self, state: State) -> None:
        """Freeze what this op has deferred earlier in the step: its next run changes the sums."""
        deferred = state["deferred"].get(name_of(self._model), [])
        for index, update in enumerate(deferred):
            if isinstance(update, _Update) and update.owner is self and update.freeze_averages:
                run = paused(state.get("tape"))(update.freeze_averages())
                deferred[index] = update._replace(run=run, freeze_averages=None)

    def _freeze_averages(
        self,
        variables: Sequence[Any],
        followers: Followers,
        merged_steps: tf.Tensor,
        is_due: tf.Tensor,
    ) -> Callable[[], Any]:
        """Return a deferred update with the present averages; if it is due, begin a new window."""
        clipped = self._clip_averages(variables, merged_steps, followers)
        condition = is_due
        if clipped.condition is not None:
            condition = tf.logical_and(is_due, clipped.condition)
        clipped = clipped._replace(
            reaches_optimizer=tf.logical_and(is_due, clipped.reaches_optimizer), condition=condition
        )
        _run_if(is_due, self._begin_window, [])
        scale = inner_scale_of(self.optimizer())
        return partial(self._apply, variables, followers, clipped, scale)

    def _pending_calls(self, deferred: Sequence[Any]) -> Any:
        """Return how many calls of an optimizer that accumulates gradients are deferred."""
        if not self._counts_calls():
            return 0
        count_as_calls = [
            update.counts_as_call if isinstance(update, _Update) else True for update in deferred
        ]
        return sum(tf.cast(counts_as_call, tf.int64) for counts_as_call in count_as_calls)

    def _counts_calls(self) -> bool:
        """Return whether the optimizer takes a step only in every nth call."""
        return next_call_updates_weights(self.optimizer()) is not True

    def _flush(self, followers: Followers, state: State, defer: bool) -> None:
        merged_steps = tf.constant(self.window_steps(), tf.int64)
        variables = trainable_parameters(self._model)
        update = partial(self._apply_merged, variables, followers, merged_steps)
        strategy = strategy_of(self._model)
        if strategy is not None and tf.distribute.in_cross_replica_context():
            strategy.run(update)
        else:
            update()

    def clear_gradients(self) -> None:
        """Do nothing: gradients are values, which no variable holds."""

    def _find_trainable(self, optimizer: Any) -> list[Any]:
        """List the variables to update, and prepare the optimizer for them."""
        if not is_ready(optimizer):
            # The model had no variables before this step.
            with tf.init_scope():
                prepare_optimizer(optimizer, self._model)
        variables = trainable_parameters(self._model)
        if not variables:
            raise ValueError(
                f"Model '{name_of(self._model)}' is to be updated, but none of its layers is "
                "trainable. Unfreeze some of them, or take the UpdateOp out."
            )
        return variables

    def _minimized(self, loss: Any) -> tf.Tensor:
        """Return the mean of the loss, with the model's own losses."""
        if not tf.is_tensor(loss):
            raise self.not_a_loss(loss)
        model_losses = self._model.losses if self._adds_losses else None
        if model_losses:
            # In half precision they may be of several dtypes.
            dtypes = [loss.dtype, *[model_loss.dtype for model_loss in model_losses]]
            wide = max(dtypes, key=lambda dtype: dtype.size)
            loss = tf.cast(loss, wide) + sum(
                tf.reduce_sum(tf.cast(model_loss, wide)) for model_loss in model_losses
            )
        return tf.reduce_mean(loss)

    def _scaled(self, loss: tf.Tensor, optimizer: Any) -> tf.Tensor:
        """Return a mean loss, scaled for the optimizer and the number of replicas."""
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
        sources = [
            variable if callable(variable.value) else variable.value for variable in variables
        ]
        gradients: Sequence[Any] = tape.gradient(loss, sources)
        if all(gradient is None for gradient in gradients):
            raise ValueError(
                f"The loss '{self._op.loss_name}' has no gradients for any variable of "
                f"'{name_of(self._model)}': it was not made from the output of a ModelOp "
                f"of this model with gradients=True, in the same step. {SECOND_ORDER_ADVICE}"
            )
        unscale = getattr(optimizer, "get_unscaled_gradients", None)
        return gradients if unscale is None else unscale(gradients)

    def _check_given(
        self, gradients: Any, optimizer: Any, variables: Sequence[Any]
    ) -> Sequence[Any]:
        """Return given gradients as the optimizer expects them."""
        gradients, count = self.check_gradients(gradients, variables), replica_count()
        if count > 1:  # The optimizer sums the gradients of the replicas.
            gradients = [
                map_values(gradient, lambda values: values / count) for gradient in gradients
            ]
        return scale_gradients(optimizer, gradients)

    def _merge_gradients(
        self,
        gradients: Sequence[Any],
        weight: Any,
        variables: Sequence[Any],
    ) -> tf.Tensor:
        """Add gradients to the sums, and return the number of merged steps."""
        self._make_sums(variables, gradients)
        scale = inner_scale_of(self.optimizer())
        if scale is not None:
            # Until the update, the scale may change, and so may the optimizer.
            gradients = multiply_gradients(gradients, 1 / scale)
        if self._weighted:
            weight = self._check_weight(weight)
            self._weight_sum.assign_add(tf.cast(weight, self._weight_sum.dtype))
        for variable, gradient in zip(variables, gradients, strict=True):
            if gradient is not None:
                summed = self._sums[id(variable)].value
                addend = tf.cast(tf.convert_to_tensor(gradient), summed.dtype)
                if self._weighted:
                    # Steps of weight 0 add nothing, even where their gradients are NaN.
                    product = addend * tf.cast(weight, summed.dtype)
                    addend = tf.where(weight != 0, product, tf.zeros_like(product))
                summed.assign_add(addend)
        self._window_count.assign_add(1)
        return self._window_count.read_value()

    def _check_weight(self, weight: Any) -> tf.Tensor:
        """Return a weight as a scalar."""
        try:
            scalar = tf.convert_to_tensor(weight)
        except (TypeError, ValueError):
            raise self.not_a_weight(weight) from None
        if scalar.dtype.is_bool:
            scalar = tf.cast(scalar, tf.int64)
        if scalar.shape.num_elements() != 1 or not (
            scalar.dtype.is_floating or scalar.dtype.is_integer
        ):
            raise self.not_a_weight(weight)
        return tf.reshape(scalar, ())

    def _apply_merged(
        self, variables: Sequence[Any], followers: Followers, merged_steps: tf.Tensor
    ) -> tf.Tensor:
        clipped = self._clip_averages(variables, merged_steps, followers)
        self._apply(variables, followers, clipped)
        self._begin_window()
        return tf.constant(True)

    def _begin_window(self) -> None:
        """Set the sums, their weight and the number of merged steps to 0."""
        for gradient_sum in self._sums.values():
            gradient_sum.value.assign(tf.zeros_like(gradient_sum.value))
        self._window_count.assign(0)
        if self._weighted:
            self._weight_sum.assign(0)

    def _clip_averages(
        self, variables: Sequence[Any], merged_steps: tf.Tensor, followers: Followers = ()
    ) -> _Clipped:
        """Return the clipped averages of the sums."""
        if not self._weighted:
            return self._clip(self._averages(variables, merged_steps), followers)
        weight = self._weight_sum.read_value()
        if replica_count() > 1:
            context = tf.distribute.get_replica_context()
            weight = context.all_reduce(tf.distribute.ReduceOp.MEAN, weight)
        # If all weights are 0, there is no step, and so it does not matter what they divide.
        has_weight = weight != 0
        divisor = tf.where(has_weight, weight, tf.ones_like(weight))
        averages: list[Any] = []
        for variable, value in zip(variables, self._sums_for(variables), strict=True):
            if value is None:
                averages.append(None)
            else:
                average = value / tf.cast(divisor, value.dtype)
                averages.append(tf.cast(average, variable.dtype))
        clipped = self._clip(scale_gradients(self.optimizer(), averages), followers)
        condition = has_weight
        if clipped.condition is not None:
            condition = tf.logical_and(has_weight, clipped.condition)
        return clipped._replace(
            reaches_optimizer=tf.logical_and(has_weight, clipped.reaches_optimizer),
            condition=condition,
        )

    def _clip(self, gradients: Sequence[Any], followers: Followers = ()) -> _Clipped:
        """Return clipped gradients, with what is reported or followed."""
        is_reported = bool(self._reports or followers)
        if self._step_settings.reads_gradients or is_reported or self._counts_calls():
            return _clip_gradients(self.optimizer(), gradients, self._step_settings)
        return _Clipped(gradients, None, True)

    def _apply(
        self,
        variables: Sequence[Any],
        followers: Followers,
        clipped: _Clipped,
        scale: tf.Tensor | None = None,
    ) -> None:
        """Let the optimizer update the variables, and call the followers.

        `scale` is the scale of the gradients of a deferred update, if they have one.
        """
        if scale is not None:
            # An update in between may have changed the scale.
            ratio = tf.convert_to_tensor(inner_scale_of(self.optimizer())) / scale
            clipped = clipped._replace(gradients=multiply_gradients(clipped.gradients, ratio))
        # The optimizer's step changes what it depends on.
        stepped = self._updates_weights(clipped) if followers else False
        if clipped.condition is None:
            apply_gradients(self._model, clipped.gradients, variables)
        else:
            _run_if(
                clipped.condition,
                lambda *gradients: apply_gradients(self._model, gradients, variables),
                clipped.gradients,
            )
        for follow in followers:
            follow(stepped)

    def _updates_weights(self, clipped: _Clipped, pending: Any = 0) -> Any:
        """Return whether the optimizer's call with these gradients updates the variables.

        `pending` is the number of its calls before that.
        """
        if clipped is _NO_UPDATE:
            return clipped.reaches_optimizer
        updates_weights = next_call_updates_weights(self.optimizer(), pending)
        if updates_weights is True:
            return clipped.reaches_optimizer
        return tf.logical_and(updates_weights, clipped.reaches_optimizer)

    def _report_values(
        self, clipped: _Clipped, minimized: tf.Tensor | None, pending: Any = 0
    ) -> list[tf.Tensor] | None:
        """Return the values of the reports, in order; None without reports."""
        if not self._reports:
            return None
        unknown = tf.constant(float("nan"))
        stepped = tf.convert_to_tensor(self._updates_weights(clipped, pending))
        norm = unknown if clipped.norm is None else tf.cast(clipped.norm, tf.float32)
        values = {
            # Without an update there is no norm.
            "grad_norm": tf.where(stepped, norm, unknown),
            "stepped": stepped,
            "total": unknown if minimized is None else minimized,
        }
        return [values[report] for report in self._reports]

    def _averages(self, variables: Sequence[Any], merged_steps: tf.Tensor) -> list[Any]:
        """Return the averages of the sums, scaled as the optimizer expects them."""
        # There are more steps than `merge_grad` if it was lowered, or if a step failed before its
        # update, and fewer if they are flushed.
        share = tf.cast(self.window_length, tf.float32) / tf.cast(merged_steps, tf.float32)
        averages = [
            None if value is None else value / self.window_length * tf.cast(share, value.dtype)
            for value in self._sums_for(variables)
        ]
        return scale_gradients(self.optimizer(), averages)

    def _sums_for(self, variables: Sequence[Any]) -> list[Any]:
        """Return the sum for each variable, or None."""
        sums = [self._sums.get(id(variable)) for variable in variables]
        return [None if gradient_sum is None else gradient_sum.value for gradient_sum in sums]

    def _report_merged_values(
        self,
        variables: Sequence[Any],
        merged_steps: tf.Tensor,
        minimized: tf.Tensor | None,
        pending: Any,
    ) -> list[Any] | None:
        """Return the reports of an update that takes place only if there are enough gradients."""
        if not self._reports:
            return None
        if replica_count() > 1:
            raise ValueError(
                f"UpdateOp of '{name_of(self._model)}' merges gradients on several devices, where "
                "it cannot report updates within a step. Leave `outputs` out."
            )
        return tf.cond(  # type: ignore[no-any-return]
            merged_steps >= self.window_length,
            lambda: self._report_values(
                self._clip_averages(variables, merged_steps), minimized, pending
            ),
            lambda: self._report_values(_NO_UPDATE, minimized),
        )

    def _make_sums(self, variables: Sequence[Any], gradients: Sequence[Any]) -> None:
        with tf.init_scope():  # The sums outlive the step and its graph.
            if self._window_count is None:
                self._window_count = _variable_per_replica(
                    tf.constant(0, tf.int64), tf.VariableAggregation.ONLY_FIRST_REPLICA
                )
            if self._weighted and self._weight_sum is None:
                self._weight_sum = _variable_per_replica(
                    tf.constant(0, tf.float64), tf.VariableAggregation.SUM
                )
            for variable, gradient in zip(variables, gradients, strict=True):
                if gradient is not None and id(variable) not in self._sums:
                    self._sums[id(variable)] = _Sum(variable, self._weighted)

    def window_steps(self) -> int:
        """Return the number of steps merged since the last update."""
        return 0 if self._window_count is None else int(self._window_count.numpy())

    def trained_parameters(self) -> list[Any]:
        """List the trainable variables of the model."""
        return trainable_parameters(self._model)

    def frozen_parameters(self) -> list[Any]:
        """List the variables of the model that are not trainable now."""
        trained = set(map(id, trainable_parameters(self._model)))
        weights = named_weights(self._model).values()
        return [weight for weight in weights if id(weight) not in trained]

    def has_sum(self, parameter: Any) -> bool:
        """Return whether gradients of a variable have been merged."""
        return id(parameter) in self._sums

    def save_window(self) -> SavedWindow:
        """Return what was merged since the last update, the sums as arrays."""
        sums = [self._sums.get(id(variable)) for variable in self.window_parameters()]
        arrays = [
            None if gradient_sum is None else gradient_sum.to_array() for gradient_sum in sums
        ]
        weight = None
        if self._weighted:
            weight = 0.0 if self._weight_sum is None else float(self._weight_sum.numpy())
        return SavedWindow(self.window_steps(), arrays, weight)

    def load_window(self, window: SavedWindow, parameters: Sequence[Any]) -> None:
        """Continue from the result of `save_window`, with the variables of its gradients."""
        if self._window_count is None and not window.steps:
            return  # A new variable would make traces invalid.
        self._make_sums(parameters, window.gradients)
        self._window_count.assign(window.steps)
        if self._weighted:
            _put(self._weight_sum, window.weight or 0)
        saved = dict(zip(map(id, parameters), window.gradients, strict=True))
        for identifier, gradient_sum in self._sums.items():
            # A variable that is frozen now has no saved gradient, but may have a sum.
            gradient = saved.get(identifier)
            total = np.zeros(gradient_sum.variable.shape) if gradient is None else gradient
            _put(gradient_sum.value, total)

    def names_of(self, parameters: Sequence[Any]) -> list[str]:
        """Return the names of variables."""
        names = {id(weight): name for name, weight in named_weights(self._model).items()}
        return [names[id(variable)] for variable in parameters]

    def __getstate__(self) -> dict[str, Any]:
        window = self.save_window()
        names = self.names_of(self.window_parameters()) if window.steps else []
        unset: dict[str, Any] = {"_window_count": None, "_weight_sum": None, "_sums": {}}
        return {**vars(self), **unset, "state": (window, names)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        window, names = state.pop("state")
        vars(self).update(state)
        if window.steps:
            self.load_window(window, self.window_parameters(names))


class _Sum:
    """The sum of a variable's gradients. It keeps the variable, so that its id stays unique."""

    def __init__(self, variable: Any, is_weighted: bool) -> None:
        self.variable = variable
        dtype = tf.as_dtype(variable.dtype)
        # Weighted sums of halves would overflow.
        zeros = tf.zeros(variable.shape, tf.float32 if is_weighted and dtype.size < 4 else dtype)
        self.value = _variable_per_replica(zeros, tf.VariableAggregation.SUM)

    def to_array(self) -> np.ndarray[Any, Any]:
        """Return the sum as an array, of float32 for bfloat16, which numpy can only pickle."""
        array: np.ndarray[Any, Any] = np.array(self.value.numpy())
        return array.astype("float32") if array.dtype.name == "bfloat16" else array


def _variable_per_replica(value: tf.Tensor, aggregation: tf.VariableAggregation) -> tf.Variable:
    """Make a variable per replica; read outside of a step it is aggregated."""
    return tf.Variable(
        value,
        trainable=False,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=aggregation,
        # It is made outside of the graph: otherwise tf.function would trace the step twice.
        experimental_enable_variable_lifting=False,
    )


def _put(variable: tf.Variable, total: Any) -> None:
    """Set a variable that is summed when it is read; each replica gets an equal share."""
    total, strategy = tf.cast(total, variable.dtype), getattr(variable, "distribute_strategy", None)
    if strategy is None or strategy.num_replicas_in_sync == 1:
        variable.assign(total)
        return
    share = total / strategy.num_replicas_in_sync
    strategy.run(lambda: variable.assign(share))


def _run_if(condition: tf.Tensor, function: Callable[..., Any], values: Sequence[Any]) -> None:
    """Call a function of values, which may be None, if a scalar is true.

    On several replicas it must be equal on all.
    """
    tensors = [value for value in values if value is not None]

    def run(*tensors: Any) -> tf.Tensor:
        remaining = iter(tensors)
        function(*[None if value is None else next(remaining) for value in values])
        return tf.constant(True)

    def run_on_all(strategy: tf.distribute.Strategy, conditions: Any, tensors: Any) -> None:
        # A condition inside of one replica could not wait for the others.
        tf.cond(
            strategy.experimental_local_results(conditions)[0],
            lambda: strategy.run(run, args=tensors) is None,
            lambda: tf.constant(False),
        )

    if replica_count() > 1:
        context = tf.distribute.get_replica_context()
        context.merge_call(run_on_all, args=(condition, tuple(tensors)))
    else:
        tf.cond(condition, lambda: run(*tensors), lambda: tf.constant(False))


class _Update(NamedTuple):
    """An update of one step, which runs now or is deferred."""

    owner: TFUpdate
    run: Callable[[], Any]
    reports: list[Any] | None
    counts_as_call: tf.Tensor | bool
    """Whether the inner optimizer's call counter grows."""
    freeze_averages: Callable[[], Callable[[], Any]] | None = None
    """Fixes the averages, empties a window that is due, and returns the function to run instead.

    None if there are no averages, or they are fixed.
    """

    def __call__(self) -> None:
        self.run()


class _Clipped(NamedTuple):
    gradients: Sequence[Any]
    norm: tf.Tensor | None
    """The norm before clipping, unscaled, if it is needed."""
    reaches_optimizer: tf.Tensor | bool
    """Whether the inner optimizer gets the gradients; it may only accumulate them.

    A loss scale optimizer keeps overflows from it.
    """
    condition: tf.Tensor | None = None
    """Whether the optimizer is called at all; None if it always is."""


_NO_UPDATE = _Clipped((), None, False)


def _clip_gradients(
    optimizer: Any, gradients: Sequence[Any], settings: OptimizerStepSettings
) -> _Clipped:
    """Clip as `tf.clip_by_global_norm`; on several devices clip the sums of their gradients.

    The rows of an embedding's gradient count one by one, as there, even if a row occurs twice;
    but merged gradients and those of several devices are dense, so that equal rows are added first.
    """
    max_norm, max_value = settings.clip_norm, settings.clip_value
    # The gradients as they are clipped: unscaled, and summed over all devices.
    clipped = list(gradients)
    present = [gradient for gradient in clipped if gradient is not None]
    replicas = replica_count()
    if replicas > 1 and present:
        context = tf.distribute.get_replica_context()
        dense = [tf.convert_to_tensor(gradient) for gradient in present]
        sums = iter(context.all_reduce(tf.distribute.ReduceOp.SUM, dense))
        clipped = [None if gradient is None else next(sums) for gradient in clipped]
    scale = inner_scale_of(optimizer)
    if scale is not None:
        clipped = multiply_gradients(clipped, 1 / scale)
    are_finite: tf.Tensor | bool = True
    skips_overflow = is_scaling(optimizer)
    if (skips_overflow or settings.skip_nonfinite) and present:
        are_finite = all_finite(clipped)
    condition = are_finite if settings.skip_nonfinite and present and not skips_overflow else None
    norm = None
    if settings.needs_norm or max_norm is not None:
        norm = tf.linalg.global_norm(clipped) if present else tf.constant(0.0)
    if max_norm is None and max_value is None:
        return _Clipped(gradients, norm, are_finite, condition)
    if max_norm is not None and present:
        clipped, _ = tf.clip_by_global_norm(clipped, max_norm, use_norm=norm)
    elif max_value is not None:
        clipped = [
            map_values(gradient, lambda values: tf.clip_by_value(values, -max_value, max_value))
            for gradient in clipped
        ]
    if scale is not None or skips_overflow or replicas > 1:
        share = (1.0 if scale is None else scale) / replicas
        # The optimizer must still see the overflow in clipped gradients.
        clipped = multiply_gradients(clipped, tf.where(are_finite, share, float("nan")))
    return _Clipped(clipped, norm, are_finite, condition)
