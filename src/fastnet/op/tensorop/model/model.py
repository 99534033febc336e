"""The op that runs a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from fastnet._execute import split_outputs
from fastnet.backend.dispatch import model_framework
from fastnet.backend.model_metadata import name_of, require_built
from fastnet.backend.named_values import names_in
from fastnet.errors import shorten
from fastnet.framework import ModelPass
from fastnet.op.op import Op
from fastnet.op.tensorop.model.held_model import HoldsModel
from fastnet.types import Model, State
from fastnet.util import to_list


class ModelOp(HoldsModel):
    """Runs a model.

    See `TensorOp` for `mode` and `ds_id`.

    Args:
        model: A model from `fastnet.build`.
        inputs: Key(s) of the model's inputs. Several are passed as arguments if the model's
            `forward` (in Keras `call`) takes several, else as a list. A mapping passes the value of
            each key as the keyword argument of that name, or to a Keras model made of layers as the
            input of that name. A `call` with a single dict gets it as a dict.
        outputs: Key(s) of the model's outputs, followed by one for each intermediate layer. If the
            model returns a mapping, values are written by name. A mapping from names to keys
            selects values of a mapping, a dataclass or a named tuple.
        trainable: Whether the model is in training mode while the mode is "train".
        gradients: Whether gradients flow through the model; a trainable model needs them.
        intermediate_layers: Layers whose outputs are written as well: names or indices in
            `model.named_modules()`. In Keras names of layers, or indices among all layers, depth
            first, including input layers.
        eval_layers: Layers that stay in evaluation mode, such as the batch norms of a pretrained
            model (torch only): names in `model.named_modules()`, or classes, with all modules
            inside. For the whole model use `trainable=False`; in Keras set the `trainable` of a
            BatchNormalization to False.

    Raises:
        AssertionError: If the model does not come from `fastnet.build`, or is trainable without
            gradients.
        KeyError: If `intermediate_layers` has an unknown name.
        IndexError: If `intermediate_layers` has an index out of range.
        ValueError: If there are more inputs than those of a Keras model with known inputs, or names
            that the model does not take; in a network also if there are too few outputs.

    >>> import torch, fastnet
    >>> model = fastnet.build(lambda: torch.nn.Bilinear(2, 2, 1), None, model_name="pair")
    >>> ModelOp(model, inputs={"input1": "left", "input2": "right"}, outputs="score")
    ModelOp(left, right -> score, 'pair')
    """

    resolved_from = ("model", "trainable", "gradients", "intermediate_layers", "eval_layers")

    def __init__(
        self,
        model: Model,
        inputs: str | Iterable[str] | Mapping[str, str] | None = None,
        outputs: str | Iterable[str] | Mapping[str, str] | None = None,
        mode: str | Iterable[str] | None = None,
        ds_id: str | Iterable[str] | None = None,
        trainable: bool = True,
        gradients: bool = True,
        intermediate_layers: str | int | list[str | int] | None = None,
        eval_layers: str | type | Iterable[str | type] | None = None,
    ) -> None:
        self.argument_names, inputs = _names_and_keys(inputs)
        self.result_names, outputs = _names_and_keys(outputs)
        super().__init__(inputs=inputs, outputs=outputs, mode=mode, ds_id=ds_id)
        require_built("ModelOp", model)
        if trainable and not gradients:
            raise AssertionError(
                f"ModelOp of '{name_of(model)}' is trainable, so gradients must be True. Pass "
                "trainable=False to run the model without them."
            )
        layers = _read_layers(model, "intermediate_layers", intermediate_layers, "indices", int)
        if layers and self.result_names is not None:
            raise ValueError(
                f"ModelOp of '{name_of(model)}' selects outputs by name and asks for the "
                f"intermediate layers {layers}. Pass outputs as a list: the model's, then one for "
                "each layer."
            )
        self.model = model
        self.trainable = trainable
        self.gradients = gradients
        self.intermediate_layers = layers
        self.eval_layers = _read_layers(model, "eval_layers", eval_layers, "classes", type)
        self._pass = _make_pass(self)
        self._applied_settings = self._current_settings()

    def check_keys(self) -> None:
        """Check that there are enough keys for named values and intermediate layers."""
        for keys, names in (("inputs", self.argument_names), ("outputs", self.result_names)):
            if names is not None and len(getattr(self, keys)) != len(names):
                raise ValueError(
                    f"ModelOp of '{name_of(self.model)}' has {keys} with the names {list(names)}, "
                    f"but its keys are {list(getattr(self, keys))}. Pass one key for each name."
                )
        layers: list[str | int] = to_list(self.intermediate_layers)
        if layers and len(self.outputs) <= len(layers):
            raise ValueError(
                f"ModelOp of '{name_of(self.model)}' writes the model's output and those of the "
                f"intermediate layers {layers}, but its outputs are {self.outputs}. Pass the "
                "model's keys, then one for each layer."
            )

    def _current_settings(self) -> tuple[Any, ...]:
        layers = tuple(to_list(self.intermediate_layers))
        eval_layers = tuple(to_list(self.eval_layers))
        return self.model, self.trainable, self.gradients, layers, list(self.inputs), eval_layers

    def _recreate(self, library_class: Any) -> Op:
        settings = {name: getattr(self, name) for name in library_class.resolved_from}
        inputs: Any = list(self.inputs)
        outputs: Any = list(self.outputs)
        if self.argument_names is not None and len(self.argument_names) == len(inputs):
            inputs = dict(zip(self.argument_names, inputs, strict=True))
        if self.result_names is not None and len(self.result_names) == len(outputs):
            outputs = dict(zip(self.result_names, outputs, strict=True))
        recreated: Op = library_class(inputs=inputs, outputs=outputs, **settings)
        return recreated

    def describe_settings(self) -> list[str]:
        """Describe the layers in evaluation mode, for `explain`."""
        names = [layer if isinstance(layer, str) else layer.__name__ for layer in self.eval_layers]
        return [f"{', '.join(names)} in evaluation mode"] if names else []

    def describe_value(self, key: str, value: Any) -> str | None:
        """Describe an output with named parts, for the error of an op that failed on it."""
        names = [name for name in names_in(value) if isinstance(name, str)]
        if not names or self.result_names is not None:
            return None
        return (
            f"The value of '{key}' is of type {type(value).__name__}, as model "
            f"'{name_of(self.model)}' returned it, with the parts {shorten(names)}. "
            f"ModelOp(..., outputs={{{names[0]!r}: {key!r}}}) selects one of them."
        )

    def resolve_settings(self, changed: Sequence[str] = ()) -> None:
        """Check changed settings, and prepare to run the model; see `Op.resolve_settings`."""
        if self._applied_settings == self._current_settings() and not changed:
            # Another network may be running the model at this moment.
            self._set_io(self.inputs, self.outputs, self.mode, self.ds_id)
            return
        previous_pass = self._pass
        super().resolve_settings(changed)
        if self._pass is not previous_pass:
            previous_pass.close()

    def forward(self, data: Any, state: State) -> Any:
        """Return the model's output; with intermediate layers a list of its outputs and theirs."""
        return self._pass(data, state)


