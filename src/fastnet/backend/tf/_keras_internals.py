"""Every private name of Keras 2 and 3 that fastnet uses, and which of the two a model is from.

They are here because Keras offers no public way, and none is used in the steps of a graph. Each
function says what is done in a version of Keras without the name.
"""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from itertools import product
from typing import Any

from fastnet.backend.tf._internals import look_up
from fastnet.types import Model

_PACKAGES = ("keras", "tf_keras")


def keras_package_of(thing: Any) -> Any:
    """Return the Keras package that a model, a layer or an optimizer is from."""
    for base in type(thing).__mro__:
        package = base.__module__.partition(".")[0]
        if package in _PACKAGES:
            return sys.modules[package]
    raise ValueError(f"{type(thing).__name__} is not from Keras.")


def derives_from_package(thing: Any, package: str) -> bool:
    """Return whether an object's class is one of a Keras package, or derives from one."""
    return any(base.__module__.partition(".")[0] == package for base in type(thing).__mro__)


def is_defined_in_keras(thing: Any) -> bool:
    """Return whether an object's class is defined in Keras, and not in the program."""
    return type(thing).__module__.partition(".")[0] in _PACKAGES


def is_keras3(thing: Any) -> bool:
    """Return whether a model, a layer or an optimizer is from Keras 3 rather than Keras 2."""
    return int(keras_package_of(thing).__version__.partition(".")[0]) >= 3


def has_mask(value: Any) -> bool:
    """Return whether Keras has left a mask on a tensor; False if Keras lacks the attribute."""
    return getattr(value, "_keras_mask", None) is not None


def sublayers(layer: Any) -> list[Any]:
    """List the nested layers of a layer depth first, each once, input layers included.

    If Keras lacks the private method, they are those in the `layers` of models.
    """
    layers: dict[int, Any] = {}

    def walk(outer: Any) -> None:
        for child in children_of(outer):
            if id(child) not in layers:
                layers[id(child)] = child
                walk(child)

    walk(layer)
    return list(layers.values())


def children_of(layer: Any) -> list[Any]:
    """List the layers directly in a layer.

    If Keras lacks the private method, they are the `layers` of a model.
    """
    flatten = getattr(layer, "_flatten_layers", None)
    if flatten is None:
        return list(getattr(layer, "layers", ()))
    # Recursively, Keras 3 lists nested layers in reverse order.
    return list(flatten(include_self=False, recursive=False))


def own_weights(layer: Any) -> list[Any]:
    """List the weights of a layer without those of nested layers, whether or not it is frozen.

    The list is empty if Keras lacks the private attributes.
    """
    kind = "variables" if is_keras3(layer) else "weights"
    weights: list[Any] = []
    for name in ("trainable", "non_trainable"):
        weights += getattr(layer, f"_{name}_{kind}", ())
    # Layers of Keras 2 have the variables of their modules as well.
    flatten = getattr(layer, "_flatten_modules", None)
    if flatten is not None:
        layers = set(map(id, children_of(layer)))
        for module in flatten(include_self=False, recursive=False):
            if id(module) not in layers:
                weights += module.variables
    return weights


