"""The op that runs a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from fastnet._execute import split_outputs
from fastnet.backend.dispatch import framework_of
from fastnet.backend.model_metadata import name_of
from fastnet.backend.named_values import names_in
from fastnet.errors import shorten
from fastnet.op.op import Op
from fastnet.op.tensorop.model.held_model import HoldsModel, require_built
from fastnet.types import Model, State
from fastnet.util import to_list


class ModelOp(HoldsModel):
    """Runs a model on a batch.

    Args:
        model: A model from `fastnet.build`.
        inputs: Key(s) of the model's input(s). Several go to a model whose `forward` (in Keras:
            whose own `call`) takes several arguments as such, to another one as a list. A mapping
            of names to keys gives each value by the name of its argument, also to a model that
            takes ``**kwargs``; to a Keras model made of layers by the name of its input, and to one
            whose `call` takes a single dict as such a dict.
        outputs: Key(s) for what the model returns, and after it one for each intermediate layer. A
            model that returns a mapping, and is given a list of keys, has its values written by
            name. A mapping of names to keys takes these values of a mapping, a dataclass or a tuple
            with names, and leaves the others.
        mode: Mode(s) to run in; "!mode" for all but one; None for all.
        ds_id: Dataset id(s) to run on; "!id" for all but one; None for all.
        trainable: Whether layers such as dropout act as in training while the mode is "train".
        gradients: Whether gradients flow through the model; a trainable model needs them.
        intermediate_layers: Layers whose outputs to write too: names as in
            `model.named_modules()`, or places among them. In Keras: names of layers, or places
            among all of them, each counted before the layers in it, and input layers as well.
        eval_layers: Layers that act as in evaluation in every mode, such as the batch norms of a
            pretrained model, while the others train (torch only): names as in
            `model.named_modules()`, or classes, with all that is in them. The whole model does with
            `trainable=False`; a Keras BatchNormalization does once it is not `trainable`.

    Raises:
        AssertionError: If the model was not built, or is trainable without gradients.
        KeyError: If no layer has a name that `intermediate_layers` gives.
        IndexError: If no layer has a place that it gives.
        ValueError: If there are more inputs than those of a Keras model that knows its own, or they
            are given by names that the model does not take; in a network also if there are fewer
            outputs than values to write.

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
        layers: list[str | int] = to_list(intermediate_layers)
        for layer in layers:
            if not isinstance(layer, (str, int)):
                raise ValueError(
                    f"ModelOp of '{name_of(model)}' asks for the intermediate layer {layer!r} of "
                    f"type {type(layer).__name__}. Give names or places."
                )
        if layers and self.result_names is not None:
            raise ValueError(
                f"ModelOp of '{name_of(model)}' takes values by name and asks for the intermediate "
                f"layers {layers}. Give outputs as a list: the model's first, then one a layer."
            )
        self.model = model
        self.trainable = trainable
        self.gradients = gradients
        self.intermediate_layers = list(layers)
        self.eval_layers = _check_layers(model, eval_layers)
        self._pass = _make_pass(self, framework_of(model))
        self._settled = self._settings()

    def check_keys(self) -> None:
        """Refuse too few outputs, when a network is made of the op.

        Raises:
            ValueError: If those are what it has.
        """
        for keys, names in (("inputs", self.argument_names), ("outputs", self.result_names)):
            if names is not None and len(getattr(self, keys)) != len(names):
                raise ValueError(
                    f"ModelOp of '{name_of(self.model)}' has {keys} by the names {list(names)}, "
                    f"but its keys are {list(getattr(self, keys))}. Make it with a key for each."
                )
        layers: list[str | int] = to_list(self.intermediate_layers)
        if layers and len(self.outputs) <= len(layers):
            raise ValueError(
                f"ModelOp of '{name_of(self.model)}' writes the model's output and those of the "
                f"intermediate layers {layers}, but its outputs are {self.outputs}. Name a key for "
                "each: the model's first, then one a layer."
            )

    def _settings(self) -> tuple[Any, ...]:
        layers = tuple(to_list(self.intermediate_layers))
        kept = tuple(to_list(self.eval_layers))
        return self.model, self.trainable, self.gradients, layers, list(self.inputs), kept

    def _anew(self, own: Any) -> Op:
        settings = {name: getattr(self, name) for name in own.resolved_from}
        inputs: Any = list(self.inputs)
        outputs: Any = list(self.outputs)
        if self.argument_names is not None and len(self.argument_names) == len(inputs):
            inputs = dict(zip(self.argument_names, inputs, strict=True))
        if self.result_names is not None and len(self.result_names) == len(outputs):
            outputs = dict(zip(self.result_names, outputs, strict=True))
        made: Op = own(inputs=inputs, outputs=outputs, **settings)
        return made

    def told_settings(self) -> list[str]:
        """Say what the op does in a step besides running its model, for `explain`."""
        kept = [one if isinstance(one, str) else one.__name__ for one in self.eval_layers]
        return [f"{', '.join(kept)} as in evaluation"] if kept else []

    def describe_value(self, key: str, value: Any) -> str | None:
        """Describe an output with named parts, for the error of an op that failed on it."""
        names = [name for name in names_in(value) if isinstance(name, str)]
        if not names or self.result_names is not None:
            return None
        return (
            f"The value of '{key}' is of type {type(value).__name__}, as model "
            f"'{name_of(self.model)}' has returned it, with the parts {shorten(names)}. "
            f"ModelOp(..., outputs={{{names[0]!r}: {key!r}}}) takes one of them."
        )

    def resolve_settings(self, changed: Sequence[str] = ()) -> None:
        """Check what was written to the op, and get ready to run the model it has now.

        Args:
            changed: The names of the settings that changed.

        Raises:
            AssertionError: As for `__init__`.
            KeyError: As for `__init__`.
            IndexError: As for `__init__`.
            ValueError: As for `__init__`.
        """
        if self._settled == self._settings() and not changed:
            # another network may be running it at this moment
            self._put_names(self.inputs, self.outputs, self.mode, self.ds_id)
            return
        former = self._pass
        super().resolve_settings(changed)
        if self._pass is not former:  # nobody else listens to the layers
            former.close()

    def get_fe_models(self) -> set[Model]:
        """Return the model."""
        return {self.model}

    def forward(self, data: Any, state: State) -> Any:
        """Run the model.

        Args:
            data: Its input, or a list of inputs.
            state: The step's context.

        Returns:
            What the model returns; with intermediate layers a list of that and their outputs.
        """
        return self._pass(data, state)


