"""Running Keras models."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import tensorflow as tf

from fastnet._nest import leaves_of
from fastnet.backend import to_tensor
from fastnet.backend.model_metadata import name_of
from fastnet.backend.named_values import (
    ByName,
    check_arguments,
    find_layer,
    takes_several_arguments,
)
from fastnet.backend.tf._internals import EAGER
from fastnet.backend.tf._keras_internals import has_mask, is_keras3, keras_package_of, sublayers
from fastnet.backend.tf.gradients import replica_count
from fastnet.errors import shorten
from fastnet.types import Model, State
from fastnet.util.warnings import warn

CONTROLS = frozenset({"self", "training", "mask"})
"""The arguments of a model's `call` that are no inputs."""

_PLAIN = (int, float, complex, str, bytes)
"""Types of values that are no tensors."""


def ends_linearly(model: Model) -> bool:
    last: Any = None
    if isinstance(model, tf.keras.Sequential):
        last = model.layers[-1] if model.layers else None
    else:
        outputs = getattr(model, "outputs", None) or [None]  # none of a subclassed model
        layers = [layer for layer in model.layers if getattr(layer, "output", ()) is outputs[0]]
        last = layers[-1] if len(outputs) == len(layers) == 1 else None
    is_dense = hasattr(last, "units") and hasattr(last, "kernel")
    return is_dense and getattr(last.activation, "__name__", "") == "linear"


def feed_forward(model: Model, *x: Any, training: bool = True) -> Any:
    # Keras passes `training` on to the layers even if the model's `call` does not take it.
    return model(*[to_tensor(value, "tf") for value in x], training=training)


def is_of_layers(model: Model) -> bool:
    """Return whether a model is of one of Keras's own classes, such as Sequential."""
    module = str(type(model).call.__module__)
    return module.partition(".")[0] == str(keras_package_of(model).__name__).partition(".")[0]


def _unpacks_inputs(model: Model) -> bool:
    """Return whether a model's `call` takes its inputs as several arguments, and not as a list."""
    return not is_of_layers(model) and takes_several_arguments(model.call, CONTROLS)


@contextmanager
def _recorded(layer: Any) -> Iterator[list[Any]]:
    """Yield a list that gets the outputs of a layer in this context."""
    outputs: list[Any] = []
    # An attribute of the instance hides the `call` of its class.
    instance_call, call = vars(layer).get("call"), layer.call

    def record(*args: Any, **kwargs: Any) -> Any:
        output = call(*args, **kwargs)
        outputs.append(output)
        return output

    record.__signature__ = inspect.signature(call)  # type: ignore[attr-defined]
    object.__setattr__(layer, "call", record)
    try:
        yield outputs
    finally:
        if instance_call is None:
            object.__delattr__(layer, "call")
        else:
            object.__setattr__(layer, "call", instance_call)


def all_layers(model: Model) -> list[Any]:
    """List a model and its nested layers, each once, in a stable order."""
    return [model, *sublayers(model)]


def needs_batch_size(model: Model) -> bool:
    """Return whether a layer is wrong in a graph for batches of any size.

    There RandomElasticTransform replaces all images by the first one.
    """
    classes = (base for layer in all_layers(model) for base in type(layer).__mro__)
    return any(base.__name__ == "RandomElasticTransform" for base in classes)


def warn_of_masks(batch: Mapping[str, Any]) -> None:
    """Warn of masks that Keras has left on tensors, which are lost where these enter a graph."""
    for key, value in batch.items():
        if any(tf.is_tensor(leaf) and has_mask(leaf) for leaf in leaves_of(value)):
            warn(
                f"The value of '{key}' in the batch has a mask, which Keras has left on it. A step "
                "that runs as a graph does not see it, and neither does a tf.function. Compute the "
                "value by an op of the network, pass the mask in the batch, or open the network "
                "with eager=True."
            )


def no_variables(model: Model, problem: str) -> ValueError:
    """Return the error for a model whose variables are created in its first call."""
    return ValueError(
        f"Model '{name_of(model)}' has no variables before it knows the shape of its input, "
        f"{problem}. Give it an Input, or call its build(shape), in model_fn."
    )


def require_variables(models: Iterable[Model]) -> None:
    """Raise a ValueError if the first call of a model would create variables."""
    for model in models:
        if not model.built:
            raise no_variables(model, "and so no state to keep")


