"""Prepares Keras models and makes their optimizers for `fastnet.build`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from fastnet.backend.dispatch import framework_of
from fastnet.backend.model_metadata import (
    foreign_optimizer,
    get_metadata,
    other_owner,
    reserve,
    set_metadata,
    wrong_optimizer,
)
from fastnet.backend.optimizer_fn import call_optimizer_fn
from fastnet.backend.precision import Precision, policy_name, read_precision
from fastnet.backend.tf import processes
from fastnet.backend.tf._keras_internals import (
    build_optimizer,
    derives_from_package,
    is_compiled,
    is_keras3,
    keras_package_of,
    optimizer_is_built,
    optimizer_updates,
    prepare_schedule,
    restart_uids,
    seed_states,
    trainable_if_unfrozen,
)
from fastnet.backend.tf.models import all_layers
from fastnet.backend.tf.optimizers import inner_optimizer, is_scaling, make_weight_decay_variable
from fastnet.errors import add_note
from fastnet.types import Model
from fastnet.util.warnings import warn

# The distance between the seeds of workers, large so that they do not meet those of other layers.
_SEED_STEP = 0x9E3779B1

_MIXED_POLICIES = ("mixed_float16", "mixed_bfloat16")

# Classes of `keras.optimizers` that cannot be made by name.
_NOT_BY_NAME = ("lossscaleoptimizer", "multioptimizer", "optimizer")


def _optimizers_by_name(keras: Any, is_new: bool) -> dict[str, Any]:
    """Return the optimizers of Keras by their lower-case names."""
    # FastEstimator uses the legacy ones of Keras 2, which are also faster.
    modules = [keras.optimizers] if is_new else [keras.optimizers, keras.optimizers.legacy]
    return {
        name.lower(): getattr(module, name)
        for module in modules
        for name in dir(module)
        if hasattr(getattr(module, name), "apply_gradients") and name.lower() not in _NOT_BY_NAME
    }


def mirror(make_models: Callable[[], list[Any]], models: list[Model]) -> list[Any]:
    """Make models again under a MirroredStrategy, if there are several GPUs and no strategy.

    The strategy stays that of the process.
    """
    gpus = tf.config.list_logical_devices("GPU")
    if tf.distribute.has_strategy() or len(gpus) < 2:
        return models
    strategy = tf.distribute.MirroredStrategy([gpu.name for gpu in gpus])
    restart_names(models)
    tf.distribute.experimental_set_strategy(strategy)
    try:
        return make_models()
    except BaseException:
        tf.distribute.experimental_set_strategy(None)
        raise


def keras_names(models: list[Model]) -> set[str]:
    """Return the names of the Keras packages of models; other frameworks' are ignored."""
    return {
        str(keras_package_of(model).__name__) for model in models if framework_of(model) == "tf"
    }


def restart_names(models: list[Model]) -> None:
    """Restart Keras's numbering of layer names, so that models made again have the same names."""
    for name in keras_names(models):
        restart_uids(name)


def prepare(model: Model, source: Any) -> Any:
    """Prepare a new model, whose optimizer is made of `source`.

    Raises:
        ValueError: If its Keras computes with another framework.
    """
    processes.note_model(model)
    if is_keras3(model):
        backend = keras_package_of(model).config.backend()
        if backend != "tensorflow":
            raise ValueError(
                f"The backend of Keras is {backend!r}, but a network runs Keras models with "
                "'tensorflow'. Set the environment variable KERAS_BACKEND to tensorflow before "
                "Keras is imported."
            )
        _seed_worker(model)
    else:
        # Keras 2 would reject batches whose shapes can be broadcast.
        model.input_spec = None
    _reserve_names(model, source)
    keep_optimizer_on_compile(model)
    return model


def keep_optimizer_on_compile(model: Model) -> None:
    """Let a program compile a model, as for `evaluate`, without replacing its optimizer."""
    # Written to __dict__, because Keras's `__setattr__` would track it.
    model.__dict__.setdefault("compile", partial(_compile, model))


def _compile(model: Model, *args: Any, **kwargs: Any) -> None:
    """Call the `compile` of a model's class; keep the optimizer if the call passes none."""
    optimizer, compile = get_metadata(model, "optimizer"), type(model).compile
    compile(model, *args, **kwargs)
    arguments = inspect.signature(compile).bind(model, *args, **kwargs).arguments
    if optimizer is not None and arguments.get("optimizer") is None:
        set_metadata(model, "optimizer", optimizer)


def _seed_worker(model: Model) -> None:
    """Give the random layers of each worker a seed of their own.

    Keras 3 keeps the states of generators in variables, which start equal on all workers.
    """
    rank = processes.rank()
    for layer in all_layers(model) if rank else ():
        for state in seed_states(layer):
            value = np.array(state.numpy())
            limit = int(np.iinfo(value.dtype).max) + 1
            value[0] = (int(value[0]) + rank * _SEED_STEP) % limit
            state.assign(value)


