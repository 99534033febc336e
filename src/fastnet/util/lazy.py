"""Packages whose contents are imported when they are first asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

__all__ = ["attach", "import_late"]


def attach(
    package: str,
    exports: Mapping[str, str],
    submodules: Iterable[str] = (),
    needs: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make the module functions that let a package import its contents late.

    Args:
        package: The package's ``__name__``.
        exports: Where each public name lives: the name, and the submodule to import it from.
        submodules: Submodules that are themselves public names.
        needs: The libraries that some of the names cannot be imported without. Where one is not
            installed `dir` leaves the name out, so that whatever looks at all that there is, such
            as `help`, does not come to it; asked for by itself it raises an error.

    Returns:
        What the package assigns to its ``__getattr__`` and ``__dir__``.

    >>> get, names = attach("fastnet.util", {"attach": "lazy"}, submodules=["names"])
    >>> get("attach") is attach, get("names").__name__, names()
    (True, 'fastnet.util.names', ['attach', 'names'])
    """
    modules = frozenset(submodules)

    def load(name: str) -> Any:
        if name in exports:
            value = getattr(import_late(f"{package}.{exports[name]}"), name)
        elif name in modules:
            value = import_late(f"{package}.{name}")
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        # found without a call from now on
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted(
            name for name in {*exports, *modules} if name not in needs or _is_installed(needs[name])
        )

    return load, names


def _is_installed(library: str) -> bool:
    # it takes longer than the other imports here
    from importlib.util import find_spec

    try:
        return library in sys.modules or find_spec(library) is not None
    except ImportError:
        return False


def import_late(name: str) -> Any:
    """Import a module from inside a function that ops may call.

    While a graph is traced, AutoGraph reads the Python of whatever an op calls. It warns that it
    cannot read `importlib`; a builtin it leaves alone.

    Args:
        name: The module's whole name.

    Returns:
        The module.

    Raises:
        ModuleNotFoundError: If it needs what is not there, with the extra that brings a framework.

    >>> import_late("fastnet.util.names").__name__
    'fastnet.util.names'
    """
    try:
        __import__(name)
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get(str(error.name).partition(".")[0])
        if extra is None:
            raise
        raise ModuleNotFoundError(
            f"{name} needs {error.name}, which is not installed. Install it by "
            f"`pip install fastnet[{extra}]`.",
            name=error.name,
        ) from error
    return sys.modules[name]


# the extra that brings a framework along
_EXTRAS = {"torch": "torch", "tensorflow": "tf", "keras": "tf"}
