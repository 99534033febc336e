"""Patches names in FastEstimator's modules, at once or after FastEstimator is imported."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from fastnet.integrations.fastestimator.import_hook import ImportHook
from fastnet.integrations.fastestimator.patched_names import NETWORK, OPS
from fastnet.integrations.fastestimator.restore_wizard import STATES
from fastnet.integrations.fastestimator.stand_ins import ROOT, stand_in

if TYPE_CHECKING:
    from fastnet.network.compile_options import CompileOptions

__all__ = ["LOCK", "Patch", "Settings"]

LOCK = threading.RLock()
"""Held while names are replaced or restored."""

_HERE = __name__.rpartition(".")[0]
# Functions that replace FastEstimator's instead of fastnet's of the same names, and their modules.
_ADAPTED = {
    "Network": "networks",
    "build": "build",
    "get_lr": "model_files",
    "load_model": "model_files",
    "save_model": "model_files",
}


class Settings(NamedTuple):
    """The arguments of `install`.

    Attributes:
        ops: Whether ops, schedulers, slicers and backend functions are replaced too.
        compile: Whether networks compile their steps, or the options for that.
    """

    ops: bool
    compile: bool | CompileOptions


class Patch:
    """Replaces names of FastEstimator with fastnet's, and restores them.

    Args:
        settings: The arguments of `install`.

    Attributes:
        settings: The arguments of `install`.
        changes: The replaced names, each with the name of its replacement; before FastEstimator is
            imported, the names that will be replaced.
        missing: The modules that could not be imported, each with the reason. Their names are not
            replaced.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._table: dict[str, tuple[str, ...]] = {**NETWORK, **(OPS if settings.ops else {})}
        self._pairs: list[tuple[Any, Any]] = []
        self._import_hook = ImportHook(self._after_import)
        self.changes: Mapping[str, str] = {
            f"{ROOT}.{module}.{name}": f"{_fastnet_module(module)}.{name}"
            for module, names in self._table.items()
            for name in names
        }
        self.missing: dict[str, str] = {}

    @property
    def is_active(self) -> bool:
        """Whether names have been replaced."""
        return bool(self._pairs)

    def apply(self) -> None:
        """Replace all names, at once or after FastEstimator is imported; if it fails, none."""
        _set_compile(self.settings.compile)
        self._import_hook.start()
        try:
            self._replace_if_imported()
        except BaseException:
            self.undo()
            raise

    def undo(self) -> Mapping[str, str]:
        """Restore all names.

        Returns:
            The restored names, each with the name of its value.
        """
        _set_compile(False)
        self._import_hook.stop()
        pairs = [(new, old) for old, new in self._pairs]
        self._pairs = []
        return _replace(pairs)

    def _after_import(self) -> None:
        # A thread that holds the lock may wait for this import, and will replace the names itself.
        if LOCK.acquire(blocking=False):
            try:
                self._replace_if_imported()
            finally:
                LOCK.release()

    def _replace_if_imported(self) -> None:
        if any(f"{ROOT}.{module}" in sys.modules for module in self._table):
            self._import_hook.stop()
            self._replace_names()

    def _replace_names(self) -> None:
        # Import all modules first: FastEstimator's classes must not derive from replacements.
        imported = {module: self._import(module) for module in self._table}
        pairs = []
        for module, names in self._table.items():
            if imported[module] is None:
                continue
            for name in names:
                original = getattr(imported[module], name)
                pairs.append((original, _replacement(module, name, original)))
        self._pairs = pairs
        self.changes = _replace(pairs)

    def _import(self, module: str) -> Any:
        try:
            return import_module(f"{ROOT}.{module}")
        except ImportError as error:
            # The module needs a package that is not installed, so no program can use it.
            self.missing[f"{ROOT}.{module}"] = str(error)
            return None


def _set_compile(compile: bool | CompileOptions) -> None:
    from fastnet.integrations.fastestimator.networks import set_compile

    set_compile(compile)


def _modules() -> Iterator[ModuleType]:
    """Yield the imported modules of FastEstimator, including the package."""
    loaded: list[tuple[str, ModuleType | None]] = list(sys.modules.items())
    for name, module in loaded:
        # The value None blocks the import of a module.
        if module is not None and (name == ROOT or name.startswith(f"{ROOT}.")):
            yield module


def _replace(pairs: list[tuple[Any, Any]]) -> dict[str, str]:
    """Replace objects in all modules of FastEstimator, under all of their names.

    Returns the full names of the replaced attributes, each with the name of its replacement.
    """
    replacements = {id(old): new for old, new in pairs}
    # `pow` and `tensor_pow` have one replacement, so they are restored by name.
    named = {(id(old), getattr(new, "__name__", None)): new for old, new in pairs}
    changed = {}
    for module in _modules():
        for name, value in list(vars(module).items()):
            if id(value) in replacements:
                new = named.get((id(value), name), replacements[id(value)])
                setattr(module, name, new)
                changed[f"{module.__name__}.{name}"] = _describe(new)
    return changed


def _fastnet_module(module: str) -> str:
    return f"fastnet.{'backend' if module.startswith('backend.') else module}"


def _replacement(module: str, name: str, original: Any) -> Any:
    if name in _ADAPTED:
        return getattr(import_module(f"{_HERE}.{_ADAPTED[name]}"), name)
    if module == "network":
        from fastnet.integrations.fastestimator.networks import network_class

        return network_class(name)
    value = getattr(import_module(_fastnet_module(module)), name)
    return stand_in(value, original, STATES.get(name)) if isinstance(original, type) else value


def _describe(value: Any) -> str:
    classes = vars(value).get("_stands_for") if isinstance(value, type) else None
    # Show fastnet's class rather than the stand-in, which has the name of FastEstimator's.
    shown = classes[0] if classes else value
    return f"{shown.__module__}.{shown.__qualname__}"