def require_as_made(models: list[Model], mixed_precision: Precision) -> None:
    """Check that existing Keras models have the precision, and the strategy, that build needs."""
    for model in models:
        if framework_of(model) != "tf":
            continue
        if mixed_precision and not _computes_in_half(model):
            raise ValueError(
                f"{type(model).__name__} was made in {model.compute_dtype}, but build has "
                "mixed_precision=True, and the precision of Keras layers is fixed when they are "
                "made. Pass a function that makes the model as model_fn."
            )
        gpus = tf.config.list_logical_devices("GPU")
        if not tf.distribute.has_strategy() and len(gpus) > 1:
            raise ValueError(
                f"{type(model).__name__} was made for one device, but there are {len(gpus)} GPUs "
                "to distribute it over. Pass a function that makes the model as model_fn, or make "
                "it within the scope of a strategy of your own that build is called in, too."
            )


def warn_of_policy(models: list[Model]) -> None:
    """Warn of new Keras models in float32, where the program has set a mixed policy."""
    for model in models:
        if framework_of(model) != "tf" or precision_of(model):
            continue
        policy = policy_name(keras_package_of(model))
        if policy in _MIXED_POLICIES:
            warn(
                f"The global policy of Keras is {policy!r}, but fastnet.build makes models in "
                f"float32 unless it is given a precision. Pass mixed_precision={policy!r} to "
                "build, or reset the policy."
            )
            return


def precision_of(model: Model, given: Precision = False) -> Precision:
    """Return the precision given to build, or else that of the policy a model was made with."""
    name = str(model.dtype_policy.name)
    return read_precision(name) if not given and name in _MIXED_POLICIES else given


def _computes_in_half(model: Model) -> bool:
    return any(layer.compute_dtype in ("float16", "bfloat16") for layer in all_layers(model))


def _reserve_names(model: Model, source: Any) -> None:
    """Record which attribute names a model uses itself.

    Keras's `optimizer` of a compiled model is replaced by fastnet's, if `source` makes one.
    """

    def is_keras_own(name: str) -> bool:
        if name != "optimizer":
            return False
        value = model.__dict__.get(name, model)
        return value is None or (
            is_compiled(model) and source is not None and hasattr(value, "apply_gradients")
        )

    reserve(model, is_keras_own)


def make_optimizer(source: Any, model: Model, name: str, mixed_precision: Precision) -> Any:
    """Make an optimizer by name or function, with its variables; for float16 it scales the loss."""
    keras = keras_package_of(model)
    by_name = partial(_optimizers_by_name, keras, is_keras3(model))
    optimizer = call_optimizer_fn(source, model, name, by_name)
    check_owner(optimizer, model, name)
    # bfloat16 needs no scaling: it has the range of float32.
    scaled = read_precision(mixed_precision) in (True, "float16")
    if scaled and not is_scaling(optimizer):
        wrappers = keras.optimizers if is_keras3(model) else keras.mixed_precision
        optimizer = wrappers.LossScaleOptimizer(optimizer)
    prepare_optimizer(optimizer, model)
    return optimizer


def check_owner(optimizer: Any, model: Model, name: str) -> None:
    """Raise an error for an optimizer that is not from the model's Keras, or of another model."""
    inner = inner_optimizer(optimizer)
    package = str(keras_package_of(model).__name__)
    if not derives_from_package(optimizer, package) or not derives_from_package(inner, package):
        raise wrong_optimizer(inner, model, name)
    # Those without `build` update any variables.
    if not hasattr(inner, "build") or not optimizer_is_built(inner):
        return

    def is_owner(other_model: Any) -> bool:
        return framework_of(other_model) == "tf" and any(
            optimizer_updates(inner, weight) for weight in other_model.weights
        )

    variables = model.trainable_variables
    if variables and not any(optimizer_updates(inner, variable) for variable in variables):
        owner = other_owner(model, is_owner)
        if owner is not None:
            raise foreign_optimizer(optimizer, model, name, owner)


def prepare_optimizers(models: Iterable[Any]) -> None:
    """Let the current optimizers of models make their variables."""
    # Leave the graph that the program may be tracing.
    with tf.init_scope():
        for model in models:
            prepare_optimizer(get_metadata(model, "current_optimizer"), model)


def prepare_optimizer(optimizer: Any, model: Model) -> None:
    """Make the variables of an optimizer before anything is traced, if the model has its own."""
    if optimizer is None or not model.built:
        return
    strategy = processes.strategy_of(model)
    if strategy is not None and not tf.distribute.has_strategy():
        with strategy.scope():
            prepare_optimizer(optimizer, model)
        return
    try:
        make_weight_decay_variable(optimizer)
        prepare_schedule(inner_optimizer(optimizer))
        if not hasattr(optimizer, "build"):
            build_optimizer(optimizer, model.trainable_variables)
        elif not optimizer_is_built(optimizer):
            # Including those of frozen layers, because an optimizer is built only once.
            build_optimizer(optimizer, trainable_if_unfrozen(model))
    except Exception as error:
        add_note(error, f"Raised by the optimizer of {type(model).__name__}.")
        raise


def is_ready(optimizer: Any) -> bool:
    """Return whether an optimizer has its variables, or makes them on demand."""
    return not hasattr(optimizer, "build") or optimizer_is_built(optimizer)
