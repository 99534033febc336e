"""Model files, and learning rates, in FastEstimator's formats.

The weights files of both libraries are the same. FastEstimator saves the state of a Keras optimizer
as a pickle, which this module writes and reads without executing anything in it.
"""

from __future__ import annotations

import os
import pickle
from collections import Counter
from functools import partial
from typing import Any

import numpy as np

import fastnet.backend
from fastnet.backend.dispatch import framework_of
from fastnet.backend.files import write_atomically
from fastnet.backend.model_metadata import get_metadata, name_of
from fastnet.types import Model

__all__ = ["get_lr", "load_model", "save_model"]

_ARRAYS = {"_reconstruct", "_frombuffer", "dtype", "ndarray", "scalar"}


def get_lr(model: Model) -> Any:
    """Return the learning rate of a model's current optimizer.

    Args:
        model: A model from `build`.

    Returns:
        A float in torch, and a float32 in TensorFlow, so that logs show the digits of the rate that
        was set (0.001).

    Raises:
        AssertionError: If the model is not from `build`, or has no optimizer.
        ValueError: If the framework of the model is unknown.
    """
    rate = fastnet.backend.get_lr(model)
    return np.float32(rate) if framework_of(model) == "tf" else rate


def save_model(
    model: Model,
    save_dir: str,
    model_name: str | None = None,
    save_optimizer: bool = False,
    save_architecture: bool = False,
) -> str:
    """Save a model's weights.

    Args:
        model: A model from `build`.
        save_dir: The folder to save into, which is created if necessary.
        model_name: The name of the files. None for the model's name.
        save_optimizer: Whether to save the state of the current optimizer beside the weights.
        save_architecture: Whether to save the layers beside the weights (TensorFlow only).

    Returns:
        The path of the weights file.

    Raises:
        AssertionError: If the model is not from `build`, or has no optimizer to save.
        ValueError: If the framework of the model is unknown, or its architecture cannot be saved.
        OSError: If a file cannot be written.
    """
    is_keras = framework_of(model) == "tf"
    path = fastnet.backend.save_model(
        model, save_dir, model_name, save_optimizer and not is_keras, save_architecture
    )
    if save_optimizer and is_keras:
        if get_metadata(model, "current_optimizer") is None:
            raise AssertionError(
                f"save_model has save_optimizer=True, but model '{name_of(model)}' has no "
                "optimizer now."
            )
        write_atomically(_optimizer_path(path), partial(_write_state, model))
    return path


def load_model(model: Model, weights_path: str, load_optimizer: bool = False) -> None:
    """Load a model's weights. Nothing in the files is executed.

    Args:
        model: The model.
        weights_path: The file.
        load_optimizer: Whether to load the state of the model's current optimizer too.

    Raises:
        AssertionError: With `load_optimizer`, if the model is not from `build` or has no optimizer,
            or if the file of the optimizer does not exist.
        ValueError: If the weights file does not exist, if a file is damaged, belongs to another
            model or optimizer, or contains code, or if the framework of the model is unknown.
    """
    pickled = _optimizer_path(weights_path)
    if not (load_optimizer and framework_of(model) == "tf" and os.path.isfile(pickled)):
        fastnet.backend.load_model(model, weights_path, load_optimizer)
        return
    if get_metadata(model, "current_optimizer") is None:
        raise AssertionError(
            f"load_model has load_optimizer=True, but model '{name_of(model)}' has no optimizer "
            "now."
        )
    # Read the file before anything changes.
    optimizer = get_metadata(model, "current_optimizer")
    state = _read_state(optimizer, model, pickled)
    fastnet.backend.load_model(model, weights_path)
    optimizer.set_weights(state["weights"])
    decay = state["weight_decay"] if _weight_decay(optimizer) is not None else None
    fastnet.backend.set_lr(model, state["lr"], weight_decay=decay)


def _optimizer_path(path: str) -> str:
    return f"{os.path.splitext(path)[0]}_opt.pkl"


