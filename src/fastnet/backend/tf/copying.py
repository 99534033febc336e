"""Copies and pickles Keras models with their metadata and, in Keras 3, their optimizers.

Keras copies a model by saving it, and saves only the configuration of an optimizer. So the
optimizer of a copy is made from the configuration, and given the values of the variables.
"""

from __future__ import annotations

import copy
import copyreg
from collections.abc import Iterable
from typing import Any

from fastnet.backend.model_metadata import (
    every_optimizer_of,
    get_metadata,
    is_built,
    name_of,
    reserve,
    set_metadata,
    taken_names,
)
from fastnet.backend.tf._keras_internals import (
    build_optimizer,
    indices_of_updated_weights,
    is_keras3,
    keras_package_of,
    schedule_of,
)
from fastnet.backend.tf.models import all_layers
from fastnet.backend.tf.optimizers import (
    inner_optimizer,
    make_weight_decay_variable,
    variables_of,
    weight_decay_of,
)
from fastnet.backend.tf.saving import without_optimizer
from fastnet.backend.tf.setup import keep_optimizer_on_compile
from fastnet.backend.tf.weights import named_weights, set_trainable_flags, trainable_flags
from fastnet.types import Model

_PLAIN_METADATA = ("fe_compiled", "loss_name", "mixed_precision", "model_name")


# Pickles refer to `_Saved`, its attributes and `_restored` by name.
class _Saved:
    """An optimizer in the form that is saved."""

    def __init__(self, optimizer: Any, model: Model) -> None:
        inner = inner_optimizer(optimizer)
        schedule = schedule_of(inner)
        # Keras finds classes of users by name only if they were registered.
        parts = (optimizer, inner, schedule)
        self.classes = [type(part) for part in parts if part is not None]
        self.config = _config(optimizer)
        self.indices = indices_of_updated_weights(inner, list(named_weights(model).values()))
        self.values = [variable.numpy() for variable in variables_of(optimizer)]

    def make(self, model: Model) -> Any:
        """Make the optimizer for a copy of the model."""
        classes = {cls.__name__: cls for cls in self.classes}
        cls: Any = self.classes[0]
        with keras_package_of(model).utils.custom_object_scope(classes):
            optimizer = cls.from_config(self.config)
        make_weight_decay_variable(optimizer)
        if self.indices is not None:
            weights = list(named_weights(model).values())
            variables = [weights[index] for index in self.indices]
            build_optimizer(optimizer, variables)
        for variable, value in zip(variables_of(optimizer), self.values, strict=True):
            variable.assign(value)
        return optimizer


def register_pickling(model: Model) -> None:
    """Register how `pickle` saves models of a class, unless that was registered before."""
    copyreg.dispatch_table.setdefault(type(model), _reduced)


def copy_model(model: Model, memo: dict[int, Any]) -> None:
    """Copy a built model, its layers, variables and optimizers into the memo of `copy.deepcopy`."""
    if id(model) in memo or not is_built(model):
        return
    function, args = _reduced(model)[:2]
    copied_model = function(*copy.deepcopy(args, memo))
    variables = [*zip(_variables_of(model), _variables_of(copied_model), strict=False)]
    pairs = [
        (model, copied_model),
        *zip(all_layers(model), all_layers(copied_model), strict=False),
        *variables,
        *zip(every_optimizer_of(model), every_optimizer_of(copied_model), strict=False),
    ]
    for original, copied in pairs:
        memo[id(original)] = copied
    if is_keras3(model):
        # Variables of Keras 3 have TensorFlow variables inside.
        for original, copied in variables:
            memo[id(original.value)] = copied.value


def _reduced(model: Model) -> Any:
    if not is_built(model):
        return model.__reduce_ex__(4)
    try:
        with without_optimizer(model):
            reduced = model.__reduce_ex__(4)
        metadata = {name: get_metadata(model, name) for name in _PLAIN_METADATA}
        if isinstance(metadata["loss_name"], set):
            # Keras has replaced the set by one of its own, which refers to the model.
            metadata["loss_name"] = set(metadata["loss_name"])
        optimizers = every_optimizer_of(model)
        saved = {id(optimizer): _Saved(optimizer, model) for optimizer in optimizers}
        # A scheduler is copied with the saved optimizers in place of its own.
        metadata["optimizer"] = copy.deepcopy(get_metadata(model, "optimizer"), dict(saved))
        metadata["current_optimizer"] = saved.get(id(get_metadata(model, "current_optimizer")))
    except Exception as error:
        raise TypeError(
            f"The Keras model '{name_of(model)}' ({type(model).__name__}) cannot be copied or "
            f"pickled, because Keras fails to save it: {error}"
        ) from error
    values = [variable.numpy() for variable in _variables_of(model)]
    shapes = _shapes(named_weights(model).values())
    flags = trainable_flags(model)
    return _restored, (
        reduced,
        taken_names(model),
        metadata,
        list(saved.values()),
        (values, shapes, flags),
    )


def _restored(
    reduced: tuple[Any, ...],
    taken: frozenset[str],
    metadata: dict[str, Any],
    saved: list[_Saved],
    state: tuple[list[Any], list[tuple[int, ...]], dict[str, dict[str, bool]]],
) -> Any:
    function, args, *rest = reduced
    model = function(*args)
    if rest and rest[0] is not None:
        vars(model).update(rest[0])
    if not is_keras3(model):
        model.input_spec = None
    values, shapes, flags = state
    loaded_shapes = _shapes(named_weights(model).values())
    if loaded_shapes != shapes:
        raise TypeError(
            f"The Keras model '{metadata['model_name']}' ({type(model).__name__}) has weights of "
            f"the shapes {shapes}, but Keras has loaded it with {loaded_shapes}. Its `get_config` "
            "and `build` must cover everything that its layers depend on."
        )
    set_trainable_flags(model, flags)
    # These include variables that are no weights, such as the states of generators.
    variables = _variables_of(model)
    if _shapes(variables) == [value.shape for value in values]:
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
    reserve(model, lambda name: name not in taken)
    optimizers = {id(optimizer): optimizer.make(model) for optimizer in saved}
    for name in _PLAIN_METADATA:
        if metadata[name] is not None:
            set_metadata(model, name, metadata[name])
    for name in ("optimizer", "current_optimizer"):
        set_metadata(model, name, copy.deepcopy(metadata[name], dict(optimizers)))
    register_pickling(model)
    keep_optimizer_on_compile(model)
    return model


def _variables_of(model: Model) -> list[Any]:
    """List the variables of a model, in an order that does not depend on what is trainable."""
    weights = list(named_weights(model).values())
    weight_ids = set(map(id, weights))
    return [*weights, *(variable for variable in model.variables if id(variable) not in weight_ids)]


def _shapes(variables: Iterable[Any]) -> list[tuple[int, ...]]:
    return [tuple(variable.shape) for variable in variables]


def _config(optimizer: Any) -> dict[str, Any]:
    """Return the configuration of an optimizer, with the weight decay as a number."""
    inner = inner_optimizer(optimizer)
    decay = weight_decay_of(inner)
    if decay is None:
        return dict(optimizer.get_config())
    variable = vars(inner)["weight_decay"]
    vars(inner)["weight_decay"] = decay
    try:
        return dict(optimizer.get_config())
    finally:
        vars(inner)["weight_decay"] = variable