def _make_pass(op: ModelOp) -> ModelPass:
    return model_framework(op.model).make_pass(op, partial(_split_model_outputs, op))


def _names_and_keys(keys: Any) -> tuple[tuple[str, ...] | None, Any]:
    """Return the names of a mapping from names to keys, and its keys; None as names without it."""
    if not isinstance(keys, Mapping):
        return None, keys
    return tuple(keys), list(keys.values())


def _read_layers(
    model: Model, setting: str, value: Any, alternative: str, alternative_type: type
) -> list[Any]:
    """Return layers as a list, after checking that each is a name or of the alternative type."""
    layers = list(to_list(value))
    for layer in layers:
        if not isinstance(layer, (str, alternative_type)):
            raise ValueError(
                f"ModelOp of '{name_of(model)}' has {shorten(layer)} of type "
                f"{type(layer).__name__} in its {setting}, which must be names or {alternative}."
            )
    return layers


def _split_model_outputs(op: ModelOp, returned: Any) -> Sequence[Any]:
    """Split the result of a model into its outputs, without those of intermediate layers."""
    count = len(op.outputs) - len(op.intermediate_layers)
    if count < 1:
        # Only outside of a network, which checks the number of outputs.
        return tuple(to_list(returned))
    keys = op.outputs[:count]
    is_single_value = not isinstance(returned, (list, tuple, Mapping))
    if len(keys) == 1 and is_single_value:
        return (returned,)
    return split_outputs(op, returned, keys, source="model")
