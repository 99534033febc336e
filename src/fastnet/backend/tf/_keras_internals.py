"""Every name of Keras, 2 and 3, that is not part of its public API.

The rest of fastnet takes from here what these names stand for. In a version of Keras that has no
such name there is another way for each, or, where Keras has none, an error that says so. Keras 2
has had its last release: what it alone has will not change.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf

from fastnet.backend.tf._internals import look_up
from fastnet.backend.tf.keras_version import is_keras3, keras_of

__all__ = [
    "BOOKKEEPING",
    "INSIDE",
    "build_optimizer",
    "has_unreadable_seeds",
    "is_beside",
    "is_built",
    "is_compiled",
    "keeps_places",
    "lacks_its_rate",
    "loss_scale_variables",
    "make_rate",
    "schedule_of",
    "seed_states",
    "shared_seeds",
    "sublayers",
    "updatable",
    "updated_by",
]

_MISSING = object()


def _refusal(name: str, purpose: str) -> RuntimeError:
    """Word the error of a name that there is no other way around."""
    return RuntimeError(
        f"To {purpose}, fastnet needs '{name}' of Keras, which this version does not have. Use a "
        "version of Keras that fastnet was tested with."
    )


# --- layers -----------------------------------------------------------------------------------


def sublayers(layer: Any, recursive: bool) -> list[Any]:
    """List the layers in a layer."""
    flatten = getattr(layer, "_flatten_layers", None)
    if flatten is not None:
        return list(flatten(include_self=False, recursive=recursive))
    found: dict[int, Any] = {}
    waiting = list(_parts(layer))
    while waiting:
        part = waiting.pop(0)
        if id(part) not in found and part is not layer:
            found[id(part)] = part
            waiting = [*(_parts(part) if recursive else ()), *waiting]
    return list(found.values())


def keeps_places(model: Any) -> bool:
    """Return whether `sublayers` has Keras's order, so that layers can be told by their places."""
    if getattr(model, "_flatten_layers", None) is not None:
        return True
    layers = [model, *sublayers(model, recursive=True)]
    return all(isinstance(one, keras_of(one).Model) or not list(_parts(one)) for one in layers)


def _parts(layer: Any) -> Iterator[Any]:
    keras = keras_of(layer)
    if isinstance(layer, keras.Model):
        if isinstance(layer, keras.Sequential) and is_keras3(layer) and layer.built:
            # it does not list the layer that stands for its input, which it begins with
            whole = keras.Model(layer.inputs, layer.outputs, name=layer.name)
            yield from (one for one in whole.layers[:1] if one is not layer.layers[0])
        yield from layer.layers
        return
    values = list(vars(layer).values())
    seen: set[int] = set()
    while values:
        value = values.pop(0)
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, keras.layers.Layer):
            if not isinstance(value, keras.metrics.Metric):
                yield value
        elif isinstance(value, dict):
            values = [*value.values(), *values]
        elif isinstance(value, (list, tuple, set)):
            values = [*value, *values]


def updatable(model: Any) -> list[Any]:
    """List the variables that are trained, or would be if their layers were not frozen."""
    layers = [model, *sublayers(model, recursive=True)]
    frozen = [layer for layer in layers if not layer.trainable]
    trained = list(model.trainable_variables)
    if not frozen:
        return trained
    name = "_trainable_variables" if is_keras3(model) else "_trainable_weights"
    lists: list[Any] = [getattr(layer, name, _MISSING) for layer in layers]
    if any(one is _MISSING for one in lists):
        waiting = _thawed(model, layers)
    else:
        waiting = {id(variable) for own in lists for variable in own}
    wanted = waiting.union(map(id, trained))
    return [weight for weight in model.weights if id(weight) in wanted]


def _thawed(model: Any, layers: list[Any]) -> set[int]:
    """Thaw a model for a moment, and see what is trained then."""
    before = list(map(id, model.trainable_variables))
    flags = [(layer, bool(layer.trainable)) for layer in layers]
    # Keras 3 freezes variables with their layer, and a program may freeze them alone
    variables = [(one, one.trainable) for one in model.weights] if is_keras3(model) else []
    try:
        # Keras 3 does nothing where the flag is as it was
        for layer in [model, *layers]:
            layer.trainable = False
            layer.trainable = True
        return set(map(id, model.trainable_variables))
    finally:
        for layer, flag in flags:
            layer.trainable = flag
        for variable, flag in variables:
            variable.trainable = flag
        if list(map(id, model.trainable_variables)) != before:
            raise _refusal("_trainable_variables", "find the variables of frozen layers")


