"""TensorFlow programs run by a plain eager loop, in which there is nothing of fastnet."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tests.differential.programs import Open, Program
from tests.differential.tf_side import FUNCTIONS, Batch, Side, make_optimizer
from tests.network.keras_models import tf


class ByHand(Side):
    """A program, run by hand."""

    def __init__(self, program: Program, weights: dict[str, Any]) -> None:
        super().__init__(program, weights)
        self._optimizers = {
            name: make_optimizer(spec.optimizers[1], self.models[name])
            for name, spec in program.models.items()
        }
        self._ops = [SimpleNamespace(**vars(op), **op.settings) for op in program.ops]
        # by an op's place: how often gradients were added up, their weights, and sums by variable
        self._merged: dict[int, tuple[int, float, dict[int, Any]]] = {}

    def optimizer(self, name: str) -> Any:
        return self._optimizers[name]

    def put_optimizer(self, name: str, optimizer: Any) -> None:
        self._optimizers[name] = optimizer

    def change_op(self, name: str, attribute: str, value: Any) -> None:
        setattr(self._ops[int(name.rpartition(" ")[2])], attribute, value)

    def open(self, action: Open) -> None:
        self._mode = action.mode

    def close(self) -> None:
        del self._mode

    def step(self, batch: Batch) -> Batch:
        values, written = dict(batch), dict[str, Any]()
        later: list[Callable[[], None]] = []
        with tf.GradientTape(persistent=True) as tape:
            for place, op in enumerate(self._ops):
                if op.mode in (None, self._mode) or (op.mode == "!infer" and self._mode != "infer"):
                    self._run(op, place, values, written, tape, later)
        for update in later:
            update()
        return {**batch, **written}

    def _run(
        self, op: Any, place: int, values: Batch, written: Batch, tape: Any, later: list[Any]
    ) -> None:
        data = [values[key] for key in op.reads]
        if op.kind == "update":
            with tape.stop_recording():
                weight = None if op.weight is None else float(values[op.weight])
                self._update(op, place, data[0], weight, tape, later)
            return
        if op.kind == "model":
            training = op.trainable and self._mode == "train"
            result = self.models[op.model](data[0], training=training)
        elif op.kind == "gradient":
            with tape.stop_recording():
                result = tape.gradient(data[0], self.models[op.model].trainable_variables)
        else:
            result = _RUNS[op.kind](op, *data)
        values[op.writes[0]] = written[op.writes[0]] = result

    def _update(
        self, op: Any, place: int, data: Any, weight: float | None, tape: Any, later: list[Any]
    ) -> None:
        model = self.models[op.model]
        variables = model.trainable_variables
        gradients = data
        if not op.given:
            # what a model adds of its own is added to each element
            with tape:
                loss = tf.reduce_mean(data + sum(tf.reduce_sum(one) for one in model.losses))
            gradients = tape.gradient(loss, variables)
        total = 1.0
        if op.merge_grad > 1 or weight is not None:
            times, total, sums = self._merged.get(place, (0, 0.0, {}))
            own = 1.0 if weight is None else weight
            total += own
            for variable, gradient in zip(variables, gradients, strict=True):
                if gradient is not None:
                    gradient = tf.convert_to_tensor(gradient)
                    gradient = gradient * own if own else tf.zeros_like(gradient)
                    before = sums.get(id(variable))
                    sums[id(variable)] = gradient if before is None else before + gradient
            self._merged[place] = (times + 1, total, sums)
            if times + 1 < op.merge_grad:
                return
            self._merged[place] = (0, 0.0, {})
            gradients = [
                sums[id(one)] / (total or 1) if id(one) in sums else None for one in variables
            ]
        optimizer = self._optimizers[op.model]

        held = [one for one in gradients if one is not None]
        finite = all(bool(tf.reduce_all(tf.math.is_finite(one))) for one in held)
        if not total or (op.skip_nonfinite and not finite):
            return

        def update() -> None:
            optimizer.apply_gradients(zip(gradients, variables, strict=True))

        if op.defer:
            later.append(update)
        else:
            update()


def _mean(op: Any, losses: Any) -> Any:
    return tf.reduce_mean(losses) if op.average_loss else losses


def _sparse(op: Any, y: Any, truth: Any) -> Any:
    return _mean(op, tf.nn.sparse_softmax_cross_entropy_with_logits(labels=truth, logits=y))


def _categorical(op: Any, y: Any, truth: Any) -> Any:
    return _mean(op, tf.nn.softmax_cross_entropy_with_logits(labels=truth, logits=y))


def _binary(op: Any, y: Any, truth: Any) -> Any:
    losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=truth, logits=y)
    return _mean(op, tf.reduce_mean(losses, axis=-1))


def _squared(op: Any, y: Any, truth: Any) -> Any:
    return _mean(op, tf.reduce_mean(tf.square(y - truth), axis=-1))


_RUNS: dict[str, Callable[..., Any]] = {
    "lambda": lambda op, *data: FUNCTIONS[op.fn](*data),
    "sparse": _sparse,
    "categorical": _categorical,
    "binary": _binary,
    "squared": _squared,
}