class TFPass:
    """Runs a Keras model for a ModelOp, by position or by name.

    `split` makes a value of each output of the model. `eval_layers` are rejected, because Keras has
    `trainable` of layers instead.
    """

    def __init__(self, op: Any, split: Callable[[Any], Iterable[Any]]) -> None:
        model, arguments, results = op.model, op.argument_names, op.result_names
        if op.eval_layers:
            raise ValueError(
                f"ModelOp of '{name_of(model)}' has eval_layers, which are for torch. In Keras set "
                "`trainable = False` on a BatchNormalization to keep it as in evaluation, or pass "
                "trainable=False to the op for the whole model."
            )
        has_several = arguments is None and len(op.inputs) > 1
        if has_several:
            _require_inputs(model, op.inputs)
        self._model = model
        self._called: Any = model
        if arguments is not None or results is not None:
            self._called = _by_name(model, arguments, results)
        self._split = split
        self._trainable: bool = op.trainable
        self._gradients: bool = op.gradients
        self._takes_several_arguments = has_several and _unpacks_inputs(model)
        layers = _layers_of(model)
        self._layers = [(find_layer(layers, name, model), name) for name in op.intermediate_layers]
        self._keys = tuple(op.inputs)
        self._is_of_layers = is_of_layers(model)
        self._is_plain = self._gradients and not self._takes_several_arguments and not self._layers

    def __getstate__(self) -> dict[str, Any]:
        # The layers of a copy are found by their names.
        return {**vars(self), "_layers": [name for _, name in self._layers]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        layers = _layers_of(self._model)
        self._layers = [(find_layer(layers, name, self._model), name) for name in state["_layers"]]

    def __call__(self, data: Any, state: State) -> Any:
        """Run the model; return a list of its outputs and those of intermediate layers, if any."""
        model = self._model
        if not model.built and replica_count() > 1 and is_keras3(model):
            # Keras 3 would make variables of its own in each replica.
            raise no_variables(model, "and cannot make them in a step on several devices")
        training = self._trainable and state["mode"] == "train"
        if self._is_plain and type(data) is EAGER:
            return self._called(data, training=training)
        if not tf.is_tensor(data):
            self._refuse_lists(data)
            data = to_tensor(data, "tf")
        tape = state.get("tape")
        if self._gradients or tape is None:
            return self._run(data, training)
        with tape.stop_recording():
            return self._run(data, training)

    def _refuse_lists(self, data: Any) -> None:
        """Raise a TypeError for a list in the place of a tensor, of which Keras reads a part.

        The `call` of a user's model may take lists of numbers.
        """
        if not self._is_of_layers:
            return
        keys = self._keys
        limit = _input_count(self._model)
        has_too_many = limit is not None and len(leaves_of(data)) > limit
        for key, value in zip(keys, data if len(keys) > 1 else [data], strict=True):
            if not isinstance(value, (list, tuple)):
                continue
            leaves = leaves_of(value)
            if has_too_many or not leaves or any(isinstance(leaf, _PLAIN) for leaf in leaves):
                raise TypeError(
                    f"ModelOp of '{name_of(self._model)}' reads the key '{key}', whose value is a "
                    f"{type(value).__name__}, not a tensor. Make one tensor or array of it, such "
                    f"as np.array(batch['{key}'])."
                )

    def close(self) -> None:
        """Do nothing: layers have hooks only while they run."""

    def _run(self, data: Any, training: bool) -> Any:
        if not self._layers:
            return self._call(data, training)
        with ExitStack() as stack:
            recorded = [stack.enter_context(_recorded(layer)) for layer, _ in self._layers]
            results = list(self._split(self._call(data, training)))
        for outputs, (_, name) in zip(recorded, self._layers, strict=True):
            if not outputs:
                raise RuntimeError(
                    f"The intermediate layer {name!r} did not run in the model's forward pass, so "
                    "it has no output. Name a layer that runs on every pass."
                )
            results.append(outputs[-1])
        return results

    def _call(self, data: Any, training: bool) -> Any:
        # Keras passes `training` on to the layers if the model's `call` does not take it.
        if self._takes_several_arguments:
            return self._called(*data, training=training)
        return self._called(data, training=training)


def _by_name(
    model: Model, arguments: Sequence[str] | None, results: Sequence[str] | None
) -> ByName:
    title = f"ModelOp of '{name_of(model)}'"
    if arguments is None:
        return ByName(model, title, None, results)
    if not is_of_layers(model):
        parameters = inspect.signature(model.call).parameters
        takes_any_name = any(
            parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()
        )
        if parameters and set(arguments).isdisjoint(parameters) and not takes_any_name:
            # The names are those of the items of a single dict argument.
            return ByName(model, title, arguments, results, dict)
        check_arguments(title, model.call, arguments, CONTROLS)
        return ByName(model, title, arguments, results)
    structure = model.input
    if isinstance(structure, Mapping):
        input_names = list(structure)
        arrange: Any = dict
    else:
        input_names = [tensor.name for tensor in model.inputs]
        arrange = partial(_in_order, tuple(input_names))
    if sorted(input_names) != sorted(arguments):
        raise ValueError(
            f"{title} gives inputs by the names {list(arguments)}, but those of the model are "
            f"{input_names}."
        )
    return ByName(model, title, arguments, results, arrange)


def _in_order(names: tuple[str, ...], named: dict[str, Any]) -> Any:
    values = [named[name] for name in names]
    return values[0] if len(values) == 1 else values


def _require_inputs(model: Model, keys: Sequence[str]) -> None:
    """Reject more keys than a model has inputs, which Keras may ignore.

    Fewer are allowed, because the value of a key may hold several tensors.
    """
    count = _input_count(model)
    if count is None or _unpacks_inputs(model):
        return
    if len(keys) > count:
        names = shorten([tensor.name for tensor in model.inputs])
        raise ValueError(
            f"ModelOp of '{name_of(model)}' reads the keys {list(keys)}, one for each of the "
            f"model's inputs, but the model has {count}: {names}."
        )


def _input_count(model: Model) -> int | None:
    """Return how many inputs a model has, or None if it does not know."""
    try:
        inputs = getattr(model, "inputs", None)
    except ValueError:  # An unbuilt Sequential of Keras 3 raises it.
        return None
    return None if inputs is None else len(inputs)


def _layers_of(model: Model) -> list[tuple[str, Any]]:
    return [(layer.name, layer) for layer in sublayers(model)]
