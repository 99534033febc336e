"""A forward pass through a Keras model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from inspect import Parameter, signature
from typing import Any

import tensorflow as tf

from fastnet.backend import to_tensor
from fastnet.backend.facts import name_of
from fastnet.backend.tf._internals import EAGER
from fastnet.backend.tf._keras_internals import keeps_places
from fastnet.backend.tf.gradients import replica_count
from fastnet.backend.tf.keras_version import is_keras3
from fastnet.backend.tf.models import (
    CONTROLS,
    LayerCapture,
    inner_layers,
    is_of_layers,
    takes_several_arguments,
)
from fastnet.errors import MissingKeyError, nearest_name
from fastnet.op.tensorop.model.naming import ByName, check_arguments
from fastnet.types import State


class TFPass:
    """What a ModelOp does with a Keras model.

    Args:
        model: The model.
        inputs: The keys of the op's inputs.
        trainable: Whether the model runs in training mode while the step's mode is "train".
        gradients: Whether gradients flow through it.
        layers: The layers whose outputs are wanted too, by name or place.
        split: With layers: takes what the model returns apart, a value for each of its own outputs.
        arguments: The names that the inputs are given by, None to give them by place.
        results: The names of the values to take of what the model returns, None to take all.
        eval_layers: Refused: Keras keeps layers in evaluation by their `trainable`.

    Raises:
        KeyError: If no layer has a name.
        IndexError: If no layer has a place.
        ValueError: If there are more inputs than the model has, or it has none of a name, or there
            are `eval_layers`.
    """

    def __init__(
        self,
        model: Any,
        inputs: Sequence[str],
        trainable: bool,
        gradients: bool,
        layers: Sequence[str | int],
        split: Callable[[Any], Iterable[Any]],
        arguments: Sequence[str] | None = None,
        results: Sequence[str] | None = None,
        eval_layers: Sequence[str | type] = (),
    ) -> None:
        if eval_layers:
            raise ValueError(
                f"ModelOp of '{name_of(model)}' has eval_layers, which are for torch. In Keras set "
                "`trainable = False` on a BatchNormalization to keep it as in evaluation, or pass "
                "trainable=False to the op for the whole model."
            )
        if len(inputs) > 1 and arguments is None:
            _require_inputs(model, inputs)
        self._model = model
        self._called: Any = model
        if arguments is not None or results is not None:
            self._called = _by_name(model, arguments, results)
        self._split = split
        self._trainable = trainable
        self._gradients = gradients
        self._spread = arguments is None and len(inputs) > 1 and takes_several_arguments(model)
        self._layers = [(_find_layer(model, layer), layer) for layer in layers]
        self._is_plain = gradients and not self._spread and not self._layers

    def __getstate__(self) -> dict[str, Any]:
        # layers of a copy are found by their names
        return {**vars(self), "_layers": [name for _, name in self._layers]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._layers = [(_find_layer(self._model, name), name) for name in state["_layers"]]

    def __call__(self, data: Any, state: State) -> Any:
        """Run the model.

        Args:
            data: Its input, or a list of inputs; numpy arrays become tensors.
            state: The step's context.

        Returns:
            What the model returns; with layers a list of that and their outputs.

        Raises:
            ValueError: If the model has no variables yet, and the step is one of several devices.
        """
        model = self._model
        if not model.built:
            self._may_make_variables()
        training = self._trainable and state["mode"] == "train"
        if self._is_plain and type(data) is EAGER:
            return self._called(data, training=training)
        if not tf.is_tensor(data):
            data = to_tensor(data, "tf")
        tape = state.get("tape")
        if self._gradients or tape is None:
            return self._run(data, training)
        with tape.stop_recording():
            return self._run(data, training)

    def close(self) -> None:
        """Do nothing: layers are listened to while they run."""

    def _may_make_variables(self) -> None:
        """Refuse to make variables where Keras 3 would make each device its own."""
        if replica_count() > 1 and is_keras3(self._model):
            raise ValueError(
                f"Model '{name_of(self._model)}' has no variables before it knows the shape of "
                "its input, and cannot make them in a step on several devices. Give it an Input, "
                "or call its build(shape), in model_fn."
            )

    def _run(self, data: Any, training: bool) -> Any:
        if not self._layers:
            return self._call(data, training)
        with ExitStack() as stack:
            captures = [stack.enter_context(LayerCapture(*layer)) for layer in self._layers]
            own = self._split(self._call(data, training))
            return [*own, *[capture.result() for capture in captures]]

    def _call(self, data: Any, training: bool) -> Any:
        # passed on to the layers by a model whose `call` has no such argument
        if self._spread:
            return self._called(*data, training=training)
        return self._called(data, training=training)


def _by_name(model: Any, arguments: Sequence[str] | None, results: Sequence[str] | None) -> ByName:
    title = f"ModelOp of '{name_of(model)}'"
    if arguments is None:
        return ByName(model, title, None, results)
    if not is_of_layers(model):
        called = signature(model.call).parameters
        if len(called) > 0 and set(arguments).isdisjoint(called) and not _takes_any(called):
            # what a single argument has by name
            return ByName(model, title, arguments, results, dict)
        check_arguments(title, model.call, arguments, CONTROLS)
        return ByName(model, title, arguments, results)
    structure = model.input
    if isinstance(structure, Mapping):
        known = list(structure)
        arrange: Any = dict
    else:
        known = [one.name for one in model.inputs]
        arrange = partial(_in_order, tuple(known))
    if sorted(known) != sorted(arguments):
        raise ValueError(
            f"{title} gives inputs by the names {list(arguments)}, but those of the model are "
            f"{known}."
        )
    return ByName(model, title, arguments, results, arrange)


def _takes_any(parameters: Mapping[str, Parameter]) -> bool:
    return any(one.kind is Parameter.VAR_KEYWORD for one in parameters.values())


def _in_order(names: tuple[str, ...], named: dict[str, Any]) -> Any:
    values = [named[name] for name in names]
    return values[0] if len(values) == 1 else values


def _require_inputs(model: Any, keys: Sequence[str]) -> None:
    """Refuse more keys than a model has inputs; Keras may leave the rest unread without an error.

    Fewer are not refused: the value of a key may hold several tensors.

    Args:
        model: The model; one that knows of no inputs yet is not refused.
        keys: The keys, more than one.

    Raises:
        ValueError: If there are more.
    """
    try:
        inputs = getattr(model, "inputs", None)
    except ValueError:  # so says a Sequential of Keras 3 that was not built
        return
    if inputs is None or takes_several_arguments(model):
        return
    if len(keys) > len(inputs):
        names = _some([one.name for one in inputs])
        raise ValueError(
            f"ModelOp of '{name_of(model)}' reads the keys {list(keys)}, one for each of the "
            f"model's inputs, but the model has {len(inputs)}: {names}."
        )


def _find_layer(model: Any, layer: str | int) -> Any:
    layers = inner_layers(model)
    names = [one.name for one in layers]
    if isinstance(layer, int):
        if not keeps_places(model):
            raise IndexError(
                f"intermediate_layers asks for layer {layer} of {type(model).__name__}, but this "
                f"version of Keras does not tell their order. Name one of {_some(names)}."
            )
        if not -len(layers) <= layer < len(layers):
            raise IndexError(
                f"intermediate_layers asks for layer {layer} of {type(model).__name__}, which has "
                f"{len(layers)}, those in other layers counted: {_some(names)}."
            )
        return layers[layer]
    if layer not in names:
        near = nearest_name(layer, names)
        raise MissingKeyError(
            f"intermediate_layers asks for the layer '{layer}' of {type(model).__name__}, which "
            f"has none of this name.{f' Did you mean {near!r}?' if near else ''} Its layers are "
            f"{_some(names)}."
        )
    # of several with one name, in different layers, the last
    return dict(zip(names, layers, strict=True))[layer]


def _some(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:8]))
    return f"[{shown}]" if len(names) <= 8 else f"[{shown}] and {len(names) - 8} more"
