"""What the ways to run a TensorFlow program share: models, optimizers, batches, changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.differential import programs
from tests.differential.programs import Change, Optimizer, Program
from tests.differential.tf_programs import Step
from tests.network.keras_models import KERAS_3, keras, layers, tf

Batch = dict[str, Any]


class Knob:
    """A value in a batch that is no tensor, and whose attribute changes."""

    turn = 1.0


def halve(x: Any) -> Any:
    return x * 0.5


def by_length(x: Any) -> Any:
    if x.shape[1] == 2:
        return x * 2.0
    return x * 3.0 - float(x.shape[1])


def by_mean(x: Any) -> Any:
    if tf.reduce_mean(x) > 0:
        x = x + 1.0
    else:
        x = -2.0 * x
    return x


def by_scale(x: Any, scale: Any) -> Any:
    return x * scale


def by_how(x: Any, how: Any) -> Any:
    return x + 1.0 if how == "up" else x - 1.0


def by_knob(x: Any, knob: Any) -> Any:
    return x * knob.turn


def by_nest(x: Any, nest: Any) -> Any:
    one, other = nest.values()
    return x * one - other


def by_width(loss: Any, w: Any) -> Any:
    share = 100.0 if w.shape[-1] == 5 else float(w.shape[-1])
    return loss * (1.0 + 0.01 * share * tf.reduce_mean(tf.abs(w)))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "halve": halve,
    "branch on length": by_length,
    "branch on mean": by_mean,
    "by scale": by_scale,
    "by how": by_how,
    "by knob": by_knob,
    "by nest": by_nest,
    "by width": by_width,
    "infinite at times": lambda x: tf.where(tf.reduce_mean(x) > 1.0, x * float("inf"), x),
}


def make_model(kind: str) -> Any:
    """Make a model: (batch, length, 4) to (batch, 3), or, of the kind "front", to its own shape."""
    if kind == "front":
        return keras.Sequential(
            [layers.Input((None, 4)), layers.Dense(4, activation="tanh"), layers.Dense(4)]
        )
    penalty = keras.regularizers.L2(0.05) if kind == "regular" else None
    first: list[Any] = [layers.Dense(5, activation="tanh", kernel_regularizer=penalty)]
    if kind == "norm":
        first.append(layers.BatchNormalization())
    elif kind == "conv":
        first = [layers.Conv1D(5, 2, padding="same", activation="tanh")]
    rest = [layers.GlobalAveragePooling1D(), layers.Dense(3)]
    return keras.Sequential([layers.Input((None, 4)), *first, *rest])


def make_optimizer(spec: Optimizer, model: Any) -> Any:
    """Make an optimizer, with variables for all that may come to be trained."""
    made = getattr(keras.optimizers, spec.kind)(spec.rate, **spec.arguments)
    made.build(_weights(model))
    return made


def _weights(model: Any) -> list[Any]:
    """List what may be trained, were nothing frozen."""
    moving = ("moving_mean", "moving_variance")
    return [one for one in model.weights if not one.name.split(":")[0].endswith(moving)]


def make_batch(step: Step, knob: Knob) -> Batch:
    """Make the batch of a step."""
    source = np.random.default_rng(step.seed)

    def normal(*shape: int) -> Any:
        return tf.constant(source.standard_normal(shape), tf.float32)

    truth = source.integers(0, 3, step.size)
    nest = {"one": tf.constant(0.5), "other": tf.constant(0.25)}
    knob.turn = step.turn
    return {
        "x": normal(step.size, step.length, 4),
        "w": normal(step.size, step.width),
        "target": normal(step.size, 3),
        "t": tf.constant(truth),
        "onehot": tf.one_hot(truth, 3),
        "weight": tf.constant(float(step.seed % 4)),
        "scale": step.scale,
        "how": step.how,
        "knob": knob,
        "nest": dict(reversed(nest.items())) if step.reverse else nest,
    }


class Side(programs.Side):
    """One of the ways to run a program.

    Attributes:
        program: The program.
        models: Its models.
        knob: The object in its batches.
    """

    def __init__(self, program: Program, weights: dict[str, Any]) -> None:
        self.program = program
        self.models: dict[str, Any] = {}
        for name, spec in program.models.items():
            self.models[name] = make_model(spec.kind)
            self.models[name].set_weights(weights[name])
        self.knob = Knob()

    def observe(self) -> Batch:
        """Copy all that a step may change."""
        seen: Batch = {}
        for name, model in self.models.items():
            seen[name] = [np.array(one) for one in model.weights]
            optimizer = self.optimizer(name)
            variables = optimizer.variables
            variables = variables() if callable(variables) else variables
            seen[f"optimizer of {name}"] = [np.array(one) for one in variables]
        return seen


def apply(side: Side, change: Change) -> None:
    """Change something on one side."""
    if change.kind == "op":
        side.change_op(change.of, *change.value)
        return
    _CHANGES[change.kind](side, change.of, change.value)


def _rate(side: Side, name: str, value: float) -> None:
    optimizer = side.optimizer(name)
    if not callable(getattr(optimizer, "_learning_rate", None)):
        optimizer.learning_rate = value


def _set_weights(side: Side, name: str, value: int) -> None:
    source = np.random.default_rng(value)
    model = side.models[name]
    model.set_weights([one + 0.1 * source.random(one.shape) for one in model.get_weights()])


def _kernels(model: Any) -> list[Any]:
    return [layer for layer in model.layers if hasattr(layer, "kernel")]


def _freeze_layer(side: Side, name: str, value: tuple[int, bool]) -> None:
    place, trains = value
    chosen = side.models[name].layers
    _keep_some(side, name, chosen[place % len(chosen)], trains)


def _freeze_variable(side: Side, name: str, value: tuple[int, bool]) -> None:
    place, trains = value
    chosen = _kernels(side.models[name])
    layer = chosen[place % len(chosen)]
    if KERAS_3:
        _keep_some(side, name, layer.kernel, trains)


def _keep_some(side: Side, name: str, part: Any, trains: bool) -> None:
    before = part.trainable
    part.trainable = trains
    if not side.models[name].trainable_variables:
        # nothing would be left to update
        part.trainable = before


def _schedule(side: Side, name: str, value: float) -> None:
    optimizer = side.optimizer(name)
    optimizer.learning_rate = keras.optimizers.schedules.ExponentialDecay(value, 1, 0.5)


def _attribute(attribute: str) -> Callable[[Side, str, Any], None]:
    def change(side: Side, name: str, value: Any) -> None:
        optimizer = side.optimizer(name)
        if attribute == "clipnorm":
            optimizer.clipvalue = optimizer.global_clipnorm = None
        elif attribute == "clipvalue":
            optimizer.clipnorm = optimizer.global_clipnorm = None
        # whether there is a momentum at all has settled what variables there are
        if getattr(optimizer, attribute, None) or attribute.startswith("clip"):
            setattr(optimizer, attribute, value)

    return change


def _other_optimizer(side: Side, name: str, value: Optimizer) -> None:
    side.put_optimizer(name, make_optimizer(value, side.models[name]))


def _renew_optimizer(side: Side, name: str) -> None:
    # one that has its variables takes no more of them
    spec = side.program.models[name].optimizers[1]
    side.put_optimizer(name, make_optimizer(spec, side.models[name]))


def _activation(side: Side, name: str, value: str) -> None:
    _kernels(side.models[name])[0].activation = keras.activations.get(value)


def _add_layer(side: Side, name: str, value: int) -> None:
    model = side.models[name]
    width = model.output_shape[-1]
    model.add(layers.Dense(width))
    source = np.random.default_rng(value)
    layer = model.layers[-1]
    layer.set_weights([source.standard_normal(one.shape) for one in layer.get_weights()])
    _renew_optimizer(side, name)


def _regularizer(side: Side, name: str, value: float) -> None:
    _kernels(side.models[name])[0].bias_regularizer = keras.regularizers.L2(value)


def _norm_momentum(side: Side, name: str, value: float) -> None:
    for layer in side.models[name].layers:
        if isinstance(layer, layers.BatchNormalization):
            layer.momentum = value


_CHANGES: dict[str, Callable[[Side, str, Any], None]] = {
    "learning rate": _rate,
    "weights": _set_weights,
    "layer.trainable": _freeze_layer,
    "variable.trainable": _freeze_variable,
    "schedule": _schedule,
    "clipnorm": _attribute("clipnorm"),
    "clipvalue": _attribute("clipvalue"),
    "epsilon": _attribute("epsilon"),
    "momentum": _attribute("momentum"),
    "optimizer": _other_optimizer,
    "activation": _activation,
    "layer added": _add_layer,
    "regularizer": _regularizer,
    "BatchNormalization.momentum": _norm_momentum,
}
