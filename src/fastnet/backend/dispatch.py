"""Picks the package of `fastnet.backend` that implements a framework: by value, model or name."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import cast

from fastnet.errors import shorten
from fastnet.framework import Framework
from fastnet.types import Model
from fastnet.util.lazy import import_module

_PACKAGES = {
    "torch": "fastnet.backend.torch",
    "tf": "fastnet.backend.tf",
    "np": "fastnet.backend.numpy",
}
_package_of_type: dict[type, ModuleType] = {}


def backend_of(value: object) -> ModuleType:
    """Return the package for a tensor's framework; raise a ValueError for anything else."""
    try:
        return _package_of_type[type(value)]
    except KeyError:
        package = _package_of_type[type(value)] = get_backend(_framework_of_tensor(value))
        return package


def get_backend(framework: str) -> ModuleType:
    """Return the package for a framework: "torch", "tf" or "np"."""
    if framework not in _PACKAGES:
        raise ValueError(f"The framework must be 'torch', 'tf' or 'np', but got {framework!r}.")
    package: ModuleType = import_module(_PACKAGES[framework])
    return package


def get_framework(name: str) -> Framework:
    """Return the package for a framework of models, "torch" or "tf"."""
    return cast("Framework", get_backend(name))


def model_framework(model: Model) -> Framework:
    """Return the package for the framework of a model; raise a ValueError for anything else."""
    name = framework_of(model)
    if name is None:
        raise ValueError(
            f"Unrecognized model instance {type(model).__name__}: expected a torch.nn.Module or a "
            "Keras model."
        )
    return get_framework(name)


def framework_of(model: object) -> str | None:
    """Return the framework of a model, "torch" or "tf", or None for anything else."""
    # A model exists only if its framework has been imported. Keras comes first, because with
    # Keras's torch backend its models are modules of torch as well.
    for name in ("keras", "tf_keras"):
        keras = sys.modules.get(name)
        if keras is not None and isinstance(model, keras.Model):
            return "tf"
    torch = sys.modules.get("torch")
    return "torch" if torch is not None and isinstance(model, torch.nn.Module) else None


def _framework_of_tensor(value: object) -> str:
    # A library that was never imported cannot have made the value.
    numpy, tensorflow, torch = map(sys.modules.get, ("numpy", "tensorflow", "torch"))
    if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
        return "np"
    if tensorflow is not None and (
        isinstance(value, (tensorflow.Tensor, tensorflow.Variable))
        or hasattr(type(value), "__tf_tensor__")  # variables of Keras 3
    ):
        return "tf"
    if torch is not None and isinstance(value, torch.Tensor):
        return "torch"
    raise ValueError(
        f"Unrecognized tensor type {type(value).__name__}: expected a tensor of torch, tensorflow "
        f"or numpy, but got {shorten(value)}."
    )
