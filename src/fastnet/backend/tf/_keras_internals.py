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
    "INSIDE",
    "OF_KERAS",
    "OF_MODELS",
    "OF_OPTIMIZERS",
    "OF_VARIABLES",
    "TRACKING",
    "WRITTEN_BY_LOADING",
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
    "settings_in_variables",
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
    """List the layers in a layer.

    Args:
        layer: The layer, or a model.
        recursive: Whether to list those in these as well.

    Returns:
        Each layer once. Where Keras's own list cannot be had, these are the layers that models list
        and those that other layers have as attributes, in the order of these.
    """
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
    """Return whether `sublayers` has Keras's order, so that layers can be told by their places.

    Args:
        model: The model.
    """
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
    """List the variables of a model that are trained, or would be if their layers were not frozen.

    Args:
        model: The model.
    """
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
    """Return whether a program has called a model's `compile`.

    Args:
        model: The model.
    """
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
    """Return whether an optimizer with a method `build` has its variables.

    Args:
        optimizer: The optimizer. Building one of Keras 2 again does nothing, so that one which
            cannot be told from others may be said to have none.
    """
    if hasattr(optimizer, "built"):
        return bool(optimizer.built)
    return bool(getattr(optimizer, "_built", optimizer in _built_for))


def build_optimizer(optimizer: Any, variables: list[Any]) -> None:
    """Let an optimizer make its variables.

    Args:
        optimizer: The optimizer.
        variables: What it is to update.

    Raises:
        RuntimeError: If it is an older one of Keras 2, which has no public way.
    """
    if hasattr(optimizer, "build"):
        optimizer.build(variables)
        _built_for[optimizer] = _built_for[_inner(optimizer)] = list(variables)
        return
    create = getattr(optimizer, "_create_all_weights", None)
    if create is None:
        raise _refusal("_create_all_weights", f"make the variables of {type(optimizer).__name__}")
    create(variables)


def updated_by(optimizer: Any, model: Any) -> list[int] | None:
    """Find out for which of a model's weights an optimizer has variables.

    Args:
        optimizer: The optimizer, inside of all that scales losses.
        model: The model.

    Returns:
        The places among the weights, in the optimizer's order; None for not yet any.

    Raises:
        ValueError: If it updates what is none of them.
        RuntimeError: If it cannot be found out.
    """
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


def settings_in_variables(optimizer: Any) -> list[Any]:
    """List the settings of an older optimizer of Keras 2 that it has in variables.

    Without them its variables look as if some op had made them, and ops are traced twice.

    Args:
        optimizer: The optimizer.
    """
    return list(getattr(optimizer, "_hyper", {}).values())


def schedule_of(optimizer: Any) -> Any:
    """Return what decides an optimizer's learning rate.

    Args:
        optimizer: The optimizer, inside of all that scales losses.

    Returns:
        The schedule, which takes how many steps there were, or None for a number. Where the
        optimizer's own cannot be had it is another one of the same settings.
    """
    schedule = getattr(optimizer, "_learning_rate", _MISSING)
    if schedule is _MISSING:
        with tf.init_scope():  # it reads variables, maybe while a graph is traced
            config = optimizer.get_config().get("learning_rate")
        if isinstance(config, dict):
            return keras_of(optimizer).optimizers.schedules.deserialize(config)
        schedule = config
    return schedule if callable(schedule) and not hasattr(schedule, "assign") else None


def lacks_its_rate(optimizer: Any) -> bool:
    """Return whether a schedule was set whose rate Keras 2 puts into a variable yet to be made.

    Args:
        optimizer: The optimizer, inside of all that scales losses.
    """
    if is_keras3(optimizer) or getattr(optimizer, "_compute_current_learning_rate", None) is None:
        return False
    has_one = getattr(optimizer, "_current_learning_rate", None) is not None
    return not has_one and schedule_of(optimizer) is not None


def make_rate(optimizer: Any) -> None:
    """Make that variable.

    Args:
        optimizer: An optimizer that lacks it.
    """
    optimizer._compute_current_learning_rate()


def loss_scale_variables(optimizer: Any) -> list[Any]:
    """List the variables that Keras 2 has besides an optimizer's, for the scale of its losses.

    Args:
        optimizer: The optimizer.

    Raises:
        RuntimeError: If it has such, which cannot be read.
    """
    scale = getattr(optimizer, "_loss_scale", None)
    if scale is None and not is_keras3(optimizer) and hasattr(optimizer, "get_scaled_loss"):
        raise _refusal("_loss_scale", "save the scale of losses")
    found = [getattr(scale, name, None) for name in ("current_loss_scale", "counter")]
    return [one for one in found if one is not None]


# --- random numbers ---------------------------------------------------------------------------


