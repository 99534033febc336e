"""A forward pass through a Keras model."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from fastnet.backend import to_tensor
from fastnet.backend.tf.models import LayerCapture, takes_several_arguments, takes_training
from fastnet.errors import MissingKeyError, nearest_name
from fastnet.types import State


class TFPass:
    """What a ModelOp does with a Keras model.

    Args:
        model: The model.
        several_inputs: Whether the op has several inputs.
        trainable: Whether the model runs in training mode while the step's mode is "train".
        gradients: Whether gradients flow through it.
        layers: The layers whose outputs are wanted too, by name or place.

    Raises:
        KeyError: If no layer has a name.
        IndexError: If no layer has a place.
    """

    def __init__(
        self,
        model: Any,
        several_inputs: bool,
        trainable: bool,
        gradients: bool,
        layers: Sequence[str | int],
    ) -> None:
        self._model = model
        self._trainable = trainable
        self._gradients = gradients
        self._spread = several_inputs and takes_several_arguments(model)
        self._takes_training = takes_training(model)
        self._layers = [(_find_layer(model, layer), layer) for layer in layers]

    def __call__(self, data: Any, state: State) -> Any:
        """Run the model.

        Args:
            data: Its input, or a list of inputs; numpy arrays become tensors.
            state: The step's context.

        Returns:
            What the model returns; with layers a list of that and their outputs.
        """
        data = to_tensor(data, "tf")
        training = self._trainable and state["mode"] == "train"
        tape = state.get("tape")
        if self._gradients or not hasattr(tape, "stop_recording"):
            return self._run(data, training)
        with tape.stop_recording():
            return self._run(data, training)

    def _run(self, data: Any, training: bool) -> Any:
        if not self._layers:
            return self._call(data, training)
        with ExitStack() as stack:
            captures = [stack.enter_context(LayerCapture(*layer)) for layer in self._layers]
            output = self._call(data, training)
            outputs = list(output) if isinstance(output, (list, tuple)) else [output]
            return outputs + [capture.result() for capture in captures]

    def _call(self, data: Any, training: bool) -> Any:
        inputs = data if self._spread else [data]
        if self._takes_training:
            return self._model(*inputs, training=training)
        return self._model(*inputs)


def _find_layer(model: Any, layer: str | int) -> Any:
    layers = list(model.layers)
    if isinstance(layer, int):
        if not -len(layers) <= layer < len(layers):
            raise IndexError(
                f"intermediate_layers asks for layer {layer} of {type(model).__name__}, which has "
                f"{len(layers)}. model.layers shows them."
            )
        return layers[layer]
    by_name = {one.name: one for one in layers}
    if layer not in by_name:
        near = nearest_name(layer, by_name)
        raise MissingKeyError(
            f"intermediate_layers asks for the layer '{layer}' of {type(model).__name__}, which "
            f"has none of this name.{f' Did you mean {near!r}?' if near else ''} "
            "model.layers shows them."
        )
    return by_name[layer]