def is_compiled(model: Any) -> bool:
    """Return whether a program has called a model's `compile`."""
    if is_keras3(model):
        return bool(getattr(model, "compiled", False))
    # Keras 2 makes the second when it compiles
    return bool(getattr(model, "_is_compiled", getattr(model, "compiled_loss", None) is not None))


# --- optimizers -------------------------------------------------------------------------------

# what fastnet has built, for want of Keras's own list
_built_for: WeakKeyDictionary[Any, list[Any]] = WeakKeyDictionary()


def _inner(optimizer: Any) -> Any:
    while hasattr(optimizer, "inner_optimizer"):
        optimizer = optimizer.inner_optimizer
    return optimizer


def is_built(optimizer: Any) -> bool:
    """Return whether an optimizer with a method `build` has its variables."""
    if hasattr(optimizer, "built"):
        return bool(optimizer.built)
    return bool(getattr(optimizer, "_built", optimizer in _built_for))


def build_optimizer(optimizer: Any, variables: list[Any]) -> None:
    """Let an optimizer make its variables."""
    if hasattr(optimizer, "build"):
        optimizer.build(variables)
        _built_for[optimizer] = _built_for[_inner(optimizer)] = list(variables)
        return
    create = getattr(optimizer, "_create_all_weights", None)
    if create is None:
        raise _refusal("_create_all_weights", f"make the variables of {type(optimizer).__name__}")
    create(variables)


def updated_by(optimizer: Any, model: Any) -> list[int] | None:
    """Find out for which of a model's weights an optimizer has variables."""
    if not is_keras3(model):
        keys = _keys_in_keras2(optimizer, model)
        if keys is None:
            return None
        own = {_key_in_keras2(optimizer, one): place for place, one in enumerate(model.weights)}
    elif not optimizer.built:
        return None
    else:
        variables = getattr(optimizer, "_trainable_variables", _built_for.get(optimizer))
        if variables is None:
            raise _refusal("_trainable_variables", "tell which weights an optimizer updates")
        keys = list(map(id, variables))
        own = {id(one): place for place, one in enumerate(model.weights)}
    strangers = [key for key in keys if key not in own]
    if strangers:
        raise ValueError(
            f"its optimizer, {type(optimizer).__name__}, updates {len(strangers)} variables that "
            "are none of its weights"
        )
    return [own[key] for key in keys]


def _keys_in_keras2(optimizer: Any, model: Any) -> list[Any] | None:
    if hasattr(optimizer, "build"):
        index = getattr(optimizer, "_index_dict", {} if not is_built(optimizer) else None)
        if index is None:
            raise _refusal("_index_dict", "tell which weights an optimizer updates")
        return sorted(index, key=index.__getitem__) or None
    if not optimizer.weights:
        return None
    slots = getattr(optimizer, "_slots", None)
    if slots is None:
        raise _refusal("_slots", "tell which weights an optimizer updates")
    return list(slots or [_key_in_keras2(optimizer, one) for one in model.trainable_variables])


def _key_in_keras2(optimizer: Any, variable: Any) -> Any:
    if not hasattr(optimizer, "build"):
        return str(getattr(variable, "_unique_id", variable.ref()))
    key_of = getattr(optimizer, "_var_key", None)
    if key_of is None:
        raise _refusal("_var_key", "tell which weights an optimizer updates")
    return key_of(variable)


def schedule_of(optimizer: Any) -> Any:
    """Return what decides an optimizer's learning rate."""
    schedule = getattr(optimizer, "_learning_rate", _MISSING)
    if schedule is _MISSING:
        with tf.init_scope():  # it reads variables, maybe while a graph is traced
            config = optimizer.get_config().get("learning_rate")
        if isinstance(config, dict):
            return keras_of(optimizer).optimizers.schedules.deserialize(config)
        schedule = config
    return schedule if callable(schedule) and not hasattr(schedule, "assign") else None


