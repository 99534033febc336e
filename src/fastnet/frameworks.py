"""Looks up what ops need of a framework by the path of its place."""

from __future__ import annotations

from typing import Any

from fastnet.util.lazy import import_module

__all__ = ["MissingPart", "framework_named", "part_if_any", "part_of"]

_PACKAGES = {
    "torch": "fastnet.backend.torch",
    "tf": "fastnet.backend.tf",
    "np": "fastnet.backend.numpy",
}
_PLACES = {
    ("torch", "model_pass"): "fastnet.op.tensorop.model.torch_spread:make_pass",
    ("torch", "update"): "fastnet.op.tensorop.model.torch_spread:make_update",
    ("tf", "model_pass"): "fastnet.op.tensorop.model.tf_pass:TFPass",
    ("tf", "update"): "fastnet.op.tensorop.model.tf_update:TFUpdate",
}


class MissingPart(NotImplementedError):
    """A framework lacks something that an op needs of it."""


class framework_named:
    """Loads the classes that run and update the models of a framework."""

    def __init__(self, name: str) -> None:
        self.name = name

    def load(self, what: str) -> Any:
        """Import the "model_pass" or "update" of the framework."""
        module, _, name = _PLACES[self.name, what].partition(":")
        return getattr(import_module(module), name)


def part_of(framework: str, part: str = "", asker: str = "fastnet") -> Any:
    """Import a framework's package, a module of it, or "module.name"."""
    if framework not in _PACKAGES:
        raise ValueError(f"The frameworks are 'torch', 'tf' and 'np', but got {framework!r}.")
    found = import_module(_PACKAGES[framework])
    path = found.__name__
    for name in part.split(".") if part else ():
        path = f"{path}.{name}"
        if not hasattr(found, name):
            try:
                import_module(path)
            except ModuleNotFoundError as error:
                if error.name != path:
                    raise
                raise MissingPart(f"{asker} needs '{part}' of {_PACKAGES[framework]}.") from None
        found = getattr(found, name)
    return found


def part_if_any(framework: str, part: str) -> Any:
    """Import a part as `part_of` does, or return None if there is none."""
    try:
        return part_of(framework, part)
    except MissingPart:
        return None