def seed_states(layer: Any) -> list[Any]:
    """List the states of the generators that a layer has of its own.

    Args:
        layer: The layer, or a model.
    """
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
    """Return whether a layer of Keras 2 has a generator whose state cannot be read.

    Args:
        layer: The layer.
    """
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
    """Find the state of the generator that Keras 3 uses where it is given no seed.

    Returns:
        The state, or None; and whether that is all there is: False where there is one that cannot
        be found.
    """
    if int(getattr(sys.modules.get("keras"), "__version__", "2").partition(".")[0]) < 3:
        return None, True
    seeds = look_up("keras.src.random.seed_generator.global_seed_generator", _takes_nothing)
    return (None, False) if seeds is None else (seeds().state, True)


# --- names ------------------------------------------------------------------------------------


def restart_uids(package: str) -> None:
    """Let a Keras name layers as if it had named none.

    Without a way to do so the names go on, and a program that asks for a layer by name is told
    those that there are.

    Args:
        package: The name of the Keras.
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
    """Return whether an array in a file of weights is not of the layers, but saved beside them.

    Args:
        path: Its path in the file.
    """
    parts = path.split("/")
    return any(
        _BESIDE.fullmatch(part) and before != _LAYERS
        for before, part in zip(["", *parts], parts, strict=False)
    )


# The attributes below are passed over where objects are looked at to tell whether a graph still
# stands for them (`baked.py`). A name that a version of Keras does not have does no harm, and what
# it keeps under a name that is not here is looked at like anything else: at worst ops are traced
# once more than they must.

TRACKING = frozenset(
    {
        "_self_setattr_tracking",
        "_self_unconditional_checkpoint_dependencies",
        "_self_unconditional_dependency_names",
        "_self_unconditional_deferred_dependencies",
        "_self_update_uid",
        "_self_name_based_restores",
        "_self_saveable_object_factories",
        "_obj_reference_counts_dict",
        "_tracker",
        "_tracked",
        "_lock",
    }
)
# of layers, variables and the like: what calls leave behind, and what a graph does not depend on
OF_KERAS = TRACKING | {
    "_auto_config",
    "_build_input_shape",
    "_build_shapes_dict",
    "_call_context_args",
    "_call_has_context_arg",
    "_call_signature",
    "_called",
    "_captured_weight_regularizer",
    "_dropout_mask_cache",
    "_inbound_nodes",
    "_inbound_nodes_value",
    "_initializer",
    "_losses",
    "_losses_override",
    "_loss_ids",
    "_metrics_lock",
    "_outbound_nodes",
    "_outbound_nodes_value",
    "_parent_path",
    "_path",
    "_recurrent_dropout_mask_cache",
    "_saved_model_arg_spec",
    "_saved_model_inputs_spec",
    "_seed",
    "_thread_local",
    "_updates",
    "_built",
    "built",
    "call_signature_parameters",
}
# of models: what `compile` and `fit` keep, and the nodes of which a functional model is made
OF_MODELS = OF_KERAS | {
    "_autotune_steps_per_execution",
    "_checkpoint",
    "_cluster_coordinator",
    "_compile_config",
    "_compile_loss",
    "_compile_metrics",
    "_compiled_trainable_state",
    "_compute_loss_has_training_arg",
    "_created_nodes",
    "_distribute_reduction_method",
    "_distribute_strategy",
    "_distribution_strategy",
    "_initial_epoch",
    "_inputs",
    "_inputs_struct",
    "_is_compiled",
    "_jit_compile",
    "_layer_call_argspecs",
    "_loss_tracker",
    "_metrics",
    "_network_nodes",
    "_nodes",
    "_nodes_by_depth",
    "_operations_by_depth",
    "_output_mask_cache",
    "_output_shape_cache",
    "_output_tensor_cache",
    "_outputs",
    "_outputs_struct",
    "_predict_counter",
    "_pss_evaluation_shards",
    "_run_eagerly",
    "_steps_per_execution",
    "_steps_per_execution_tuner",
    "_tensor_usage_count",
    "_test_counter",
    "_train_counter",
    "_training_state",
    "auto_scale_loss",
    "compiled",
    "compiled_loss",
    "compiled_metrics",
    "current_optimizer",
    "fe_compiled",
    "history",
    "jit_compile",
    "loss",
    "model_name",
    "optimizer",
    "predict_function",
    "pss_evaluation_shards",
    "run_eagerly",
    "steps_per_execution",
    "stop_training",
    "test_function",
    "train_function",
    "train_tf_function",
    "unrolled_steps_per_execution",
}
# of optimizers: variables of their own, which are made when they are needed
OF_OPTIMIZERS = OF_KERAS | {
    "_deferred_slot_restorations",
    "_distribution_strategy",
    "_hypers_created",
    "_mesh",
    "_slot_names",
    "_slots",
    "_u_product_counter",
    "_variables",
    "_weights",
}

# what loading weights writes to the layers of Keras 3, where it means the same as nothing
WRITTEN_BY_LOADING = {"is_awq_calibrated": False, "is_gptq_calibrated": False}

# of variables: all that a graph depends on
OF_VARIABLES = frozenset({"_trainable", "_constraint"})