def _make_pass(op: ModelOp, framework: str | None) -> Any:
    """Return the function that runs the model, called as `forward`, with a method `close`."""
    make_pass: Any
    if framework == "torch":
        from fastnet.backend.torch.parallel_update import make_pass
    elif framework == "tf":
        from fastnet.backend.tf.models import TFPass as make_pass
    else:
        raise ValueError(
            f"ModelOp runs a torch.nn.Module or a Keras model, but got {type(op.model).__name__}, "
            "of no known framework."
        )
    return make_pass(
        op.model,
        inputs=op.inputs,
        trainable=op.trainable,
        gradients=op.gradients,
        layers=op.intermediate_layers,
        split=partial(_own_outputs, op),
        arguments=op.argument_names,
        results=op.result_names,
        eval_layers=op.eval_layers,
    )


def _names_and_keys(given: Any) -> tuple[tuple[str, ...] | None, Any]:
    """Take names off keys."""
    if not isinstance(given, Mapping):
        return None, given
    return tuple(given), list(given.values())


def _check_layers(model: Model, given: Any) -> list[str | type]:
    layers: list[str | type] = to_list(given)
    for layer in layers:
        if not isinstance(layer, (str, type)):
            raise ValueError(
                f"ModelOp of '{name_of(model)}' has {shorten(layer)} among its eval_layers, which "
                "are names and classes of layers."
            )
    return layers


def _own_outputs(op: ModelOp, returned: Any) -> Sequence[Any]:
    """Take what a model returned apart, a value for each output but those of the layers."""
    count = len(op.outputs) - len(op.intermediate_layers)
    if count < 1:
        # called by hand: a network refuses so few
        return tuple(to_list(returned))
    keys = op.outputs[:count]
    is_bare = not isinstance(returned, (list, tuple, Mapping))
    if len(keys) == 1 and is_bare:
        return (returned,)
    return split_outputs(op, returned, keys, source="model")