def _write_state(model: Model, path: str) -> None:
    optimizer = get_metadata(model, "current_optimizer")
    state: dict[str, Any] = {"lr": get_lr(model), "weights": _weights(optimizer)}
    # FastEstimator ignores the names.
    state["names"] = _names(optimizer, model)
    decay = _weight_decay(optimizer)
    if decay is not None:
        state["weight_decay"] = decay
    with open(path, "wb") as file:
        pickle.dump(state, file)


def _weights(optimizer: Any) -> list[np.ndarray[Any, Any]]:
    if hasattr(optimizer, "get_weights"):
        return [np.asarray(value) for value in optimizer.get_weights()]
    return [np.asarray(variable.numpy()) for variable in optimizer.variables()]


def _names(optimizer: Any, model: Model) -> list[str]:
    """Return the names of the `_weights`, whose order depends on which layers were frozen."""
    from fastnet.backend.tf.optimizers import named_variables

    named = named_variables(optimizer, model)
    names = {id(variable): name for name, variable in named.items()}
    is_keras2 = hasattr(optimizer, "get_weights")
    variables = optimizer.weights if is_keras2 else optimizer.variables()
    return [names.get(id(variable), "") for variable in variables]


def _weight_decay(optimizer: Any) -> float | None:
    decay = getattr(optimizer, "weight_decay", None)
    if decay is None:
        return None
    return float(decay.numpy() if hasattr(decay, "numpy") else decay)


def _read_state(optimizer: Any, model: Model, path: str) -> dict[str, Any]:
    names_now = _names(optimizer, model)
    try:
        with open(path, "rb") as file:
            state = _ArraysOnly(file).load()
        values = [np.asarray(value) for value in state["weights"]]
        # FastEstimator's own files have no names.
        names = [str(name) for name in state.get("names", names_now)]
        if sorted(names) == sorted(names_now) and len(set(names)) == len(names):
            values = [values[names.index(name)] for name in names_now]
        state = {
            "lr": float(state["lr"]),
            "weight_decay": state.get("weight_decay"),
            "weights": values,
        }
    except Exception as error:  # A damaged pickle raises errors of many types.
        raise ValueError(
            f"The optimizer file '{path}' cannot be read ({error!r}). "
            "Save it again with save_model(model, save_dir, save_optimizer=True)."
        ) from error
    shapes = [array.shape for array in _weights(optimizer)]
    saved_shapes = [array.shape for array in values]
    if saved_shapes != shapes:
        difference = f"arrays of the shapes {saved_shapes} where the model's are {shapes}"
    elif sorted(names) != sorted(names_now):
        saved_only = Counter(names) - Counter(names_now)
        model_only = Counter(names_now) - Counter(names)
        difference = (
            f"the arrays {sorted(saved_only.elements())} where the model's are "
            f"{sorted(model_only.elements())}"
        )
    else:
        return state
    raise ValueError(
        f"The optimizer file '{path}' is not of the model's optimizer, "
        f"{type(optimizer).__name__}: it has {difference}. Leave load_optimizer out, or give the "
        "model the optimizer that was saved."
    )


class _ArraysOnly(pickle.Unpickler):
    """Reads arrays, and TensorFlow's variables as arrays, and calls nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if name in _ARRAYS and module.partition(".")[0] == "numpy":
            return super().find_class(module, name)
        if (module, name) in _SAFE_GLOBALS:
            return _SAFE_GLOBALS[module, name]
        raise pickle.UnpicklingError(f"it would execute {module}.{name}")


def _make_array(make: Any, args: Any, state: Any, attributes: Any = None) -> Any:
    array = make(*args)
    array.__setstate__(state)
    return array


def _find_type(name: str) -> Any:
    if name != "PartialType":
        raise pickle.UnpicklingError(f"it would create a {name}")
    return partial


def _take_value(initial_value: Any, **settings: Any) -> Any:
    return initial_value


# FastEstimator pickles arrays and variables with dill.
_SAFE_GLOBALS: dict[tuple[str, str], Any] = {
    ("dill._dill", "_create_array"): _make_array,
    ("dill._dill", "_load_type"): _find_type,
    ("keras.src.optimizers.optimizer", "CallableList"): list,
    ("tensorflow.python.framework.dtypes", "as_dtype"): str,
    ("tensorflow.python.ops.resource_variable_ops", "ResourceVariable"): _take_value,
}
