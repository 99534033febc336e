"""Lazy imports: packages that load their public names on first use."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

# The package to install for a module that is missing.
_PACKAGES = {"torch": "torch", "tensorflow": "tensorflow", "keras": "tensorflow"}


def attach(
    package: str,
    exports: Mapping[str, str],
    submodules: Iterable[str] = (),
    needs: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return a package's `__getattr__` and `__dir__`, for names that are imported on first use.

    `exports` maps each name to its submodule. `needs` maps names to libraries without which the
    package does not have them: `dir` omits them, and access raises an AttributeError that says so.

    >>> get, names = attach("fastnet.util", {"attach": "lazy"}, submodules=["names"])
    >>> get("attach") is attach, get("names").__name__, names()
    (True, 'fastnet.util.names', ['attach', 'names'])
    """
    modules = frozenset(submodules)

    def load_export(name: str) -> Any:
        try:
            return getattr(import_module(f"{package}.{exports[name]}"), name)
        except ModuleNotFoundError as error:
            if error.name is None or error.name != needs.get(name):
                raise
            # `hasattr` must return False.
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}: {error}"
            ) from error

    def load(name: str) -> Any:
        if name in exports:
            value = load_export(name)
        elif name in modules:
            value = import_module(f"{package}.{name}")
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        # The next access finds the name without calling this function.
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted(
            name for name in {*exports, *modules} if name not in needs or _is_installed(needs[name])
        )

    return load, names


def _is_installed(library: str) -> bool:
    # Importing importlib.util takes longer than the other imports of this module.
    from importlib.util import find_spec

    if library in sys.modules:  # None if its import is blocked
        return sys.modules[library] is not None
    try:
        return find_spec(library) is not None
    except ImportError:
        return False


def import_module(name: str) -> Any:
    """Import a module; if a framework is missing, the error names the package to install.

    AutoGraph converts the functions that an op calls. It warns about `importlib`, but not about the
    builtin `__import__`.
    """
    try:
        __import__(name)
    except ModuleNotFoundError as error:
        package = _PACKAGES.get(str(error.name).partition(".")[0])
        if package is None:
            raise
        raise ModuleNotFoundError(
            f"{name} needs {error.name}, which is not installed. Install it with "
            f"`pip install {package}`.",
            name=error.name,
        ) from error
    return sys.modules[name]