def lacks_its_rate(optimizer: Any) -> bool:
    """Return whether a schedule was set whose rate Keras 2 puts into a variable yet to be made."""
    if is_keras3(optimizer) or getattr(optimizer, "_compute_current_learning_rate", None) is None:
        return False
    has_one = getattr(optimizer, "_current_learning_rate", None) is not None
    return not has_one and schedule_of(optimizer) is not None


def make_rate(optimizer: Any) -> None:
    """Make that variable."""
    optimizer._compute_current_learning_rate()


def loss_scale_variables(optimizer: Any) -> list[Any]:
    """List the variables that Keras 2 has besides an optimizer's, for the scale of its losses."""
    scale = getattr(optimizer, "_loss_scale", None)
    if scale is None and not is_keras3(optimizer) and hasattr(optimizer, "get_scaled_loss"):
        raise _refusal("_loss_scale", "save the scale of losses")
    found = [getattr(scale, name, None) for name in ("current_loss_scale", "counter")]
    return [one for one in found if one is not None]


# --- random numbers ---------------------------------------------------------------------------


def seed_states(layer: Any) -> list[Any]:
    """List the states of the generators that a layer has of its own."""
    if is_keras3(layer):
        seeds = getattr(layer, "_seed_generators", None)
        if seeds is not None:
            return [one.state for one in seeds]
        # with those of the layers in it, which come again
        weights = set(map(id, layer.weights))
        return [one for one in layer.variables if id(one) not in weights]
    generator = getattr(layer, "_random_generator", None)
    begin = getattr(generator, "_maybe_init", None)
    if begin is not None:
        # Keras 2 makes it when the layer runs for the first time
        begin()
    state = getattr(getattr(generator, "_generator", None), "state", None)
    return [] if state is None else [state]


def has_unreadable_seeds(layer: Any) -> bool:
    """Return whether a layer of Keras 2 has a generator whose state cannot be read."""
    if is_keras3(layer):
        return False
    generator = getattr(layer, "_random_generator", _MISSING)
    if generator is _MISSING:
        return any("Random" in base.__name__ for base in type(layer).__mro__)
    own = type(generator).__module__.partition(".")[0] in ("keras", "tf_keras")
    return bool(
        getattr(generator, "_rng_type", "legacy_stateful" if own else "") == "legacy_stateful"
    )


def _takes_nothing(function: Any) -> bool:
    inspect.signature(function).bind()
    return True


def shared_seeds() -> tuple[Any, bool]:
    """Find the state of the generator that Keras 3 uses where it is given no seed."""
    if int(getattr(sys.modules.get("keras"), "__version__", "2").partition(".")[0]) < 3:
        return None, True
    seeds = look_up("keras.src.random.seed_generator.global_seed_generator", _takes_nothing)
    return (None, False) if seeds is None else (seeds().state, True)


# --- names ------------------------------------------------------------------------------------


def restart_uids(package: str) -> None:
    """Let a Keras name layers as if it had named none.

    Without a way to do so the names go on, and a program that asks for a layer by name is told
    those that there are.
    """
    backend = sys.modules[package].backend
    if hasattr(backend, "reset_uids"):
        backend.reset_uids()
        return
    reset = look_up("keras.src.utils.naming.reset_uids", _takes_nothing)
    if reset is not None:
        reset()


# --- what Keras calls things --------------------------------------------------------------------

INSIDE = "model.weights.h5"
"""What the weights are called in an archive of a whole model."""

# which of it is saved depends on what the program had made of the model
_BESIDE = re.compile(
    r"_?(optimizer|current_optimizer|metrics|compile_metrics|loss_tracker|seed_generators?)(_\d+)?"
)
# where layers are named by their classes, which may be called anything
_LAYERS = "layers"


def is_beside(path: str) -> bool:
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
    "_tracked",
    "_u_product_counter",
    "is_awq_calibrated",
    "is_gptq_calibrated",
)
"""Attributes of layers and optimizers that calls, saving and loading write."""