def next_call_updates_weights(optimizer: Any, pending_calls: Any = 0) -> Any:
    """Return whether the call of an optimizer after pending ones updates weights, or accumulates.

    It is a boolean tensor; or True if the optimizer has no `gradient_accumulation_steps`, or if
    Keras lacks the private attribute.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    steps = getattr(inner, "gradient_accumulation_steps", None)
    calls = getattr(inner, "_iterations", None)
    if not steps or calls is None:
        return True
    return (calls.value + pending_calls + 1) % steps == 0


def slot_names(optimizer: Any, weights: dict[str, Any]) -> dict[int, str]:
    """Name the variables of an optimizer by their attribute and the weight that they belong to.

    The names are by the variables' ids. If Keras lacks the private attributes, none belongs to a
    weight.
    """
    names: dict[int, str] = {}
    if not hasattr(optimizer, "build"):  # a legacy optimizer of Keras 2
        for name, (key, weight) in product(optimizer.get_slot_names(), weights.items()):
            with suppress(KeyError):  # It does not update this weight.
                names[id(optimizer.get_slot(weight, name))] = f"{name}/{key}"
        return names
    keys = _keys_by_index(optimizer, weights)
    # Slots are in lists with a variable for each weight that the optimizer updates.
    slot_count = max(keys, default=-1) + 1
    for name, value in vars(optimizer).items():
        if name in _ALL_VARIABLES:
            continue
        if not isinstance(value, (list, tuple)):
            names.setdefault(id(value), name)
        elif len(value) == slot_count:
            for index, slot in enumerate(value):
                if index in keys:
                    names[id(slot)] = f"{name}/{keys[index]}"
    return names


_ALL_VARIABLES = ("_trainable_variables", "_variables")


def _keys_by_index(optimizer: Any, weights: dict[str, Any]) -> dict[int, str]:
    """Return the keys of the weights that an optimizer updates, by its own indices of them.

    A weight that is not in `weights` has its index as the key.
    """
    if is_keras3(optimizer):
        keys = {id(weight): key for key, weight in weights.items()}
        updated = getattr(optimizer, "_trainable_variables", ())
        return {index: keys.get(id(weight), f"{index}") for index, weight in enumerate(updated)}
    indices = dict(getattr(optimizer, "_index_dict", {}))
    keys_by_index = {}
    for key, weight in weights.items():
        variable_key = optimizer._var_key(weight)
        if variable_key in indices:
            keys_by_index[indices.pop(variable_key)] = key
    for index in indices.values():
        keys_by_index[index] = f"{index}"
    return keys_by_index


def trainable_if_unfrozen(model: Model) -> list[Any]:
    """List the variables that are trained, or would be if their layers were not frozen.

    If Keras lacks the private attribute, they are those that are trained now.
    """
    layers = [model, *sublayers(model)]
    trained = list(model.trainable_variables)
    if all(layer.trainable for layer in layers):
        return trained
    name = "_trainable_variables" if is_keras3(model) else "_trainable_weights"
    unfrozen = {id(weight) for layer in layers for weight in getattr(layer, name, ())}
    unfrozen.update(map(id, trained))
    return [weight for weight in model.weights if id(weight) in unfrozen]


def is_compiled(model: Model) -> bool:
    """Return whether a program has called a model's `compile`.

    Returns False if Keras lacks the attribute.
    """
    return bool(getattr(model, "compiled" if is_keras3(model) else "_is_compiled", False))


def optimizer_is_built(optimizer: Any) -> bool:
    """Return whether an optimizer with a method `build` has its variables.

    Returns False if Keras lacks the attribute.
    """
    return bool(getattr(optimizer, "built" if is_keras3(optimizer) else "_built", False))


def build_optimizer(optimizer: Any, variables: list[Any]) -> None:
    """Create the variables of an optimizer; the legacy ones of Keras 2 have no public way."""
    if hasattr(optimizer, "build"):
        optimizer.build(variables)
    else:
        optimizer._create_all_weights(variables)


def optimizer_updates(optimizer: Any, variable: Any) -> bool:
    """Return whether an optimizer that is built updates a variable."""
    if is_keras3(optimizer):
        return any(updated is variable for updated in optimizer._trainable_variables)
    return optimizer._var_key(variable) in optimizer._index_dict


def indices_of_updated_weights(optimizer: Any, weights: list[Any]) -> list[int] | None:
    """List the indices of the weights of a model that an optimizer of Keras 3 updates.

    Returns None if the optimizer is not built.
    """
    if not is_keras3(optimizer):
        raise ValueError(f"copying its optimizer, {type(optimizer).__name__}, needs Keras 3")
    if not optimizer.built:
        return None
    indices = {id(weight): index for index, weight in enumerate(weights)}
    updated = optimizer._trainable_variables
    updated_indices = [indices[id(weight)] for weight in updated if id(weight) in indices]
    if len(updated_indices) < len(updated):
        raise ValueError(
            f"its optimizer, {type(optimizer).__name__}, updates "
            f"{len(updated) - len(updated_indices)} variables that are none of its weights"
        )
    return updated_indices


def schedule_of(optimizer: Any) -> Any:
    """Return the schedule of an optimizer, or None if its learning rate is a number.

    If Keras lacks the private attribute, only the schedule of a legacy optimizer is found.
    """
    rate = getattr(optimizer, "_learning_rate", None)
    rate = optimizer.learning_rate if rate is None else rate
    return rate if callable(rate) and not hasattr(rate, "assign") else None


def prepare_schedule(optimizer: Any) -> None:
    """Create the variable of a scheduled rate, which Keras 2 would create in a graph."""
    compute = getattr(optimizer, "_compute_current_learning_rate", None)
    if compute is not None and not hasattr(optimizer, "_current_learning_rate"):
        compute()


def loss_scale_variables(optimizer: Any) -> list[Any]:
    """List the variables of Keras 2's loss scale, which are not the optimizer's.

    The list is empty if Keras lacks the attributes.
    """
    scale = getattr(optimizer, "_loss_scale", None)
    variables = [getattr(scale, name, None) for name in ("current_loss_scale", "counter")]
    return [variable for variable in variables if variable is not None]


def seed_states(layer: Any) -> list[Any]:
    """List the states of a layer's own generators, which only layers of Keras 3 have.

    The list is empty if Keras lacks the attribute.
    """
    return [generator.state for generator in getattr(layer, "_seed_generators", ())]


def is_keras2_nadam(optimizer: Any) -> bool:
    """Return whether an optimizer is Keras 2's Nadam, whose count of updates is no variable."""
    return not is_keras3(optimizer) and hasattr(optimizer, "_u_product_counter")


