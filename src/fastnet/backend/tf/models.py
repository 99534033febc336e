"""Running Keras models."""

from __future__ import annotations

import inspect
from types import TracebackType
from typing import Any

import tensorflow as tf

from fastnet.backend import to_tensor
from fastnet.backend.tf._keras_internals import sublayers
from fastnet.backend.tf.keras_version import is_keras3, keras_of
from fastnet.types import State

__all__ = [
    "CONTROLS",
    "LayerCapture",
    "SquaredWeights",
    "all_layers",
    "feed_forward",
    "inner_layers",
    "is_of_layers",
    "l2_regularization",
    "takes_several_arguments",
]

# what Keras itself passes to a model's `call`, beside the data
CONTROLS = frozenset({"self", "training", "mask"})
"""What a `call` takes that is no input."""


def feed_forward(model: Any, *x: Any, training: bool = True) -> Any:
    """Run a model.

    Args:
        model: The model.
        x: Its inputs; numpy arrays become tensors.
        training: Whether layers such as dropout act as in training.

    Returns:
        What the model returns.
    """
    # a model whose `call` has no argument `training` passes it on to its layers all the same
    return model(*[to_tensor(value, "tf") for value in x], training=training)


def is_of_layers(model: Any) -> bool:
    """Return whether a model is of one of Keras's own classes, and was made of layers.

    Args:
        model: The model.
    """
    module = str(type(model).call.__module__)
    return module.partition(".")[0] == str(keras_of(model).__name__).partition(".")[0]


def takes_several_arguments(model: Any) -> bool:
    """Return whether a model's `call` takes its inputs as several arguments.

    Args:
        model: The model.

    Returns:
        False for models of Keras's own classes, and for a `call` of nothing but ``*inputs``: these
        take a list.
    """
    if is_of_layers(model):
        return False
    parameters = list(inspect.signature(model.call).parameters.values())
    if any(one.kind is one.VAR_POSITIONAL for one in parameters):
        return len(parameters) > 1
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(one.kind in positional and one.name not in CONTROLS for one in parameters) > 1


class LayerCapture:
    """Takes down what a layer returns, while it is entered.

    Args:
        layer: The layer.
        name: What the user calls it, for error texts.
    """

    def __init__(self, layer: Any, name: str | int) -> None:
        self._layer = layer
        self._name = name
        self._outputs: list[Any] = []
        self._own: Any = None

    def __enter__(self) -> LayerCapture:
        self._outputs = []
        # the class's `call` is hidden by one of the instance's own, for as long as the model runs
        self._own = vars(self._layer).get("call")
        call = self._layer.call
        outputs = self._outputs

        def capture(*args: Any, **kwargs: Any) -> Any:
            output = call(*args, **kwargs)
            outputs.append(output)
            return output

        capture.__signature__ = inspect.signature(call)  # type: ignore[attr-defined]
        object.__setattr__(self._layer, "call", capture)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._own is None:
            object.__delattr__(self._layer, "call")
        else:
            object.__setattr__(self._layer, "call", self._own)

    def result(self) -> Any:
        """Return what the layer returned when it last ran.

        Returns:
            Its output.

        Raises:
            RuntimeError: If it did not run.
        """
        if not self._outputs:
            raise RuntimeError(
                f"The intermediate layer {self._name!r} did not run in the model's forward pass, "
                "so it has no output. Name a layer that runs on every pass."
            )
        return self._outputs[-1]


def all_layers(model: Any) -> list[Any]:
    """List a model, its layers and theirs.

    Args:
        model: The model.

    Returns:
        Each layer once, in an order that stays the same as long as the model does.
    """
    return [model, *sublayers(model, recursive=True)]


def inner_layers(model: Any) -> list[Any]:
    """List the layers of a model and theirs, each before its own and its own before the next.

    Args:
        model: The model.

    Returns:
        Each layer once; the layers that stand for inputs are among them.
    """
    if not is_keras3(model):
        return sublayers(model, recursive=True)
    found: dict[int, Any] = {}

    def walk(layer: Any) -> None:
        # Keras 3 itself lists the layers of a nested one backwards
        for child in sublayers(layer, recursive=False):
            if id(child) not in found:
                found[id(child)] = child
                walk(child)

    walk(model)
    return list(found.values())


def l2_regularization(model: Any, beta: float) -> tf.Tensor:
    """Add up the squares of a model's trainable weights, halved and times `beta`."""
    squares = [tf.nn.l2_loss(tf.convert_to_tensor(one)) for one in model.trainable_variables]
    return tf.multiply(tf.reduce_sum(squares), beta)


class SquaredWeights:
    """Adds the squares of a model's trainable weights to a loss, step by step.

    Args:
        model: The model.
    """

    def __init__(self, model: Any) -> None:
        self._model = model

    def __call__(self, loss: tf.Tensor, beta: float, state: State) -> tf.Tensor:
        """Add the squares to a loss.

        Args:
            loss: The loss.
            beta: What to multiply the squares by, once they are halved.
            state: The step's context, not used: a graph is traced anew for other weights.

        Returns:
            The sum, of the wider type of the loss and the weights.
        """
        squares = l2_regularization(self._model, beta)
        own, wide = loss.dtype, squares.dtype
        if own is not wide:
            if own.size < wide.size:
                loss = tf.cast(loss, wide)
            else:
                squares = tf.cast(squares, own)
        return tf.add(squares, loss)
