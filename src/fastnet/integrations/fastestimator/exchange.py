"""Replaces names in FastEstimator's modules, at once or after FastEstimator is imported."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from fastnet.integrations.fastestimator.compile_setting import set_compile
from fastnet.integrations.fastestimator.modules import replace
from fastnet.integrations.fastestimator.stand_ins import ROOT, stand_in
from fastnet.integrations.fastestimator.states import STATES
from fastnet.integrations.fastestimator.table import NETWORK, OPS
from fastnet.integrations.fastestimator.waiting import Waiting

if TYPE_CHECKING:
    from fastnet.network.compile_options import CompileOptions

__all__ = ["Exchange", "Setting"]

_HERE = __name__.rpartition(".")[0]
# Functions that replace FastEstimator's instead of fastnet's functions of the same names.
_ADAPTED = {
    "Network": "networks",
    "build": "building",
    "get_lr": "rates",
    "load_model": "files",
    "save_model": "files",
}


class Setting(NamedTuple):
    """The arguments of `install`.

    Attributes:
        ops: Whether ops, schedulers, slicers and backend functions are replaced too.
        compile: Whether networks compile their steps, or the options for that.
    """

    ops: bool
    compile: bool | CompileOptions


class Exchange:
    """Replaces names of FastEstimator with fastnet's, and restores them.

    Args:
        setting: The arguments of `install`.

    Attributes:
        setting: The arguments of `install`.
        changes: The replaced names, each with the name of its replacement; before FastEstimator is
            imported, the names that will be replaced.
        missing: The modules that could not be imported, each with the reason. Their names are not
            replaced.
    """

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self._table: dict[str, tuple[str, ...]] = {**NETWORK, **(OPS if setting.ops else {})}
        self._pairs: list[tuple[Any, Any]] = []
        self._waiting = Waiting(self._replace_if_imported)
        self.changes: Mapping[str, str] = {
            f"{ROOT}.{module}.{name}": f"{_own_module(module)}.{name}"
            for module, names in self._table.items()
            for name in names
        }
        self.missing: dict[str, str] = {}

    @property
    def is_active(self) -> bool:
        """Whether names have been replaced."""
        return bool(self._pairs)

    def start(self) -> None:
        """Replace all names, at once or after FastEstimator is imported."""
        set_compile(self.setting.compile)
        self._waiting.start()
        self._replace_if_imported()

    def undo(self) -> Mapping[str, str]:
        """Restore all names.

        Returns:
            The restored names, each with the name of its value.
        """
        set_compile(False)
        self._waiting.stop()
        pairs = [(new, old) for old, new in self._pairs]
        self._pairs = []
        return replace(pairs, _describe)

    def _replace_if_imported(self) -> None:
        if any(f"{ROOT}.{module}" in sys.modules for module in self._table):
            self._waiting.stop()
            self._replace_names()

    def _replace_names(self) -> None:
        # Import all modules first: FastEstimator's classes must not derive from replacements.
        imported = {module: self._import(module) for module in self._table}
        self._pairs = [
            (original, _replacement(module, name, original))
            for module, names in self._table.items()
            if imported[module] is not None
            for name in names
            for original in [getattr(imported[module], name)]
        ]
        self.changes = replace(self._pairs, _describe)

    def _import(self, module: str) -> Any:
        try:
            return import_module(f"{ROOT}.{module}")
        except ImportError as error:
            # The module needs a package that is not installed, so no program can use it.
            self.missing[f"{ROOT}.{module}"] = str(error)
            return None


def _own_module(module: str) -> str:
    return f"fastnet.{'backend' if module.startswith('backend.') else module}"


def _replacement(module: str, name: str, original: Any) -> Any:
    if name in _ADAPTED:
        return getattr(import_module(f"{_HERE}.{_ADAPTED[name]}"), name)
    if module == "network":
        from fastnet.integrations.fastestimator.networks import network_class

        return network_class(name)
    own = getattr(import_module(_own_module(module)), name)
    return stand_in(own, original, STATES.get(name)) if isinstance(original, type) else own


def _describe(value: Any) -> str:
    kinds = vars(value).get("_stands_for") if isinstance(value, type) else None
    shown = kinds[0] if kinds else value
    return f"{shown.__module__}.{shown.__qualname__}"