def generator_in(value: Any) -> Any:
    """Return TensorFlow's generator in one of Keras 2, where the program has turned them on."""
    # Any object may be asked, so no attribute is computed.
    if getattr(value, "__dict__", {}).get("_rng_type") == "stateful":
        value._maybe_init()  # It is made by the first draw.
        return value._generator
    return None


def has_unreadable_seeds(layer: Any) -> bool:
    """Return whether a layer of Keras 2 draws from ops with a hidden state.

    Returns False if Keras lacks the attribute.
    """
    generator = None if is_keras3(layer) else getattr(layer, "_random_generator", None)
    return generator is not None and generator_in(generator) is None


def trained_weights(layer: Any) -> list[Any]:
    """List the weights of a layer itself that are trained unless it is frozen.

    The list is empty if Keras lacks the attributes.
    """
    names = ("_trainable_variables", "_trainable_weights")
    return [weight for name in names for weight in vars(layer).get(name, ())]


LISTS_OF_PARTS = (
    "_layers",
    "_metrics",
    "_self_tracked_trackables",
    "_tracked",
    "_trainable_variables",
    "_trainable_weights",
)
"""Attributes of layers that list what other attributes hold, or trained weights."""

PREFIX_OF_TRACKING = "_self_"
"""The prefix of attributes in which TensorFlow tracks what other attributes hold."""


def shared_seeds() -> Any:
    """Return the state of Keras 3's generator for draws without a seed; None before its first."""
    if not hasattr(sys.modules.get("keras"), "ops"):
        return None
    read = look_up("keras.src.backend.common.global_state.get_global_attribute")
    generator = read and read("global_seed_generator")
    return None if generator is None else generator.state


def set_shared_seeds(value: Any) -> None:
    """Set the state that `shared_seeds` returns.

    If the generator has to be made, it draws its first seed from Python's generator.
    """
    make = look_up("keras.src.random.seed_generator.global_seed_generator")
    if make is not None and hasattr(sys.modules.get("keras"), "ops"):
        make().state.assign(value)


def restart_uids(package: str) -> None:
    """Restart the numbers in the names of layers; they continue if Keras lacks the function."""
    reset = getattr(sys.modules[package].backend, "reset_uids", None)
    reset = reset or look_up("keras.src.utils.naming.reset_uids")
    if reset is not None:
        reset()


INSIDE = "model.weights.h5"
"""The name of the weights in an archive of a whole model."""

# Saved if the program has compiled the model, for example.
_BESIDE = re.compile(
    r"_?(optimizer|current_optimizer|metrics|compile_metrics|loss_tracker|seed_generators?)(_\d+)?"
)
# In this group layers are named by their classes, which may have any name.
_LAYERS = "layers"


def is_saved_beside_layers(path: str) -> bool:
    """Return whether an array in a file of weights is not of the layers, but saved beside them."""
    parts = path.split("/")
    return any(
        _BESIDE.fullmatch(part) and before != _LAYERS
        for before, part in zip(["", *parts], parts, strict=False)
    )


BOOKKEEPING = (
    "_jit_compile",
    "_losses",
    "_obj_reference_counts_dict",
    "_self_unconditional_checkpoint_dependencies",
    "_self_unconditional_dependency_names",
    "_thread_local",
    "_tracked",
    "_u_product_counter",
    "is_awq_calibrated",
    "is_gptq_calibrated",
)
"""Attributes of layers and optimizers that calls, saving and loading write."""
